"""Directories of events: by table and time of commit, with Hive's naming."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from tidelog.errors import ConfigError
from tidelog.ports import TargetTable

DEFAULT = "table={table}/date={date}"
_TABLE = ("table", "namespace", "name")
_DAYS = ("date", "year", "month", "day")
_DAY_US, _HOUR_US = 86_400_000_000, 3_600_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COPYING = "._COPYING_"
# Characters that Hive and Spark write as %XX in the value of a partition column.
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(0x20)}


@dataclass(frozen=True)
class FilesLayout:
    """Directories from ``pattern``: ``{table}`` (the destination's name), ``{namespace}``,
    ``{name}`` (the source's), ``{date}``, ``{year}``, ``{month}``, ``{day}``, ``{hour}`` of the
    commit, in UTC. Raises ConfigError for anything else.
    """

    pattern: str = DEFAULT

    def __post_init__(self) -> None:
        known = (*_TABLE, *_DAYS, "hour")
        try:
            fields = self._fields()
        except ValueError as error:
            raise ConfigError(f"layout {self.pattern!r}: {error}") from None
        unknown = [name for name in fields if name not in known]
        if unknown:
            raise ConfigError(
                f"layout {self.pattern!r}: {{{unknown[0]}}} is not one of {', '.join(known)}"
            )
        for part in self.pattern.split("/"):
            if not part or part.startswith(("_", ".")):
                raise ConfigError(
                    f"layout {self.pattern!r}: a directory can't be empty, nor begin with _ or . "
                    "(readers pass over such)"
                )
        if "hour" in fields and not {"date", "day"} & set(fields):
            raise ConfigError(f"layout {self.pattern!r}: {{hour}} needs {{date}} before it")

    @property
    def has_table_column(self) -> bool:
        """Is the table's name a partition column?"""
        return "table" in self._fields()

    def split(
        self, table: TargetTable, rows: pa.RecordBatch, microseconds: pa.Array
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yields rows by their directory, each part in order; ``microseconds`` int64, since
        1970.
        """
        period_us = self._period_us
        if period_us == 0:
            yield self.directory(table, 0), rows
            return
        periods = microseconds.to_numpy(zero_copy_only=False) // period_us
        first = int(periods[0])
        if (periods == first).all():
            yield self.directory(table, first * period_us), rows
            return
        for period in np.unique(periods).tolist():
            part = rows.filter(pa.array(periods == period))
            yield self.directory(table, period * period_us), part

    def directory(self, table: TargetTable, microseconds: int) -> str:
        """Returns the directory of commits at that time."""
        return self.of_table(table, (_EPOCH + timedelta(microseconds=microseconds)))

    def of_table(self, table: TargetTable, at: datetime = _EPOCH) -> str:
        values = {
            "table": table.name,
            "namespace": table.source.namespace,
            "name": table.source.name,
            "date": at.strftime("%Y-%m-%d"),
            "year": at.strftime("%Y"),
            "month": at.strftime("%m"),
            "day": at.strftime("%d"),
            "hour": at.strftime("%H"),
        }
        found = self.pattern.format(**{name: _escaped(value) for name, value in values.items()})
        return "/".join(map(visible, found.split("/")))

    @property
    def _period_us(self) -> int:
        fields = self._fields()
        if "hour" in fields:
            return _HOUR_US
        return _DAY_US if set(_DAYS) & set(fields) else 0

    def _fields(self) -> list[str]:
        return [name for _, name, _, _ in string.Formatter().parse(self.pattern) if name]


def visible(name: str) -> str:
    """Returns a file's or directory's name that readers do not ignore: Spark, Hive and Hadoop hide
    names that begin with ``_`` or ``.``, or end in ``._COPYING_``. Escaped as in partition columns.
    """
    if name.startswith(("_", ".")):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if name.endswith(_COPYING):
        name = f"{name.removesuffix(_COPYING)}%2E{_COPYING[1:]}"
    return name


def _escaped(value: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in value)
