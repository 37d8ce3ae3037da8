"""Checks names that a destination can't have, or can't distinguish."""

from __future__ import annotations

from tidelog.errors import NameRefusedError
from tidelog.model.schema import TableName
from tidelog.outputs.base.targets import rename_step, route_step
from tidelog.outputs.database.dialect import DatabaseSession, Dialect
from tidelog.outputs.database.layout import DELETED, VERSION
from tidelog.ports import TargetTable


def check_names(
    session: DatabaseSession, dialect: Dialect, output: str, table: TargetTable, place: TableName
) -> None:
    """Raises NameRefusedError if the server can't have the names of the table and its columns."""
    for name in (place.namespace, place.name):
        if fault := dialect.name_fault(session, name):
            raise _refused(
                output,
                f"the table {place} has a name that {fault}",
                route_step(table.source),
            )
    for name in table.columns.names:
        if fault := dialect.name_fault(session, name):
            what = f"the table {place} has a column '{name}' whose name {fault}"
            raise _refused(output, what, rename_step(table.source, name))
    seen: dict[str, str] = {}
    for name in (*table.columns.names, VERSION, DELETED):
        other = seen.setdefault(name.lower() if dialect.ignores_case else name, name)
        if other is not name:
            what = (
                f"{table.source} has columns {other} and {name}, which {session.product} can't "
                "tell apart"
            )
            theirs = other if name in (VERSION, DELETED) else name
            raise _refused(output, what, rename_step(table.source, theirs))


def _refused(output: str, what: str, step: str) -> NameRefusedError:
    return NameRefusedError(f"output {output}: {what}. {step}")
