"""Versioned JSON documents over anything that can swap one text for another.

A store of this kind brings a `Register`: read, compare-and-swap, remove, list. Versions, conflicts
and lost answers are dealt with here, once.

Each text says who wrote it last, and the few before: whoever got no answer to a swap looks there.
It also has the epoch of the last leader that read or wrote it: no earlier one changes it any more.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from tidelog.errors import LeaseLostError, StateConflictError, StateError
from tidelog.ports import Document

WRITERS: Final = 8
"""Swaps that may follow ours before we look; more of them make a lost answer an error."""

REMEMBERED: Final = 1024
_PLAIN = re.compile(rb"[a-z0-9_-]")


class NoAnswerError(StateError):
    """Nothing was heard of a swap: it was made, or wasn't."""


class Register(Protocol):
    """Texts by name. Thread-safe; what is there is durable. Raises StateError.

    Names are of ``a-z``, ``0-9``, ``_``, ``-`` and ``=``.
    """

    def read(self, name: str) -> tuple[bytes, Any] | None:
        """The text and its tag, which is another one after every swap."""
        ...

    def swap(self, name: str, text: bytes, tag: Any) -> Any:
        """Put ``text`` in the place of what has this tag (None: of nothing); the new tag.

        None: it is another by now, or our own earlier attempt was made after all. Raises
        NoAnswerError; the swap may be made later then, in place of what has the tag.
        """
        ...

    def remove(self, name: str) -> None: ...

    def names(self) -> list[str]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Held:
    """What a register held when it was last looked at, without the value."""

    version: int
    tag: Any
    writers: tuple[str, ...]
    epoch: int = 0

    def followed(self, version: int, writer: str, epoch: int) -> _Held:
        """What is put in its place."""
        writers = (*self.writers, writer)[-WRITERS:]
        return _Held(version, None, writers, max(self.epoch, epoch))


_NOTHING: Final = _Held(0, None, ())


class Documents:
    """`tidelog.ports.StateStore` over a `Register`."""

    def __init__(self, register: Register, epoch: int = 0) -> None:
        """``epoch``: of the leader that uses this handle; 0: no leader does."""
        self._register = register
        self._epoch = epoch
        self._lock = threading.Lock()
        # So that a put of an expected version needs no look before.
        self._known: OrderedDict[str, _Held] = OrderedDict()

    def fenced(self, name: str, epoch: int) -> Documents:
        """See `tidelog.ports.FencedStore`."""
        return Documents(self._register, epoch)

    def get(self, key: str) -> Document | None:
        found = self._look(key)
        while found is not None and found[0].epoch < self._epoch:
            found = self._take_over(key, *found)
        return None if found is None else Document(found[1], found[0].version)

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        writer = secrets.token_hex(6)
        with self._lock:
            held = self._known.get(key)
        if expected_version == 0:
            held = None
        elif held is None or expected_version not in (None, held.version):
            held = self._held(key)
        while True:
            version = 0 if held is None else held.version
            self._check_epoch(key, held)
            if expected_version is not None and version != expected_version:
                raise StateConflictError(
                    f"state {key!r} has version {version}, expected {expected_version}: another "
                    "process changed it. Read it again and repeat."
                )
            fresh = (held or _NOTHING).followed(version + 1, writer, self._epoch)
            text = _text(fresh, value)
            try:
                tag = self._register.swap(name_of(key), text, None if held is None else held.tag)
            except NoAnswerError:
                self._forget(key)
                held = self._held(key)
                if held is None or writer not in held.writers:
                    raise
                return version + 1
            if tag is not None:
                self._remember(key, replace(fresh, tag=tag))
                return fresh.version
            held = self._held(key)
            if held is not None and writer in held.writers:
                return fresh.version

    def delete(self, key: str) -> None:
        if self._epoch:
            held = self._held(key)
            if held is None:
                return
            self._check_epoch(key, held)
        self._forget(key)
        self._register.remove(name_of(key))

    def keys(self, prefix: str) -> list[str]:
        return sorted(k for k in map(key_of, self._register.names()) if k.startswith(prefix))

    def close(self) -> None:
        self._register.close()

    def _take_over(self, key: str, held: _Held, value: Any) -> tuple[_Held, Any] | None:
        """Mark as ours what an earlier leader may be about to change; what is there then."""
        fresh = held.followed(held.version, secrets.token_hex(6), self._epoch)
        tag = self._register.swap(name_of(key), _text(fresh, value), held.tag)
        if tag is None:
            return self._look(key)
        fresh = replace(fresh, tag=tag)
        self._remember(key, fresh)
        return fresh, value

    def _check_epoch(self, key: str, held: _Held | None) -> None:
        if held is not None and 0 < self._epoch < held.epoch:
            raise LeaseLostError(
                f"state {key!r} is of a leader of epoch {held.epoch}: one of epoch {self._epoch} "
                "changes it no more"
            )

    def _held(self, key: str) -> _Held | None:
        found = self._look(key)
        return None if found is None else found[0]

    def _look(self, key: str) -> tuple[_Held, Any] | None:
        found = self._register.read(name_of(key))
        if found is None:
            self._forget(key)
            return None
        try:
            content = json.loads(found[0])
            held = _Held(
                int(content["version"]),
                found[1],
                tuple(content["writers"]),
                int(content.get("epoch", 0)),
            )
            value = content["value"]
        except (ValueError, KeyError, TypeError):
            raise StateError(
                f"state {key!r} is not a document of Tidelog's: does something else write there?"
            ) from None
        self._remember(key, held)
        return held, value

    def _remember(self, key: str, held: _Held) -> None:
        with self._lock:
            self._known[key] = held
            self._known.move_to_end(key)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)


def name_of(key: str) -> str:
    """The key as what any store takes for a name: one folder's, the same in either case."""
    return "".join(
        chr(byte) if _PLAIN.match(bytes([byte])) else f"={byte:02x}" for byte in key.encode()
    )


def key_of(name: str) -> str:
    """The inverse of `name_of`."""
    plain = re.sub(r"=([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), name)
    return plain.encode("latin-1").decode()


def _text(held: _Held, value: Any) -> bytes:
    content = {"version": held.version, "writers": held.writers, "value": value}
    if held.epoch:
        content["epoch"] = held.epoch
    return json.dumps(content, separators=(",", ":")).encode()
