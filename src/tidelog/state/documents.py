"""Stores versioned JSON documents in any store that can compare and swap texts.

Such a store implements `Register`: read, compare-and-swap, remove, list. Versions, conflicts and
requests without an answer are handled here, once.

Each text has the ids of its last `WRITERS` writes, so that a writer that got no answer to a swap
can find out whether it was made. It also has the epoch of the last leader that read or wrote it: an
earlier leader can't change it any more.
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
from tidelog.system.version import check_format

WRITERS: Final = 8
"""How many writes after a swap without an answer may follow before it can't be recognised."""

REMEMBERED: Final = 1024
_PLAIN = re.compile(rb"[a-z0-9_-]")


class NoAnswerError(StateError):
    """Raised when the store did not answer a swap: it was made, or wasn't."""


class Register(Protocol):
    """A store of texts by name. Thread-safe; writes are durable. Raises StateError.

    Names consist of ``a-z``, ``0-9``, ``_``, ``-`` and ``=``.
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

    def remove(self, name: str) -> None: ...

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
        if self._epoch:
            stored = self._read_stored(key)
            if stored is None:
                return
            self._check_epoch(key, stored)
        self._forget(key)
        self._register.remove(name_of(key))

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
            if len(self._cache) > REMEMBERED:
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
