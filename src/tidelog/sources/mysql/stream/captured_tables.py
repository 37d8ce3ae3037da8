"""Which of the log's tables are captured."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.model.patterns import matches, overlap
from tidelog.model.schema import TableName
from tidelog.sources.mysql.stream.metadata_tables import MySqlMetadataTables

SYSTEM_DATABASES = ("mysql", "sys", "information_schema", "performance_schema")


class CapturedTables:
    """Tells captured tables from others.

    Args:
        patterns: of the tables to capture.
        metadata_tables: ours, which are not.

    Attributes:
        fold: the server takes names in any case, and logs them in lower case.
    """

    def __init__(self, patterns: Sequence[str], metadata_tables: MySqlMetadataTables) -> None:
        self.fold = False
        self._patterns = tuple(patterns)
        self._metadata_tables = metadata_tables

    def set_fold(self, fold: bool) -> None:
        """Say how the server logs names: if in lower case, so are ours."""
        self.fold = fold
        if fold:
            self._patterns = tuple(pattern.lower() for pattern in self._patterns)
            self._metadata_tables.fold()

    def __contains__(self, table: TableName) -> bool:
        return (
            table.namespace != self._metadata_tables.namespace
            and table.namespace not in SYSTEM_DATABASES
            and table != self._metadata_tables.signals
            and matches(self._patterns, table)
        )

    def may_be_in(self, database: str) -> bool:
        """May a table of this database be captured?"""
        name = database.lower() if self.fold else database
        if name == self._metadata_tables.namespace or name in SYSTEM_DATABASES:
            return False
        return overlap((f"{name}.*", f'"{name}".*'), self._patterns)
