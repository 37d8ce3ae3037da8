"""An activity log in files, and plain readers of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from tests.behaviours.outputs.destinations import Context, Destination, Row, newest

from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.files.output import FilesOutput
from tidelog.outputs.files.writer import FileFormat
from tidelog.state.sqlite import SqliteState

DELIVERY = Delivery("activity", keyed=False, order="none")


def opened(context: Context, file_format: FileFormat, layout: str, **delivery: Any) -> FilesOutput:
    """The output over ``context.path/activity``."""
    return FilesOutput(
        context.spark,
        context.built.path,
        SqliteState(f"sqlite:///{context.path / 'state.db'}"),
        replace(DELIVERY, **delivery),
        path=str(context.path / "activity"),
        layout=layout,
        file_format=file_format,
    )


def visible(root: Path) -> list[Path]:
    """The files that Spark and Hive see."""
    found = [path for path in root.rglob("*") if path.is_file()]
    hidden = ("_", ".")
    return sorted(
        p for p in found if not any(x.startswith(hidden) for x in p.parts[len(root.parts) :])
    )


def read(root: Path) -> list[Row]:
    """All records in order of version, with those columns that directories tell."""
    records: list[Row] = []
    for file in visible(root):
        told = {n: unquote(v) for n, v in (p.split("=") for p in file.parts if "=" in p)}
        if file.suffix == ".parquet":
            rows = pq.ParquetFile(file).read().to_pylist()
        else:
            assert file.suffix == ".json"
            rows = [json.loads(line) for line in file.read_text().splitlines()]
        records += [told | row for row in rows]
    return sorted(records, key=lambda each: (each["version"], each["op"] != "d"))


def table_rows(records: list[Row], table: str) -> list[Row]:
    """The table's rows as the records tell them."""
    told: list[tuple[str, int, Row | None]] = []
    known: dict[str, Row] = {}
    for record in (each for each in records if each["table"] == table):
        if record["op"] == "t":
            told += [(key, record["version"], None) for key in known]
            known.clear()
            continue
        key = json.dumps(record["key"])
        before, after = known.get(key, {}), record["after"]
        if after is not None:
            missing = record["missing"] or ()
            after = {n: before.get(n) if n in missing else v for n, v in after.items()}
            known[key] = after
        told.append((key, record["version"], after))
    return newest(told)


def destination(context: Context, file_format: FileFormat, layout: str) -> Destination:
    def open_(**delivery: Any) -> FilesOutput:
        return opened(context, file_format, layout, **delivery)

    def rows(table: str) -> list[Row]:
        records = read(context.path / "activity")
        versions = [(r["table"], r["version"], r["op"]) for r in records]
        assert len(set(versions)) == len(versions), "a change is there twice"
        return table_rows(records, table)

    return Destination(open_, rows, frozenset({"stream"}))
