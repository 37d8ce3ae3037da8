"""``kind: mysql``: tables of MySQL."""

from __future__ import annotations

from tests.behaviours.outputs.database_tables import database_destination
from tests.behaviours.outputs.destinations import Context, Destination


def destination(context: Context) -> Destination:
    return database_destination(context, "mysql")
