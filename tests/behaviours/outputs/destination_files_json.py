"""JSON lines of all tables together, by hour."""

from __future__ import annotations

from tests.behaviours.outputs import activity_files
from tests.behaviours.outputs.destinations import Context, Destination

from tidelog.outputs.files.writer import FileFormat


def destination(context: Context) -> Destination:
    json_lines = FileFormat("json", "json", "none")
    return activity_files.destination(context, json_lines, "date={date}/hour={hour}")
