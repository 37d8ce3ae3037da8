"""The interface of the event log's storage: a few operations on whole files.

Names are relative, with ``/`` between folders. Implemented by `LocalStorage` and `ObjectStorage`.
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
    """A value that changes whenever the file behind a name does. ``version``: required by some
    object stores for a conditional put, besides the tag.
    """

    identity: tuple[int, int, int] | str
    version: str | None = field(default=None, compare=False)


class Storage(Protocol):
    """Whole immutable files by name. Thread-safe. Every failure is a StorageError. ``parallel``:
    number of small reads that are faster in parallel than one after the other.
    """

    @property
    def parallel(self) -> int: ...

    def put_if_absent(self, name: str, data: pa.Buffer | bytes, guard: Guard | None = None) -> bool:
        """Create ``name`` with all of ``data``, or nothing. True: created and durable.

        ``guard`` is called last before the file becomes visible; its exception cancels the put.
        False: the name exists, or another process removed the temporary file. After a StorageError
        it is not known whether the file exists: read it back. After an OutcomeUnknownError it may
        also appear later.
        """
        ...

    def replace(self, name: str, data: pa.Buffer | bytes, guard: Guard | None = None) -> None:
        """Create or atomically replace ``name``; durable when it returns."""
        ...

    def replace_if(
        self, name: str, data: pa.Buffer | bytes, expected: Tag | None, guard: Guard | None = None
    ) -> Tag | None:
        """`replace` only a file with the tag ``expected`` (None: no file); returns the new tag.

        None: the file has changed. Call it in the block of `exclusive`: if that is no lock, this is
        atomic.
        """
        ...

    def open(self, name: str, *, footer: bool = False) -> pa.NativeFile:
        """Open for random reads. Remains readable after a delete or replace.

        ``footer``: little except the end of the file will be read, and soon.

        Raises FileNotFoundError; any other OSError means that the file itself is damaged.
        """
        ...

    def fetch_ahead(self, names: Sequence[str]) -> None:
        """Hint that these will be opened next, in this order, each once and by this object."""
        ...

    def read(self, name: str) -> bytes:
        """Read the whole file. Raises FileNotFoundError."""
        ...

    def tag(self, name: str) -> Tag | None:
        """The file's tag; None if there is no such file."""
        ...

    def tags_of(self, names: Sequence[str]) -> list[Tag | None]:
        """The `tag` of each, in no order of time; in parallel if that is faster."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """The sorted names of the files in ``folder``, without temporary ones."""
        ...

    def tags(self) -> dict[str, Tag]:
        """The `names` of the top folder with the tag of each, at one moment or a little later."""
        ...

    def delete(self, name: str) -> None:
        """Delete the file, if it exists."""
        ...

    def quarantine(self, name: str) -> str:
        """Move the file to a folder that nobody reads; returns its new name."""
        ...

    def make_durable(self, name: str) -> None:
        """Make ``name`` and its directory entry survive a power failure."""
        ...

    def sweep(self) -> None:
        """Remove temporary files of dead or frozen writers. For a new leader. Raises UsageError if
        the storage can't keep two leaders apart.
        """
        ...

    def exclusive(self, name: str) -> AbstractContextManager[bool]:
        """True if this process may proceed in the block; never waits.

        Either it is a lock, which a frozen holder keeps and a dead one loses; or other processes
        may be in the block too, and `replace_if` keeps them apart.
        """
        ...


def answers(storage: Storage) -> bool:
    """Send a short request; may block for ever. An error is an answer, too."""
    with suppress(StorageError):
        storage.tag("answers")
    return True
