"""Outputs of a few lines, for tests and as examples of your own."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from tidelog.outputs import Writer
from tidelog.ports import Rejection, TargetTable, WriteTask

_UPSERT = """
INSERT INTO kept VALUES (:table, :key, :version, :deleted, :row)
ON CONFLICT (name, key) DO UPDATE
SET version = excluded.version, deleted = excluded.deleted,
    row = CASE WHEN excluded.deleted THEN NULL ELSE excluded.row END
WHERE excluded.version > kept.version
"""
_PARTIAL = """
UPDATE kept SET version = :version, row = json_patch(row, :row)
WHERE name = :table AND key = :key AND version < :version AND NOT deleted
"""


class KeptRows(Writer):
    """Rows by key in a SQLite file: versions decide, a deleted key keeps a tombstone.

    Args:
        path: the file. ``poison``: a text that the destination "rejects" rows for.
    """

    def __init__(self, path: str, poison: str | None = None) -> None:
        self.path = path
        self.poison = poison

    def open(self, task: WriteTask) -> None:
        self.database = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS kept (name TEXT, key TEXT, version INTEGER, "
            "deleted INTEGER, row TEXT, PRIMARY KEY (name, key))"
        )
        self.database.execute("BEGIN IMMEDIATE")
        for table, version in task.deleted_below.items():
            self.database.execute(
                "UPDATE kept SET deleted = 1, row = NULL, version = ? "
                "WHERE version < ? AND name = ?",
                (version - 1, version, table),
            )

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> Iterable[Rejection]:
        rejected = []
        for row in rows.to_pylist():
            op, version = row.pop("_tidelog_op"), row.pop("_tidelog_version")
            missing = set(row.pop("_tidelog_missing") or ())
            if self.poison is not None and self.poison in row.values():
                rejected.append(Rejection(table.name, version, "it is poison"))
                continue
            told = {name: value for name, value in row.items() if name not in missing}
            values = {
                "table": str(table.source),
                "key": json.dumps([row[name] for name in table.key], default=str),
                "version": version,
                "deleted": op == "d",
                "row": json.dumps(told, default=str),
            }
            self.database.execute(_PARTIAL if missing and op == "u" else _UPSERT, values)
        return rejected

    def commit(self) -> None:
        self.database.execute("COMMIT")

    def close(self) -> None:
        self.database.close()


class Messages(Writer):
    """Messages appended to a SQLite table; one that comes again is there once."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, task: WriteTask) -> None:
        self.database = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS messages (topic TEXT, key TEXT, version INTEGER, "
            "value TEXT, UNIQUE (topic, key, version))"
        )
        self.database.execute("BEGIN IMMEDIATE")

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> None:
        values = zip(
            *(rows.column(n).to_pylist() for n in ("topic", "key", "version", "value")), strict=True
        )
        self.database.executemany(
            "INSERT OR IGNORE INTO messages VALUES (?, CAST(? AS TEXT), ?, CAST(? AS TEXT))", values
        )

    def commit(self) -> None:
        self.database.execute("COMMIT")

    def close(self) -> None:
        self.database.close()


class Lines(Writer):
    """Messages appended to a file, which knows no fence: so it asks for the lease before that."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, task: WriteTask) -> None:
        self.task = task
        self.lines: list[bytes] = []

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> None:
        self.lines += [value + b"\n" for value in rows.column("value").to_pylist() if value]

    def commit(self) -> None:
        self.task.check_lease()
        with Path(self.path).open("ab") as file:
            file.write(b"".join(self.lines))
