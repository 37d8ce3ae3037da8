"""JSON lines of all tables together, by hour."""

from __future__ import annotations

from tests.behaviours.outputs import activity_files
from tests.behaviours.outputs.destinations import Context, Destination
from tests.support.output_options import file_format


def destination(context: Context) -> Destination:
    json_lines = file_format(kind="json", values="json", compression="none")
    return activity_files.destination(context, json_lines, "date={date}/hour={hour}")
