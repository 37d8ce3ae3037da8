"""Parses Debezium's signals into commands, so that scripts written for it work unchanged.

Types and fields as in its manual, "Sending signals to a Debezium connector", and in its package
``io.debezium.pipeline.signal.actions``. As in Debezium, unknown fields are ignored. Differences: a
signal's id names the dump; ``priority`` is an addition; ``surrogate-key`` is not needed, because
tables are read in the order of their own key; a blocking snapshot's filter must be a plain SELECT
(`condition_of_filter`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.control.commands import (
    OUR_IDS,
    CancelDump,
    Command,
    LogMessage,
    PauseDump,
    ResumeDump,
    StartDump,
    any_case,
    build_command,
    digest,
)
from tidelog.control.conditions import condition_of_filter
from tidelog.errors import UsageError

MAX_MESSAGE = 1000
ANY_TABLE = "(?s:.*)"
_DUMP_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Signal:
    """The three columns of Debezium's signal table. ``data``: JSON as text, or parsed; or None."""

    signal_id: str
    type: str
    data: str | Mapping[str, Any] | None = None


def parse_line(line: str) -> Signal:
    """A signal of Debezium's file channel: ``{"id": …, "type": …, "data": …}``.

    Raises:
        UsageError: if it is none; its text is not shown.
    """
    return from_document(_object(line, "the signal"))


def from_document(document: Any) -> Signal:
    """Like `parse_line`, for a parsed document. ``data`` may be an object, a text or absent."""
    if not isinstance(document, Mapping) or not isinstance(document.get("type"), str):
        raise UsageError('a signal is {"id": …, "type": …, "data": {…}}')
    signal_id, data = document.get("id"), document.get("data")
    if isinstance(signal_id, bool) or not isinstance(signal_id, (str, int, type(None))):
        raise UsageError("a signal's id is a text")
    if not isinstance(data, (str, Mapping, type(None))):
        raise UsageError("a signal's data is a JSON object, or the text of one")
    return Signal("" if signal_id is None else str(signal_id), document["type"], data)


def parse(signal: Signal, *, coordinates: str = "") -> Command:
    """The command of a signal.

    Args:
        signal: the signal.
        coordinates: the signal's place, for ``{}`` in the message of a ``log`` signal.

    Raises:
        UsageError: if the type is unknown or the data is not what the type needs; values are not
            shown.
    """
    read = _READ.get(signal.type)
    if read is None:
        raise UsageError(f"unknown signal type; known are {', '.join(_READ)}")
    return read(signal, coordinates)


def dump_id_of(signal_id: str) -> str:
    """The signal's id if it is a valid dump id, else a stable name derived from it."""
    if _DUMP_ID.fullmatch(signal_id) and not OUR_IDS.fullmatch(signal_id):
        return signal_id
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", signal_id)[:40].strip("-")
    return f"{slug or 'signal'}-{digest(signal_id)}"


def another_dump_id(dump_id: str, command_id: str) -> str:
    """The dump's id if an earlier signal with the same id has taken it."""
    return f"{dump_id[:47]}-{digest(command_id)}"


# ---------------------------------------------------------------- one function for each type


def _execute(signal: Signal, _coordinates: str) -> Command:
    data = _data(signal)
    collections = _collections(signal, data)
    if not collections:
        raise UsageError("execute-snapshot: data-collections is missing or empty")
    mode = _mode(signal, data)
    if mode == "blocking":  # there a text may list several, and case is ignored
        parts = (part.strip() for text in collections for part in re.split(r"(?<!\\),", text))
        collections = [any_case(part) for part in parts if part]
    surrogate = data.get("surrogate-key")
    return build_command(
        StartDump,
        {
            "dump_id": dump_id_of(signal.signal_id),
            "tables": collections,
            "matching": "regex",
            "conditions": _conditions(signal, data),
            "mode": mode,
            "priority": data.get("priority") or 0,
            "surrogate_key": surrogate
            if isinstance(surrogate, str) and surrogate.strip()
            else None,
            "signal_id": signal.signal_id,
        },
    )


def _stop(signal: Signal, _coordinates: str) -> Command:
    data = _data(signal)
    tables = _collections(signal, data)
    mode = _mode(signal, data)
    return build_command(CancelDump, {"tables": tables, "matching": "regex", "mode": mode})


def _log(signal: Signal, coordinates: str) -> Command:
    message = _data(signal).get("message")
    if not isinstance(message, str) or not message:
        raise UsageError("log: message is missing")
    text = message.replace("{}", coordinates or "<none>")
    return build_command(LogMessage, {"message": text[:MAX_MESSAGE]})


_READ: Mapping[str, Callable[[Signal, str], Command]] = {
    StartDump.type: _execute,
    CancelDump.type: _stop,
    LogMessage.type: _log,
    # "The data field is ignored."
    PauseDump.type: lambda _signal, _coordinates: PauseDump(by="a signal"),
    ResumeDump.type: lambda _signal, _coordinates: ResumeDump(),
}

# ---------------------------------------------------------------- fields


def _data(signal: Signal) -> Mapping[str, Any]:
    data = signal.data
    if isinstance(data, str):
        data = _object(data, f"{signal.type}: data") if data.strip() else {}
    return data or {}


def _mode(signal: Signal, data: Mapping[str, Any]) -> str:
    mode = data.get("type")
    if mode is None:
        return "incremental"
    if not isinstance(mode, str) or mode.lower() not in ("incremental", "blocking"):
        raise UsageError(f"{signal.type}: type is incremental or blocking")
    return mode.lower()


def _collections(signal: Signal, data: Mapping[str, Any]) -> list[str]:
    names = data.get("data-collections")
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(text, str) for text in names):
        raise UsageError(f"{signal.type}: data-collections is a list of texts")
    return [text.strip() for text in names if text.strip()]


def _conditions(signal: Signal, data: Mapping[str, Any]) -> dict[str, str]:
    """``additional-conditions``; ``additional-condition`` of versions before 2.3 is for all."""
    listed = data.get("additional-conditions")
    if listed is None:
        one = data.get("additional-condition")
        if one is None or (isinstance(one, str) and not one.strip()):
            return {}
        listed = [{"data-collection": ANY_TABLE, "filter": one}]
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        raise UsageError(f"{signal.type}: additional-conditions is a list of objects")
    conditions_by_table: dict[str, str] = {}
    for item in listed:
        table, text = item.get("data-collection"), item.get("filter")
        if not isinstance(table, str) or not table.strip():
            raise UsageError(f"{signal.type}: additional-conditions: data-collection is missing")
        if text is None or (isinstance(text, str) and not text.strip()):
            continue  # "Each collection can be paired with an optional filter"
        if not isinstance(text, str):
            raise UsageError(f"{signal.type}: additional-conditions: filter is a text")
        try:
            condition = condition_of_filter(text)
        except ValueError as error:
            raise UsageError(f"{signal.type}: additional-conditions: {error}") from None
        if condition is not None:
            conditions_by_table.setdefault(any_case(table.strip()), condition)
    return conditions_by_table


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise UsageError(f"{what} is not a JSON object")
    return value
