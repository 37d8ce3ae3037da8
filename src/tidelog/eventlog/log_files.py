"""An event log's two documents: ``log.json``, which never changes, and ``chain.json``."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from tidelog.errors import (
    EventLogError,
    ForeignSegmentError,
    SegmentCorruptError,
    SourceChangedError,
    StorageError,
)
from tidelog.eventlog.checksummed_json import sealed, unsealed
from tidelog.eventlog.layout import FORMAT, is_segment_name
from tidelog.eventlog.storage.port import Storage, Tag
from tidelog.ports import SourceId

LOG_FILE: Final = "log.json"
CHAIN_FILE: Final = "chain.json"


@dataclass(frozen=True, slots=True)
class LogInfo:
    """What never changes of an event log (``log.json``)."""

    generation: str
    source: SourceId
    start_offset: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Merging:
    """A roll-up that was begun: of the segments of offsets ``[first, next)`` into one whose nonce
    is ``nonce``. Whoever finds it begun finishes it.
    """

    first: int
    next: int
    nonce: str


@dataclass(frozen=True, slots=True)
class ChainState:
    """``chain.json``: where the log begins, and a number that grows before names are freed."""

    head: int
    revision: int
    merging: Merging | None = None


def create_log(storage: Storage, source: SourceId, start_offset: int) -> LogInfo:
    """Create ``log.json`` unless there is one; what is stored then."""
    info = {
        "format": FORMAT,
        "generation": secrets.token_hex(8),
        "source": source.to_json(),
        "start_offset": start_offset,
        "created_ms": time.time_ns() // 1_000_000,
    }
    if storage.tag(LOG_FILE) is None:
        strays = [name for name in storage.names() if is_segment_name(name)]
        if strays:
            raise ForeignSegmentError(
                f"{storage!r} holds segments ({strays[0]} …) but no {LOG_FILE}: it is not an empty "
                f"place for a new event log. Restore {LOG_FILE}, or use another directory."
            )
        storage.put_if_absent(LOG_FILE, sealed(info))
    return load_log(storage)


def load_log(storage: Storage) -> LogInfo:
    """What ``log.json`` says. Raises EventLogError if there is none."""
    try:
        raw = storage.read(LOG_FILE)
    except FileNotFoundError:
        raise EventLogError(
            f"{storage!r} is not an event log: it has no {LOG_FILE}. "
            "Check the path; capture creates the log when it first leads."
        ) from None
    try:
        data = unsealed(raw)
        if data["format"] != FORMAT:
            raise ForeignSegmentError(
                f"{storage!r} is an event log of format {data['format']}; this Tidelog reads "
                f"format {FORMAT}. Use the version of Tidelog that wrote it."
            )
        return LogInfo(
            data["generation"],
            SourceId(**data["source"]),
            data["start_offset"],
            data["created_ms"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SegmentCorruptError(
            f"{storage!r} {LOG_FILE} is torn or was altered{_why(error)}. Restore it from a backup."
        ) from error


def check_source(storage: Storage, ours: SourceId, theirs: SourceId) -> None:
    """Raises SourceChangedError if ``theirs``, which the log was captured from, is another one."""
    if (ours.kind, ours.system, ours.database) != (theirs.kind, theirs.system, theirs.database):
        raise SourceChangedError(
            f"{storage!r} was captured from {theirs.kind} system {theirs.system} database "
            f"{theirs.database}, the source now is {ours.kind} system {ours.system} database "
            f"{ours.database}. Point the source at the old server, or use a new log directory."
        )


def load_state(storage: Storage, info: LogInfo) -> ChainState:
    """What ``chain.json`` says; the state of a new log if there is none."""
    try:
        data = unsealed(storage.read(CHAIN_FILE))
        merging = data.pop("merging", None)
        return ChainState(**data, merging=None if merging is None else Merging(**merging))
    except FileNotFoundError:
        return ChainState(info.start_offset, 0)
    except (ValueError, TypeError, AttributeError) as error:
        raise SegmentCorruptError(
            f"{storage!r} {CHAIN_FILE} is torn or was altered{_why(error)}. Restore it from a "
            "backup, or write "
            '{"head": <first offset of the oldest segment>, "revision": <any greater number>}.'
        ) from error


def _why(error: Exception) -> str:
    """What gave it away, where that says more than that it can't be parsed."""
    return f": {error}" if type(error) is ValueError else ""


def store_state(storage: Storage, state: ChainState, expected: Tag | None) -> Tag:
    """Durable when it returns. For maintenance only; ``expected``: `Chain.state_tag`."""
    data: dict[str, Any] = asdict(state)
    if state.merging is None:
        del data["merging"]
    tag = storage.replace_if(CHAIN_FILE, sealed(data), expected)
    if tag is None:
        raise StorageError(
            f"{storage!r}: {CHAIN_FILE} was changed by another process. Roll-up and retention go "
            "on with the next round; if this is said again and again, two captures write one log."
        )
    return tag
