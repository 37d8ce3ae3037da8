"""What people type for dump options and conditions: ``NAME=VALUE`` with units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidelog.control.commands import SetDumpOptions, build
from tidelog.errors import UsageError
from tidelog.model.units import parse_bytes, parse_milliseconds

# Name as typed → field of `SetDumpOptions`, and how a value with a unit is read.
_UNITS: dict[str, tuple[str, Callable[[str], int]]] = {
    "delay": ("delay_ms", parse_milliseconds),
    "max_lag": ("max_lag_bytes", parse_bytes),
    "max_replica_lag": ("max_replica_lag_ms", parse_milliseconds),
    "max_select": ("max_select_ms", parse_milliseconds),
    "max_commit_delay": ("max_commit_delay_ms", parse_milliseconds),
}
_UNITS |= {field: (field, read) for field, read in _UNITS.values()}
_PLAIN = ("chunk_rows", "parallelism", "rows_per_second")
NAMES = (*_PLAIN, *(name for name, (field, _read) in _UNITS.items() if name != field))


def parse_options(texts: Sequence[str]) -> SetDumpOptions:
    """``chunk_rows=5000``, ``delay=50ms``, ``max_lag=64MiB`` as a command; ``off`` is 0.

    Raises:
        UsageError: names the option that is wrong.
    """
    data: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{text!r} is not NAME=VALUE, such as chunk_rows=5000")
        if name not in _PLAIN and name not in _UNITS:
            raise UsageError(f"{name!r} is no option; there are {', '.join(NAMES)}")
        field, read = _UNITS.get(name, (name, int))
        if value == "off":
            value = "0"
        try:
            data[field] = int(value) if value.isdigit() else read(value)
        except ValueError as error:
            reason = "expected a whole number" if name in _PLAIN else error
            raise UsageError(f"{name}: {reason}") from None
    command = build(SetDumpOptions, data)
    assert isinstance(command, SetDumpOptions)
    return command


def parse_conditions(texts: Sequence[str]) -> dict[str, str]:
    """``public.orders=placed > '2026-01-01'`` as conditions by table."""
    found: dict[str, str] = {}
    for text in texts:
        table, equals, condition = text.partition("=")
        if not equals or not condition.strip():
            raise UsageError("--condition is TABLE=SQL, such as public.orders='id > 5'")
        if table in found:
            raise UsageError(f"--condition: {table} has two; join them with AND")
        found[table] = condition
    return found
