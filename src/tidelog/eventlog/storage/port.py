"""The storage under the event log: a few operations on whole files.

Names are relative, with ``/`` between folders. `LocalStorage` and `ObjectStorage` implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from tidelog.errors import StorageError

Guard = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Tag:
    """Changes whenever the file behind a name does.

    ``version``: what some object stores ask for beside it in a conditional put.
    """

    identity: tuple[int, int, int] | str
    version: str | None = field(default=None, compare=False)


class Storage(Protocol):
    """Whole immutable files by name. Thread-safe. Every failure is a StorageError.

    ``parallel``: how many small reads at once are faster than one after the other.
    """

    @property
    def parallel(self) -> int: ...

    def put_if_absent(self, name: str, data: pa.Buffer | bytes, guard: Guard | None = None) -> bool:
        """Create ``name`` with all of ``data``, or nothing. True: created and durable.

        ``guard`` runs last before the file becomes visible; what it raises ends the put. False: the
        name exists, or another process took our temporary file away. A StorageError may leave it
        open whether the file exists: read it back. After an OutcomeUnknownError it may also appear
        later.
        """
        ...

    def replace(self, name: str, data: pa.Buffer | bytes, guard: Guard | None = None) -> None:
        """Create or atomically replace ``name``; durable when it returns."""
        ...

    def replace_if(
        self, name: str, data: pa.Buffer | bytes, expected: Tag | None, guard: Guard | None = None
    ) -> Tag | None:
        """`replace` only what has the tag ``expected`` (None: nothing); the new tag.

        None: it is another file by now. To be called in the block of `exclusive`: where that is no
        lock, this is atomic.
        """
        ...

    def open(self, name: str, *, footer: bool = False) -> pa.NativeFile:
        """For random reads. Stays readable after a delete or replace.

        ``footer``: little but the end of the file will be read, and soon.

        Raises FileNotFoundError; any other OSError means that the file itself is damaged.
        """
        ...

    def fetch_ahead(self, names: Sequence[str]) -> None:
        """A hint: these will be opened next, in this order, each once and by this object."""
        ...

    def read(self, name: str) -> bytes:
        """All of it. Raises FileNotFoundError."""
        ...

    def tag(self, name: str) -> Tag | None:
        """None if there is no such file."""
        ...

    def tags_of(self, names: Sequence[str]) -> list[Tag | None]:
        """`tag` of each, in no order of time; at once where that is faster."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """Sorted names of the files in ``folder``, without temporary ones."""
        ...

    def tags(self) -> dict[str, Tag]:
        """`names` of the top folder with the tag of each, at one moment or a little later."""
        ...

    def delete(self, name: str) -> None:
        """Does nothing if there is no such file."""
        ...

    def quarantine(self, name: str) -> str:
        """Move the file where nobody reads it; its new name."""
        ...

    def make_durable(self, name: str) -> None:
        """``name`` and its directory entry survive a power failure once this returns."""
        ...

    def sweep(self) -> None:
        """Remove temporary files that dead or frozen writers left. For a new leader.

        Raises UsageError if the storage can't keep two leaders apart.
        """
        ...

    def exclusive(self, name: str) -> AbstractContextManager[bool]:
        """True if this process may go on within the block; never waits.

        Either it is a lock, which a frozen holder keeps and a dead one does not; or others may be
        in the block too, and `replace_if` is what keeps them apart.
        """
        ...


def answers(storage: Storage) -> bool:
    """Asks a short question; for ever, if need be. An error is an answer, too."""
    with suppress(StorageError):
        storage.tag("answers")
    return True
