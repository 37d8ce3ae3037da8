"""Decides which tables can be written: an allow-list of what Iceberg's format 3 may have.

Iceberg's specification, "Default values", "Partition Transforms" and "Table Metadata Fields". Types
of columns are checked where they are used (`tidelog.outputs.lake.iceberg.table`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tidelog.errors import TableLeftOutError
from tidelog.outputs.lake.iceberg.partitioning import KNOWN_TRANSFORMS, Partition
from tidelog.outputs.lake.iceberg.state import IcebergState

DEFAULTS: Final = ("initial-default", "write-default")
"""Of a column: its value in files from before it, and in new rows that bring none."""
_NEWEST_FORMAT: Final = 3


def check_supported(state: IcebergState, location: str) -> None:
    """Raise TableLeftOutError, which names the feature, for a table that we must not write."""
    for what, remedy in _reasons(state):
        raise TableLeftOutError(
            f"{location} uses {what}, which Tidelog does not support. {remedy}, or move the table "
            "away and dump it again."
        )


def support_inputs(state: IcebergState) -> object:
    """Return what `check_supported` depends on."""
    spec = state.spec()["spec-id"]
    return state.uuid, state.format_version, state.is_encrypted(), state.schema_id(), spec


def _reasons(state: IcebergState) -> Iterator[tuple[str, str]]:
    if state.format_version > _NEWEST_FORMAT:
        yield f"format version {state.format_version}", "Update Tidelog"
    if state.is_encrypted():
        yield "encryption", "Exclude the table"
    fields = state.schema()["fields"]
    columns = {each["id"]: each["name"] for each in fields}
    for column in fields:
        for name in _members_with_default(column["type"], column["name"]):
            yield f"a default of {name}, a member of a column", "Drop the member"
    for each in state.spec()["fields"]:
        name, transform = each["name"], each["transform"]
        sources = each.get("source-ids", [each.get("source-id")])
        if len(sources) > 1:
            what = f"a partition of several columns, {name}"
        elif Partition.kept("", transform).transform not in KNOWN_TRANSFORMS:
            what = f"a partition by {transform}, {name}"
        elif transform != "void" and sources[0] not in columns:
            what = f"a partition by a member of a column, {name}"
        else:
            continue
        yield what, f"ALTER TABLE … DROP PARTITION FIELD {name}"


def _members_with_default(kind: Any, name: str) -> Iterator[str]:
    """Yield a column's members, however deep, that have a default other than null."""
    if isinstance(kind, str):
        return
    for each in kind.get("fields", ()):
        below = f"{name}.{each['name']}"
        if any(each.get(default) is not None for default in DEFAULTS):
            yield below
        yield from _members_with_default(each["type"], below)
    for part in ("element", "key", "value"):
        if part in kind:
            yield from _members_with_default(kind[part], f"{name}.{part}")
