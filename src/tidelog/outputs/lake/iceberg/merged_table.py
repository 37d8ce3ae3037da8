"""A copy that Spark's MERGE keeps, as one of Iceberg's."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tidelog.outputs.lake.contents import LakeLayout
from tidelog.outputs.lake.table import LakeTable
from tidelog.spark.transforms import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def literal(text: str) -> str:
    """A text as a Spark SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class MergedTable(LakeTable):
    """A copy, seen through a Spark session.

    ``sql_name`` is what statements write to, between the begin and the end of `committing`, and
    ``read_name`` what readers see.
    """

    def __init__(
        self, spark: SparkSession, location: str, sql_name: str, layout: LakeLayout
    ) -> None:
        super().__init__(location, layout)
        self.spark = spark
        self.sql_name = sql_name
        self.read_name = sql_name

    @abstractmethod
    def is_empty(self) -> bool:
        """Has it no rows? May say no where it has none."""

    @abstractmethod
    def committing(
        self, application: str, since: int | None, end: int
    ) -> AbstractContextManager[None]:
        """What is written inside is one commit, together with ``end``, the offset below which
        everything is there then. It fails with an OutputError, and nothing is changed, if not
        ``since`` is committed any more (None: nothing). ``end`` is ``since`` for the rows of a copy
        that was restored.
        """

    @abstractmethod
    def append(self, rows: DataFrame) -> None: ...

    @abstractmethod
    def optimize(self, keep_s: float | None) -> None:
        """Rewrite small files as large ones; with ``keep_s`` remove files that no version of the
        last so many seconds has.
        """

    def remove_marked(self, column: str) -> None:
        self.spark.sql(f"DELETE FROM {self.read_name} WHERE {quoted(column)}")  # noqa: S608
