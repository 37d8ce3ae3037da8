"""Settings that every session of PostgreSQL pins, whoever opens it: sources, outputs, state.

A role, a database or a server may have other defaults: they must change no value, and end no
session of ours at random.
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
# Of sources and state, whose tables are ours alone. Outputs respect a database that is read-only.
WRITABLE: Mapping[str, str] = {"default_transaction_read_only": "off"}
# By the version that has them: one that does not would refuse the connection.
NEWER_TIMEOUTS: Mapping[str, int] = {
    "idle_session_timeout": 140_000,
    "transaction_timeout": 170_000,
}
# What was committed must survive a crash of the server: whoever wrote it goes on from there.
_DURABLE = (
    "SELECT pg_catalog.set_config('synchronous_commit', 'local', false) "
    "WHERE pg_catalog.current_setting('synchronous_commit') = 'off'"
)


def set_newer_timeouts(server_version: int) -> bytes:
    """Statements that switch off the timeouts of `NEWER_TIMEOUTS` that the server has."""
    names = [name for name, since in NEWER_TIMEOUTS.items() if server_version >= since]
    return "; ".join(f"SET {name} = 0" for name in names).encode()


def set_statements(settings: Mapping[str, str], server_version: int) -> bytes:
    """Statements for the session of a writer: everything that is pinned here, and ``settings``,
    which win. For connections by a pooler, which takes no settings when a session starts.
    """
    values = {**PINNED, **TIMEOUTS, **settings}
    pinned = [f"SET {name} = '{value}'" for name, value in values.items()]
    newer = set_newer_timeouts(server_version).decode()
    return "; ".join([*pinned, *filter(None, [newer]), _DURABLE]).encode()
