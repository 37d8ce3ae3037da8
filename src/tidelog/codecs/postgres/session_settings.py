"""Settings that every PostgreSQL session pins: those of sources, outputs and state.

A role, a database or a server may have other defaults: these must change no value, and end none of
our sessions at random.
"""

from __future__ import annotations

from collections.abc import Mapping

# Each changes how some type is read or written as text (manual, "Client Connection Defaults").
PINNED: Mapping[str, str] = {
    "DateStyle": "ISO,YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "TimeZone": "UTC",
    "client_encoding": "UTF8",
    "lc_monetary": "C",
    "search_path": "",  # regclass and the like are qualified unless found in the path
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "xmloption": "content",
}
TIMEOUTS: Mapping[str, str] = {
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
}
# For sources and state, whose tables are only ours. Outputs respect a read-only database.
WRITABLE: Mapping[str, str] = {"default_transaction_read_only": "off"}
# By the first version that has them: an older one would refuse the connection.
NEWER_TIMEOUTS: Mapping[str, int] = {
    "idle_session_timeout": 140_000,
    "transaction_timeout": 170_000,
}
# What was committed must survive a crash of the server: its writer resumes after it.
_DURABLE = (
    "SELECT pg_catalog.set_config('synchronous_commit', 'local', false) "
    "WHERE pg_catalog.current_setting('synchronous_commit') = 'off'"
)


def set_newer_timeouts(server_version: int) -> bytes:
    """Return statements that switch off the timeouts of `NEWER_TIMEOUTS` that the server has."""
    names = [name for name, since in NEWER_TIMEOUTS.items() if server_version >= since]
    return "; ".join(f"SET {name} = 0" for name in names).encode()


def set_statements(settings: Mapping[str, str], server_version: int) -> bytes:
    """Return statements for a writer's session: all pinned settings, overridden by ``settings``.
    For connections by a pooler, which accepts no settings when a session starts.
    """
    values = {**PINNED, **TIMEOUTS, **settings}
    pinned = [f"SET {name} = '{value}'" for name, value in values.items()]
    newer = set_newer_timeouts(server_version).decode()
    return "; ".join([*pinned, *filter(None, [newer]), _DURABLE]).encode()
