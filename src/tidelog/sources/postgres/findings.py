"""What `tidelog check` finds, and how it asks the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

Level = Literal["ok", "warn", "fail"]
Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked. ``fix`` is SQL (or a setting) where something must be done."""

    name: str
    level: Level
    message: str
    fix: str = ""


def one_row(connection: Connection, query: str, arguments: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The one row that the query gives."""
    found = connection.execute(query.encode(), arguments or None).fetchone()
    assert found is not None
    return found


def setting_of(connection: Connection, name: str) -> str:
    """A setting of the server as text."""
    (value,) = one_row(connection, "SELECT current_setting(%s)", (name,))
    return str(value)
