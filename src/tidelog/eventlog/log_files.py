"""An event log's two documents: ``log.json``, which never changes, and ``chain.json``."""

from __future__ import annotations

import json
import re
import secrets
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tidelog.errors import (
    EventLogError,
    ForeignSegmentError,
    SegmentCorruptError,
    SourceChangedError,
    StorageError,
)
from tidelog.eventlog.layout import FORMAT, is_segment_name
from tidelog.eventlog.storage.port import Storage, Tag
from tidelog.ports import SourceId

CHECKSUM: Final = "crc32"


def sealed(document: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """The document with its checksum, as a file; ``indent``: for people, in their letters."""
    whole = {**document, CHECKSUM: _checksum(document)}
    return json.dumps(whole, ensure_ascii=indent is None, indent=indent).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """The document of a file, without its checksum.

    Raises:
        ValueError: it is torn, is no JSON object, or does not match its checksum.
    """
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    if CHECKSUM in document and document.pop(CHECKSUM) != _checksum(document):
        raise ValueError("it does not match its checksum")
    return document


def _checksum(document: Mapping[str, Any]) -> int:
    plain = json.dumps(document, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return zlib.crc32(plain.encode())


def new_numbers(
    storage: Storage,
    folder: str,
    pattern: re.Pattern[str],
    name_of: Callable[[int], str],
    known: Collection[int],
) -> list[int]:
    """Numbers of the folder's files that are not known yet, in order.

    A listing is of no one moment, neither a directory's nor a bucket's: it may hold a file, and not
    the one before, which was created while it went on. Who took that for all there are would number
    the same thing twice. So what lies below the last one listed counts as listed; such a file is
    missing only if somebody took it away.

    Where requests are paid, a listing costs twelve times what it costs to ask for the next number.
    """
    if storage.parallel > 1 and known:
        last = max(known)
        while storage.tag(name_of(last + 1)) is not None:
            last += 1
    else:
        listed = (pattern.fullmatch(name) for name in storage.names(folder))
        last = max((int(match[1]) for match in listed if match), default=0)
    return [number for number in range(1, last + 1) if number not in known]


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
