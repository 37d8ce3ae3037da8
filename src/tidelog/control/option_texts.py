"""Parses dump options and conditions as users type them: ``NAME=VALUE`` with units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.control.commands import SetDumpOptions, build_command
from tidelog.errors import UsageError
from tidelog.model.dump_options import RunTimeOptions
from tidelog.model.units import parse_bytes, parse_milliseconds

_READ = {"ms": parse_milliseconds, "bytes": parse_bytes}
"""The parser of a value, by the unit at the end of the option's name."""


def typed_name(option: str) -> str:
    """The option's name as users type it: without the unit, which is part of the value."""
    name, _, unit = option.rpartition("_")
    return name if unit in _READ else option


_OPTIONS = {typed_name(option): option for option in RunTimeOptions.model_fields}


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
        option = _OPTIONS.get(name, name)
        if option not in RunTimeOptions.model_fields:
            raise UsageError(f"{name!r} is not an option; there are {', '.join(_OPTIONS)}")
        read = _READ.get(option.rpartition("_")[2], int)
        if value == "off":
            value = "0"
        try:
            data[option] = int(value) if value.isdigit() else read(value)
        except ValueError as error:
            reason = "expected a whole number" if read is int else error
            raise UsageError(f"{name}: {reason}") from None
    command = build_command(SetDumpOptions, data)
    assert isinstance(command, SetDumpOptions)
    return command


def parse_conditions(texts: Sequence[str]) -> dict[str, str]:
    """``public.orders=placed > '2026-01-01'`` as conditions by table."""
    conditions: dict[str, str] = {}
    for text in texts:
        table, equals, condition = text.partition("=")
        if not equals or not condition.strip():
            raise UsageError("--condition is TABLE=SQL, such as public.orders='id > 5'")
        if table in conditions:
            raise UsageError(f"--condition: {table} has two; join them with AND")
        conditions[table] = condition
    return conditions
