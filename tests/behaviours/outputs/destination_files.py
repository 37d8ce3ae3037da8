"""Parquet files with typed columns, by table and date."""

from __future__ import annotations

from tests.behaviours.outputs import activity_files
from tests.behaviours.outputs.destinations import Context, Destination

from tidelog.outputs.files.writer import FileFormat


def destination(context: Context) -> Destination:
    return activity_files.destination(context, FileFormat(), "table={table}/date={date}")
