"""Parquet files with typed columns, by table and date."""

from __future__ import annotations

from tests.behaviours.outputs import activity_files
from tests.behaviours.outputs.destinations import Context, Destination
from tests.support.output_options import file_format


def destination(context: Context) -> Destination:
    return activity_files.destination(context, file_format(), "table={table}/date={date}")
