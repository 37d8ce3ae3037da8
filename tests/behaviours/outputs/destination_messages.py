"""Ordered delivery: flat messages appended to a SQLite table, read by version."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from typing import Any

from tests.behaviours.outputs.destinations import Context, Destination, Row, newest

from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.custom.output import PythonOutput
from tidelog.outputs.formatters import formatter
from tidelog.state.sqlite import SqliteState

WRITER = "tests.behaviours.outputs.kept_rows:Messages"
DELIVERY = Delivery("stream", keyed=False, formatter=formatter("flat"))
UNTOLD = "__debezium_unavailable_value"


def destination(context: Context) -> Destination:
    file = str(context.path / "messages.db")

    def open_(**delivery: Any) -> PythonOutput:
        state = SqliteState(f"sqlite:///{context.path / 'state.db'}")
        wanted = replace(DELIVERY, **delivery)
        return PythonOutput(
            context.spark, context.built.path, state, wanted, WRITER, {"path": file}
        )

    def rows(table: str) -> list[Row]:
        """As a reader that keeps rows by key sees them: it fills what a message does not tell."""
        with sqlite3.connect(file) as database:
            found = database.execute(
                "SELECT key, version, value FROM messages WHERE topic = ? ORDER BY version, rowid",
                (table,),
            ).fetchall()
        told: list[tuple[str, int, Row | None]] = []
        known: dict[str, Row] = {}
        for key, version, text in found:
            value = json.loads(text)
            if value["__op"] == "t":
                told += [(each, version, None) for each in known]
                known.clear()
                continue
            row = {n: v for n, v in value.items() if not n.startswith("__")}
            before = known.get(key, {})
            row = {n: before.get(n) if v == UNTOLD else v for n, v in row.items()}
            known[key] = row
            told.append((key, version, None if value["__deleted"] else row))
        return newest(told)

    return Destination(open_, rows, frozenset({"stream"}))
