"""The event log's JSON documents: ``log.json``, ``chain.json``, and ``led-by.json``, its owner.

``log.json`` never changes. ``led-by.json`` names the state store that owns the log. Captures
coordinate through their state store. Two that are configured with different ones by mistake would
both lead: fences protect the log, but each would shut the other out again and again, and neither
would know of the other's dumps. A store that never led this log may have replaced a lost one, so
its capture takes over, and logs that. A store that led it before finds that another one did since:
its capture ends. So one of two remains.
"""

from __future__ import annotations

import json
import logging
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
    PreflightError,
    SegmentCorruptError,
    SourceChangedError,
    StateConflictError,
    StorageError,
)
from tidelog.eventlog.segments import FORMAT, is_segment_name
from tidelog.eventlog.storage_port import Storage, Tag
from tidelog.ports import SourceId, StateStore
from tidelog.system.processes import unix_ms
from tidelog.system.version import check_format

CHECKSUM: Final = "crc32"


def to_checksummed_json(document: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Encode the document with its checksum; ``indent``: for people, with non-ASCII letters."""
    whole = {**document, CHECKSUM: _checksum(document)}
    return json.dumps(whole, ensure_ascii=indent is None, indent=indent).encode()


def from_checksummed_json(data: bytes, what: str) -> dict[str, Any]:
    """Decode a document, without its checksum. ``what``: its name in messages.

    Raises:
        NewerFormatError: if a newer version wrote it.
        ValueError: if it is torn, is no JSON object, or does not match its checksum.
    """
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    check_format(document.get("format"), what)
    if CHECKSUM in document and document.pop(CHECKSUM) != _checksum(document):
        raise ValueError("it does not match its checksum")
    document.pop("format", None)
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
    """The numbers of the folder's files that are not known yet, in order.

    A listing, of a directory or a bucket, does not show one moment: it may include a file, but not
    the one before, which was created during the listing. Taking it as complete would use a number
    twice. So all numbers below the last one listed count as listed; such a file is missing only if
    it was removed.

    If requests are paid, a listing costs twelve times as much as a request for the next number.
    """
    if storage.parallel > 1 and known:
        last = max(known)
        while storage.tag(name_of(last + 1)) is not None:
            last += 1
    else:
        listed = (pattern.fullmatch(name) for name in storage.names(folder))
        last = max((int(match[1]) for match in listed if match), default=0)
    return [number for number in range(1, last + 1) if number not in known]


# ``log.json`` and ``chain.json``.

LOG_FILE: Final = "log.json"
CHAIN_FILE: Final = "chain.json"


@dataclass(frozen=True, slots=True)
class LogInfo:
    """The constant facts about an event log (``log.json``)."""

    generation: str
    source: SourceId
    start_offset: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Merging:
    """A roll-up that was begun: of the segments with offsets ``[first, next)`` into one with the
    nonce ``nonce``. Any later maintenance finishes it.
    """

    first: int
    next: int
    nonce: str


@dataclass(frozen=True, slots=True)
class ChainState:
    """``chain.json``: the log's first offset, and a number that grows before names are freed."""

    head: int
    revision: int
    merging: Merging | None = None


def create_log(storage: Storage, source: SourceId, start_offset: int) -> LogInfo:
    """Create ``log.json`` unless it exists; returns what is stored then."""
    info = {
        "format": FORMAT,
        "generation": secrets.token_hex(8),
        "source": source.to_json(),
        "start_offset": start_offset,
        "created_ms": unix_ms(),
    }
    if storage.tag(LOG_FILE) is None:
        strays = [name for name in storage.names() if is_segment_name(name)]
        if strays:
            raise ForeignSegmentError(
                f"{storage!r} holds segments ({strays[0]} …) but no {LOG_FILE}: it is not an empty "
                f"place for a new event log. Restore {LOG_FILE}, or use another directory."
            )
        storage.put_if_absent(LOG_FILE, to_checksummed_json(info))
    return load_log(storage)


def load_log(storage: Storage) -> LogInfo:
    """Read ``log.json``. Raises EventLogError if there is none."""
    try:
        raw = storage.read(LOG_FILE)
    except FileNotFoundError:
        raise EventLogError(
            f"{storage!r} is not an event log: it has no {LOG_FILE}. "
            "Check the path; capture creates the log when it first leads."
        ) from None
    try:
        data = from_checksummed_json(raw, f"{storage!r} {LOG_FILE}")
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
    """Raise SourceChangedError if ``theirs``, the log's source, is another one than ``ours``."""
    if (ours.kind, ours.system, ours.database) != (theirs.kind, theirs.system, theirs.database):
        raise SourceChangedError(
            f"{storage!r} was captured from {theirs.kind} system {theirs.system} database "
            f"{theirs.database}, the source now is {ours.kind} system {ours.system} database "
            f"{ours.database}. Point the source at the old server, or use a new log directory."
        )


def load_chain_state(storage: Storage, info: LogInfo) -> ChainState:
    """Read ``chain.json``; returns the state of a new log if there is none."""
    try:
        data = from_checksummed_json(storage.read(CHAIN_FILE), f"{storage!r} {CHAIN_FILE}")
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
    """The error's text, if it says more than that parsing failed."""
    return f": {error}" if type(error) is ValueError else ""


def store_chain_state(storage: Storage, state: ChainState, expected: Tag | None) -> Tag:
    """Store ``chain.json``, durably. For maintenance only; ``expected``: `Chain.state_tag`."""
    data: dict[str, Any] = asdict(state)
    if state.merging is None:
        del data["merging"]
    tag = storage.replace_if(CHAIN_FILE, to_checksummed_json(data), expected)
    if tag is None:
        raise StorageError(
            f"{storage!r}: {CHAIN_FILE} was changed by another process. Roll-up and retention are "
            "retried in the next round; if this repeats, two captures write one log."
        )
    return tag


# The owner of the log.

logger = logging.getLogger(__name__)

LED_BY_FILE: Final = "led-by.json"
STORE_KEY: Final = "event-log-led"
"""The document in the state store: its ``id``, and the ``generation`` that it led. A copy of the
store gets another id: the original must not be used any more."""


def claim_log(storage: Storage, generation: str, state: StateStore, about: str) -> None:
    """Register this state store as the owner of the log of this generation.

    Args:
        storage: the event log's storage.
        generation: the event log's generation.
        state: the store.
        about: names of store and host, for people; no secrets.

    Raises PreflightError: if another store's capture has led the log since this one's did.
    """
    own = _own(state)
    try:
        owner = from_checksummed_json(storage.read(LED_BY_FILE), f"{storage!r} {LED_BY_FILE}")
    except (FileNotFoundError, ValueError):  # a new log
        owner = {}
    if owner.get("store") == own["id"]:
        _note(state, own, generation)
        return
    if owner and own.get("generation") == generation:
        raise PreflightError(
            f"this event log is led through another state store since "
            f"{_when(owner)}: {owner.get('about', 'unknown')}; ours is {about}. Captures of one "
            "event log need one state.url. Correct it here, or stop those captures, delete "
            f"{LED_BY_FILE} of the event log and start this one again"
        )
    if owner:
        logger.warning(
            "the event log was led through another state store, %s, until now; from here on "
            "captures that use that one stop. Ours is %s",
            owner.get("about", "unknown"),
            about,
        )
    document = {"store": own["id"], "about": about, "since_ms": unix_ms()}
    storage.replace(LED_BY_FILE, to_checksummed_json(document))
    _note(state, own, generation)


def _own(state: StateStore) -> dict[str, Any]:
    while True:
        document = state.get(STORE_KEY)
        if document is not None:
            return dict(document.value)
        try:
            state.put(STORE_KEY, {"id": secrets.token_hex(8)}, 0)
        except StateConflictError:
            continue


def _note(state: StateStore, own: dict[str, Any], generation: str) -> None:
    """Note the generation, after the file was written: a store with the note has led the log."""
    if own.get("generation") != generation:
        state.put(STORE_KEY, {**own, "generation": generation}, None)


def _when(found: dict[str, Any]) -> str:
    seconds = int(found.get("since_ms", 0)) / 1000
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
