"""Stores versioned JSON documents in any store that swaps texts, and elects a leader by a lease.

Such a store implements `Register`: read, compare-and-swap, remove, list. Versions, conflicts and
requests without an answer are handled here, once.

Each text has the ids of its last `WRITERS` writes, so that a writer that got no answer to a swap
can find out whether it was made. It also has the epoch of the last leader that read or wrote it: an
earlier leader can't change it any more.

For the lease the clocks of two hosts are never compared. The holder's time starts before it sends a
renewal; another process takes over once *it* has seen the same version for as long as the lease
lasts. So the holder's deadline, which is a fifth earlier, always comes first, whatever the clocks
say; only their rates must agree to a fifth.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from tidelog.errors import LeaseLostError, StateConflictError, StateError
from tidelog.ports import Document, Lease, StateStore
from tidelog.state.lease_polling import POLL_SHARE, LeasePolling
from tidelog.system.processes import has_ended, this_process
from tidelog.system.version import check_format

WRITERS: Final = 8
"""How many writes after a swap without an answer may follow before it can't be recognised."""

WRITES_REMEMBERED: Final = 1024
_PLAIN = re.compile(rb"[a-z0-9_-]")


class NoAnswerError(StateError):
    """Raised when the store did not answer a swap: it was made, or wasn't."""


class Register(Protocol):
    """A store of texts by name. Thread-safe; writes are durable. Raises StateError. Names consist
    of ``a-z``, ``0-9``, ``_``, ``-`` and ``=``.
    """

    def read(self, name: str) -> tuple[bytes, Any] | None:
        """Return the text and its tag, which changes with every swap."""
        ...

    def swap(self, name: str, text: bytes, tag: Any) -> Any:
        """Replace the text that has this tag (None: create it) by ``text``; return the new tag.

        Returns None if the tag has changed by now, also if our own earlier attempt changed it.
        Raises NoAnswerError; then the swap may still be made later, if the tag is unchanged.
        """
        ...

    def remove(self, name: str, tag: Any = None) -> bool:
        """Remove the text; with a ``tag`` only the text that has it. Returns False if another text
        has the name by now. An object store can't compare: it removes whatever is there.
        """
        ...

    def names(self) -> list[str]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Stored:
    """A document in a register without its value, as it was last read."""

    version: int
    tag: Any
    writers: tuple[str, ...]
    epoch: int = 0

    def successor(self, version: int, writer: str, epoch: int) -> _Stored:
        """Return the document that replaces this one."""
        writers = (*self.writers, writer)[-WRITERS:]
        return _Stored(version, None, writers, max(self.epoch, epoch))


_NOTHING: Final = _Stored(0, None, ())


class Documents:
    """A `tidelog.ports.StateStore` over a `Register`."""

    def __init__(self, register: Register, epoch: int = 0) -> None:
        """``epoch``: the epoch of the leader that uses this handle; 0: no leader does."""
        self._register = register
        self._epoch = epoch
        self._lock = threading.Lock()
        # So that a put with an expected version needs no read first.
        self._cache: OrderedDict[str, _Stored] = OrderedDict()

    def fenced(self, name: str, epoch: int) -> Documents:
        """See `tidelog.ports.FencedStore`."""
        return Documents(self._register, epoch)

    def get(self, key: str) -> Document | None:
        stored_and_value = self._read(key)
        while stored_and_value is not None and stored_and_value[0].epoch < self._epoch:
            stored_and_value = self._take_over(key, *stored_and_value)
        return (
            None
            if stored_and_value is None
            else Document(stored_and_value[1], stored_and_value[0].version)
        )

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        writer = secrets.token_hex(6)
        with self._lock:
            stored = self._cache.get(key)
        if expected_version == 0:
            stored = None
        elif stored is None or expected_version not in (None, stored.version):
            stored = self._read_stored(key)
        while True:
            version = 0 if stored is None else stored.version
            self._check_epoch(key, stored)
            if expected_version is not None and version != expected_version:
                raise StateConflictError(
                    f"state {key!r} has version {version}, expected {expected_version}: another "
                    "process changed it. Read it again and repeat."
                )
            fresh = (stored or _NOTHING).successor(version + 1, writer, self._epoch)
            text = _text(fresh, value)
            try:
                tag = self._register.swap(
                    name_of(key), text, None if stored is None else stored.tag
                )
            except NoAnswerError:
                self._forget(key)
                stored = self._read_stored(key)
                if stored is None or writer not in stored.writers:
                    raise
                return version + 1
            if tag is not None:
                self._remember(key, replace(fresh, tag=tag))
                return fresh.version
            stored = self._read_stored(key)
            if stored is not None and writer in stored.writers:
                return fresh.version

    def delete(self, key: str) -> None:
        removed = False
        while not removed:
            stored = self._read_stored(key) if self._epoch else None
            if self._epoch and stored is None:
                return
            self._check_epoch(key, stored)
            self._forget(key)
            removed = self._register.remove(name_of(key), None if stored is None else stored.tag)

    def keys(self, prefix: str) -> list[str]:
        return sorted(k for k in map(key_of, self._register.names()) if k.startswith(prefix))

    def close(self) -> None:
        self._register.close()

    def _take_over(self, key: str, stored: _Stored, value: Any) -> tuple[_Stored, Any] | None:
        """Write our epoch into the document, so that no earlier leader can change it; return it."""
        fresh = stored.successor(stored.version, secrets.token_hex(6), self._epoch)
        tag = self._register.swap(name_of(key), _text(fresh, value), stored.tag)
        if tag is None:
            return self._read(key)
        fresh = replace(fresh, tag=tag)
        self._remember(key, fresh)
        return fresh, value

    def _check_epoch(self, key: str, stored: _Stored | None) -> None:
        if stored is not None and 0 < self._epoch < stored.epoch:
            raise LeaseLostError(
                f"state {key!r} belongs to the leader of epoch {stored.epoch}: the one of epoch "
                f"{self._epoch} can't change it any more"
            )

    def _read_stored(self, key: str) -> _Stored | None:
        stored_and_value = self._read(key)
        return None if stored_and_value is None else stored_and_value[0]

    def _read(self, key: str) -> tuple[_Stored, Any] | None:
        text_and_tag = self._register.read(name_of(key))
        if text_and_tag is None:
            self._forget(key)
            return None
        try:
            content = json.loads(text_and_tag[0])
            check_format(content.get("format"), f"state {key!r}")
            stored = _Stored(
                int(content["version"]),
                text_and_tag[1],
                tuple(content["writers"]),
                int(content.get("epoch", 0)),
            )
            value = content["value"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StateError(
                f"state {key!r} is not a document of Tidelog: does another program write there?"
            ) from None
        self._remember(key, stored)
        return stored, value

    def _remember(self, key: str, stored: _Stored) -> None:
        with self._lock:
            self._cache[key] = stored
            self._cache.move_to_end(key)
            if len(self._cache) > WRITES_REMEMBERED:
                self._cache.popitem(last=False)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._cache.pop(key, None)


def name_of(key: str) -> str:
    """Return the key as a name that any store accepts: no folders, no upper case."""
    return "".join(
        chr(byte) if _PLAIN.match(bytes([byte])) else f"={byte:02x}" for byte in key.encode()
    )


def key_of(name: str) -> str:
    """Return the key of this name: the inverse of `name_of`."""
    plain = re.sub(r"=([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), name)
    return plain.encode("latin-1").decode()


def _text(stored: _Stored, value: Any) -> bytes:
    content = {"version": stored.version, "writers": stored.writers, "value": value}
    if stored.epoch:
        content["epoch"] = stored.epoch
    return json.dumps(content, separators=(",", ":")).encode()


# The lease, in any store with compare-and-set.

LEASE_MARGIN: Final = 0.2
"""The share at the end of a lease in which its holder no longer acts, and nobody else starts."""

_SLACK_S: Final = 2.0
_POLLED_S: Final = 0.5
"""Seconds in which a poll that is due is sent and answered."""
RELEASE_POLL_S: Final = 0.1
"""Seconds between two polls of a lease whose holder has announced its release."""
_RELEASE_SLACK_S: Final = 10.0
"""The longest time of such polls, in seconds beyond the time that the holder still leads."""
_NOBODY: Final[dict[str, Any]] = {"holder": None, "process": {}}


class LeaseElection:
    """A `tidelog.ports.Election` over a `tidelog.ports.StateStore`.

    A process that starts while a lease is valid waits for its whole duration, as it can't know when
    it was renewed. But if the holder ended on the same host, it takes over at once.
    """

    def __init__(
        self,
        documents: StateStore,
        name: str,
        holder: str,
        ttl_s: float,
        *,
        first_epoch: int = 1,
        poll_interval_s: float = 0.0,
    ) -> None:
        """Prepare the election; nothing is requested yet.

        Args:
            documents: a store of elections alone; `close` closes it.
            name: the name of the lease.
            holder: a name for people; instances with equal holders still exclude each other.
            ttl_s: how long a lease lasts without renewal; the holder acts for four fifths of it.
            first_epoch: the smallest epoch to use.
            poll_interval_s: the longest time between two polls while another process leads;
                `LeasePolling` plans them, however often `acquire` is called. Whether a holder on
                this host has ended is checked without a request. 0: poll at each call.
        """
        self._documents = documents
        self.name = name
        self.holder = holder
        self.ttl_s = ttl_s
        self._instance = secrets.token_hex(8)
        self._process = this_process()
        self._lock = threading.Lock()
        # Also above the epochs that this process has seen in a store that was deleted since.
        self._next_epoch = first_epoch
        self._version = self._written = 0  # the epoch of that version
        self._unsure = False
        self._poll_interval_s = poll_interval_s
        self._polling = LeasePolling(poll_interval_s)
        self._poll_at = 0.0
        self._last_value = dict(_NOBODY)
        self._last_seen: tuple[str, float] = ("", 0.0)
        self._lease_s = ttl_s
        self._renewed = False
        self._leaving = False
        self._release: tuple[tuple[str, int], float] = (("", 0), 0.0)

    @property
    def release_announced(self) -> bool:
        """Whether the holder of the lease that `acquire` found has announced its release."""
        return time.monotonic() < self._release[1]

    @property
    def max_wait_s(self) -> float:
        """Seconds that the lease which `acquire` found may still run; 0: it was renewed."""
        return 0.0 if self._renewed else self._lease_s + 3 * self._poll_interval_s + _SLACK_S

    def acquire(self) -> Lease | None:
        with self._lock:
            asked_at = time.monotonic()
            if asked_at < self._poll_at and not has_ended(self._last_value["process"]):
                return None
            document, seen_at = self._read(), self._last_seen[1]
            if document is not None and self._is_held(document):
                self._poll_at = self._next_poll(
                    asked_at, document.value, self._last_seen[1] != seen_at
                )
                self._last_value = document.value
                return None
            self._poll_at, self._last_value = 0.0, dict(_NOBODY)
            epoch = self._next_epoch
            begun = time.monotonic()
            unsure, self._unsure = self._unsure, True
            try:
                self._write(epoch, document.version if document else 0)
            except StateConflictError:
                self._unsure = unsure  # an earlier attempt of ours may have arrived late
                return None
            self._unsure = self._leaving = False
            self._next_epoch = epoch + 1
            self._last_value = {**_NOBODY, "holder": self.holder}
            return self._lease(epoch, begun)

    def renew(self, lease: Lease) -> Lease:
        with self._lock:
            begun = time.monotonic()
            try:
                self._write(lease.epoch, self._version)
            except StateConflictError:
                document = self._read()
                if document is None or not self._is_ours(document, lease):
                    raise self._lost(lease, document) from None
                try:  # an earlier renewal was made after all
                    self._write(lease.epoch, document.version)
                except StateConflictError:
                    raise self._lost(lease, self._read()) from None
            return self._lease(lease.epoch, begun)

    def announce(self, lease: Lease) -> float:
        """Announce the release of the lease. Returns the seconds until all standbys have seen it,
        and poll often.
        """
        if not self._poll_interval_s:
            return 0.0
        self._leaving = True
        self.renew(lease)
        return self._poll_interval_s + _POLLED_S

    def release(self, lease: Lease) -> None:
        """Release the lease, so that others can take over at once; the epoch is kept. Does nothing
        if the lease is lost.
        """
        with self._lock:
            self._last_value = dict(_NOBODY)
            if self._written == lease.epoch:
                with suppress(StateConflictError):
                    self._write(lease.epoch, self._version, **_NOBODY)
                    return
            document = self._read()  # a renewal without an answer was made after all
            if document is None or not self._is_ours(document, lease):
                return
            with suppress(StateConflictError):
                self._write(lease.epoch, document.version, **_NOBODY)

    def leader(self) -> str | None:
        """Return the holder, for people; None if the lease has expired by the wall clock."""
        document = self._documents.get(self.name)
        if (
            document is None
            or document.value["holder"] is None
            or has_ended(document.value["process"])
        ):
            return None
        return str(document.value["holder"]) if document.value["until"] > time.time() else None

    def last_seen_leader(self) -> str | None:
        """Return the holder that `acquire` saw last, without a request."""
        holder: str | None = self._last_value.get("holder")
        return holder

    def close(self) -> None:
        self._documents.close()

    def _next_poll(self, asked_at: float, value: dict[str, Any], written: bool) -> float:
        """Return when to poll a lease that another process has."""
        if not self._poll_interval_s:
            return 0.0
        now = time.monotonic()
        if self._is_release_announced(value):
            return now + RELEASE_POLL_S
        known_epoch = self._last_value.get("epoch")
        planned = self._polling.next(
            asked_at,
            now,
            renewed=written and known_epoch is not None,
            same_leader=known_epoch == value["epoch"],
            ttl_s=self._lease_s,
        )
        return min(planned, self._last_seen[1] + self._lease_s)

    def _read(self) -> Document | None:
        document = self._documents.get(self.name)
        if document is not None:
            self._next_epoch = max(self._next_epoch, document.value["epoch"] + 1)
        return document

    def _is_held(self, document: Document) -> bool:
        """Return whether a holder may still act under this lease."""
        value = document.value
        if value["holder"] is None or has_ended(value["process"]):
            return False
        if value["instance"] == self._instance and self._unsure:
            return False  # our own, of an attempt without an answer
        content = json.dumps([document.version, value], sort_keys=True)
        now = time.monotonic()
        # The holder's duration, not ours: it may be configured differently.
        self._lease_s = float(value["ttl_s"])
        if self._last_seen[0] != content:
            self._renewed = self._last_seen[0] != ""
            self._last_seen = (content, now)
        return now < self._last_seen[1] + self._lease_s

    def _is_release_announced(self, value: dict[str, Any]) -> bool:
        """Return whether the holder will release the lease soon; an announcement expires."""
        if not value.get("leaving"):
            return False
        announced = (value["instance"], value["epoch"])
        if self._release[0] != announced:
            self._release = (
                announced,
                time.monotonic() + self._lease_s * POLL_SHARE + _RELEASE_SLACK_S,
            )
        return self.release_announced

    def _is_ours(self, document: Document, lease: Lease) -> bool:
        same = (
            document.value["instance"] == self._instance and document.value["epoch"] == lease.epoch
        )
        return same and document.value["holder"] is not None

    def _write(self, epoch: int, version: int, **other: Any) -> None:
        value: dict[str, Any] = {
            "holder": self.holder,
            "instance": self._instance,
            "process": self._process,
            "epoch": epoch,
            "ttl_s": self.ttl_s,
            "until": time.time() + self.ttl_s,
        }
        if self._leaving:
            value["leaving"] = True
        self._version = self._documents.put(self.name, value | other, version)
        self._written = epoch

    def _lease(self, epoch: int, begun: float) -> Lease:
        return Lease(self.holder, epoch, begun + self.ttl_s * (1 - LEASE_MARGIN))

    def _lost(self, lease: Lease, document: Document | None) -> LeaseLostError:
        if document is None:
            why = "the state store no longer has it"
        else:
            why = f"it expired and {document.value['holder'] or 'another'} took over"
        return LeaseLostError(
            f"the lease {self.name!r} of epoch {lease.epoch} is lost: {why}. Restart "
            "from the event log's tail."
        )
