"""``kind: python``: the rows by key of `kept_rows.KeptRows`, in a SQLite file."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from typing import Any

from tests.behaviours.outputs.destinations import Context, Destination, Row

from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.custom.output import PythonOutput
from tidelog.state.sqlite import SqliteState

WRITER = "tests.behaviours.outputs.kept_rows:KeptRows"


def destination(context: Context) -> Destination:
    file = str(context.path / "kept.db")

    def open_(**delivery: Any) -> PythonOutput:
        state = SqliteState(f"sqlite:///{context.path / 'state.db'}")
        wanted = replace(Delivery("kept"), **delivery)
        return PythonOutput(
            context.spark, context.built.path, state, wanted, WRITER, {"path": file}
        )

    def rows(table: str) -> list[Row]:
        with sqlite3.connect(file) as database:
            found = database.execute(
                "SELECT row FROM kept WHERE name = ? AND NOT deleted ORDER BY key", (table,)
            ).fetchall()
        return [json.loads(row) for (row,) in found]

    return Destination(open_, rows)
