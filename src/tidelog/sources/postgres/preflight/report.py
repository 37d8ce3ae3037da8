"""Queries that the checks of `tidelog check` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]


def one_row(connection: Connection, query: str, arguments: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The query's only row."""
    found = connection.execute(query.encode(), arguments or None).fetchone()
    assert found is not None
    return found


def setting_of(connection: Connection, name: str) -> str:
    """A setting of the server, as text."""
    (value,) = one_row(connection, "SELECT current_setting(%s)", (name,))
    return str(value)


def owner_of(connection: Connection, relation_id: int) -> str:
    """The table's owner, quoted if necessary."""
    query = "SELECT relowner::regrole::text FROM pg_class WHERE oid = %s::oid"
    (owner,) = one_row(connection, query, (relation_id,))
    return str(owner)
