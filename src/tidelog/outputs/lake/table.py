"""A table of a lake: what Delta's and Iceberg's have in common, and what each has to say itself."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar
from urllib.parse import quote

from pyspark.sql.types import StructField

from tidelog.errors import NameRefusedError, OutputRefusedError
from tidelog.model.schema import TableName
from tidelog.outputs.base.schema_evolution import Wider
from tidelog.outputs.base.targets import (
    check_directory,
    one_address,
    rename_step,
    route_step,
)
from tidelog.outputs.lake.columns import ColumnPlan, CopyColumns, plan
from tidelog.outputs.lake.contents import LakeLayout, columns_of, fields_of
from tidelog.outputs.lake.restore_check import Restored
from tidelog.ports import TargetTable

GENERATION_PROPERTY = "tidelog.generation"
TABLE_PROPERTY = "tidelog.table"
MARKED_PROPERTY = "tidelog.deleted"  # the column that marks deleted rows, if they stay
DROPPED_PROPERTY = "tidelog.dropped"  # columns that the source dropped, as a JSON list
HOLDS_PROPERTY = "tidelog.holds"  # what the layout says; a copy has none

_PLAIN = " !$&'()*+,;=:@~"
_NOUN = {"copy": "a copy", "changes": "the changes"}


def parts_of(table: TableName, name: str) -> list[str]:
    """Namespace and name of the copy; a slash or percent sign inside is percent-encoded. Of a table
    whose destination has another ``name``, a route's, the first dot parts the two.
    """
    parts = [table.namespace, table.name]
    if name != str(table):
        parts = [part for part in name.partition(".")[::2] if part]
    return [_encoded(part) if _odd(part) else part for part in parts]


def _encoded(part: str) -> str:
    return quote(part, safe=_PLAIN).replace(".", "%2E" if part in (".", "..") else ".")


def _odd(part: str) -> bool:
    return any(c in part for c in "/%\\") or part in (".", "..")


class LakeTable(ABC):
    """A table of the lake: a copy, or what its layout says. Used by one thread at a time.

    ``place`` names the table in messages.
    """

    product: ClassVar[str]  # that tables are kept in, for messages
    wider: ClassVar[Wider]  # types that it can widen in place
    rescales: ClassVar[bool] = True  # decimals, too, to a larger scale

    def __init__(self, place: str, layout: LakeLayout) -> None:
        self.place = place
        self.layout = layout

    @abstractmethod
    def exists(self) -> bool:
        """Is there a table? Looks anew; all that follows is of what was found then."""

    @abstractmethod
    def committed(self, application: str) -> int | None:
        """The offset below which ``application`` brought everything over."""

    @abstractmethod
    def property(self, name: str) -> str | None: ...

    @abstractmethod
    def set_property(self, name: str, value: str) -> None: ...

    @abstractmethod
    def column_types(self) -> dict[str, str]:
        """Names and SQL types (as `sql_type` has them) of the columns, in order."""

    def definition(self) -> object:
        """Equal for as long as nobody alters the table."""
        return self.column_types()

    @abstractmethod
    def partitions(self) -> tuple[str, ...]:
        """What it is partitioned by, as in the layout."""

    @abstractmethod
    def create(self, target: TargetTable, generation: str) -> None:
        """Create the table for the target's columns, unless it is there."""

    def row_types(self) -> dict[str, str]:
        """Those of `column_types` that follow the source's, by the source's names."""
        own = self.layout.own
        return {name: kind for name, kind in self.column_types().items() if name not in own}

    @abstractmethod
    def follow(self, columns: ColumnPlan, target: TargetTable) -> None:
        """Alter the table as planned; what it is without the plan's changes stays as it is."""

    @abstractmethod
    def restored(self, application: str, since: int) -> Restored | None:
        """Was it set back to an older state, though ``since`` is committed? Raises
        OutputRefusedError if it was and nothing can be done about it here.
        """

    def sql_type(self, field: StructField) -> str:
        """The type of a column in the copy, as SQL."""
        return field.dataType.simpleString()

    def check_ours(self, table: TableName, generation: str) -> None:
        """Raises OutputError if it was not made by Tidelog, from another log, or of another table
        than ``table``.
        """
        stored = self.property(GENERATION_PROPERTY)
        if stored is None:
            raise OutputRefusedError(
                f"{self.place} is {self._a_table()} that Tidelog did not make (it has no property "
                f"{GENERATION_PROPERTY}). Choose another path for the output, or move the table."
            )
        if stored != generation:
            raise OutputRefusedError(
                f"{self.place} was filled from generation {stored} of the event log, this log is "
                f"generation {generation}: it was recreated. Move the table away and dump "
                f"{table} again; or, if the new log continues the old one's offsets, set the "
                f"table's property {GENERATION_PROPERTY} to {generation}."
            )
        other = self.property(TABLE_PROPERTY)
        if other not in (None, str(table)):
            raise NameRefusedError(
                f"{self.place} is the copy of {other}, and {table} goes there as well: two tables "
                f"can't share one copy. {route_step(table)}"
            )
        holds = self.property(HOLDS_PROPERTY) or "copy"
        if holds != self.layout.holds:
            raise OutputRefusedError(
                f"{self.place} holds {_NOUN.get(holds, holds)} of {table}, and the output's holds "
                f"says {self.layout.holds}. Write holds: {{{str(table)!r}: {holds}}}; or give the "
                f"output another path and name; or move the table away and dump {table} again."
            )
        kept, wanted = self.partitions(), self.layout.partitions
        if kept != wanted:
            raise OutputRefusedError(
                f"{self.place} is partitioned by {', '.join(kept) or 'nothing'}, and the "
                f"configuration says {', '.join(wanted) or 'nothing'}. {self._a_table()} keeps its "
                "partitions: set partition_by accordingly, or move the table away and dump "
                f"{table} again."
            )

    def _a_table(self) -> str:
        return f"{'an' if self.product[0] in 'AEIO' else 'a'} {self.product} table"

    def laid_out_by(self) -> tuple[str, ...]:
        """Names of columns that the layout asks for."""
        return self.layout.partitions

    def check_layout(self, target: TargetTable) -> None:
        """Raises OutputRefusedError if the target lacks a column of the layout."""
        columns = [field.name for field in columns_of(target, self.layout)]
        for name in self.laid_out_by():
            if name not in columns or name in self.layout.own:
                whose = f"{target.source} has" if self.layout.holds == "copy" else "it has"
                raise OutputRefusedError(
                    f"{self.place} can't be laid out by {name}: {whose} no such column. Change "
                    "partition_by or cluster_by of the output"
                )

    def evolve(self, target: TargetTable, policy: str) -> tuple[str, ...]:
        """Follow the target's columns as ``policy`` (see `tidelog.outputs.base.schema_evolution`)
        says; the names of those that rows deliver from now on.

        A column that the source dropped stays as it was, null in later rows; if the source adds it
        again, the old values go from a copy. Raises OutputRefusedError for a change of type that
        can't be made in place.
        """
        self.check_names(target)
        fields = fields_of(target)
        wanted = {name: self.sql_type(field) for name, field in fields.items()}
        current, types = self.column_types(), self.row_types()
        dropped = json.loads(self.property(DROPPED_PROPERTY) or "[]")
        copy = CopyColumns(self.place, self.product, types, dropped, self.wider, self.rescales)
        columns = plan(copy, target, wanted, policy)
        deleted = self.layout.deleted
        if deleted and deleted.lower() not in {name.lower() for name in current}:
            columns = replace(columns, added={**columns.added, deleted: "boolean"})
        self.follow(columns, target)
        return columns.delivered

    def settle_deletes(self) -> None:
        """Remove rows marked as deleted where deletes are hard: no one would look at the mark, nor
        remove it from a row that came back.
        """
        if self.deletes_are_settled():
            return
        marked = self.property(MARKED_PROPERTY)
        if marked and marked in self.column_types():
            self.remove_marked(marked)
        self.set_property(MARKED_PROPERTY, self.layout.deleted)

    def deletes_are_settled(self) -> bool:
        """Is `settle_deletes` done?"""
        return (self.property(MARKED_PROPERTY) or "") == self.layout.deleted

    @abstractmethod
    def remove_marked(self, column: str) -> None:
        """Delete the rows in which ``column`` is true."""

    def check_names(self, target: TargetTable) -> None:
        """Raises OutputRefusedError if names differ by case alone, or are ours."""
        check_columns(self.product, self.layout, target)


def check_columns(product: str, layout: LakeLayout, target: TargetTable) -> None:
    """Raises NameRefusedError if names differ by case alone, or are ours."""
    seen: dict[str, str] = {}
    for name in (*target.columns.names, *layout.own):
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            theirs = other if name in layout.own else name
            raise NameRefusedError(
                f"{target.source} has columns {other} and {name}, which {product} can't "
                f"tell apart (it ignores case). {rename_step(target.source, theirs)}"
            )


def application_of(generation: str, output: str) -> str:
    """What an output's commits are known by in its tables."""
    return f"tidelog/{generation}/{output}"


def check_place(
    output: str, table: TableName, copy: LakeTable, copies: Mapping[TableName, LakeTable]
) -> None:
    """Raises NameRefusedError if the copy of another table is to be where that of ``table`` is, or
    no directory can have its name.
    """
    first = min(
        (each for each, other in copies.items() if other.place == copy.place), default=table
    )
    if first != table:
        raise one_address(output, first, table, copy.place)
    check_directory(output, table, copy.place)
