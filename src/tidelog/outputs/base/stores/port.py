"""The store of an output that keeps whole files: a directory, or a prefix of an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from tidelog.model.log_locations import is_object_store
from tidelog.outputs.base.stores.file_system import FileSystemStore
from tidelog.outputs.base.stores.stored_file import StoredFile


class FileStore(Protocol):
    """Whole files below ``path``. Picklable; connects at first use.

    Names are relative to ``path``, with ``/`` between folders. What writes a file makes its folder.
    Every failure is a TidelogError that names the file.
    """

    @property
    def path(self) -> str: ...

    def check(self) -> None:
        """Raises UsageError if `put_if_absent` can't keep two drivers apart there."""
        ...

    def open_output(self, name: str) -> Any:
        """A stream into a new file; `sync` it when it is closed."""
        ...

    def sync(self, names: Iterable[str]) -> None:
        """Files and folders survive a power failure once this returns."""
        ...

    def make_folder(self, name: str) -> None: ...

    def put(self, name: str, data: bytes) -> None:
        """Create or replace a file as a whole, durably."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> str | None:
        """Create a file as a whole, in one atomic step, durably: its `tag`.

        None: the name is taken by other data. After an error the file may be there, or appear
        later.
        """
        ...

    def move(self, source: str, target: str) -> None:
        """Move a file into a folder that is there. One that was moved before is left alone."""
        ...

    def exists(self, name: str) -> bool:
        """Is there a file or a folder of that name?"""
        ...

    def tag(self, name: str) -> str | None:
        """Equal for as long as nobody replaces the file; None: there is none."""
        ...

    def size(self, name: str) -> int:
        """In bytes."""
        ...

    def open_input(self, name: str) -> Any:
        """A seekable `pyarrow.NativeFile`. On an object store each read is a request: give readers
        of Parquet ``pre_buffer=True``. The last 64 KiB, a Parquet file's footer, are there at once.
        """
        ...

    def read(self, name: str) -> bytes: ...

    def read_if_there(self, name: str) -> bytes | None:
        """None: there is no file of that name."""
        ...

    def read_range(self, name: str, start: int, size: int) -> bytes:
        """At most ``size`` bytes from ``start`` on: less where the file ends."""
        ...

    def names(self, folder: str, suffix: str = "", after: str = "") -> list[str]:
        """Sorted names of the files in ``folder``, without it; empty if it is not there. Only those
        that sort behind ``after``, where object stores begin to list.
        """
        ...

    def all_files(self, passed_over: Callable[[str], bool]) -> Iterator[StoredFile]:
        """Files of all folders, in no order, but for those below a folder of the first level whose
        name ``passed_over`` is true for. They are listed bit by bit, as they are asked for.
        """
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete the files, as far as that is possible."""
        ...

    def delete_folder(self, name: str) -> None:
        """With what is in it, as far as that is possible."""
        ...


def open_file_store(path: str) -> FileStore:
    """``path``: a local directory, or a URL of HDFS (``hdfs://``) or an object store (``s3://``,
    ``s3a://``, ``gs://``, ``abfs://``). Raises ConfigError, and MissingExtraError for an object
    store.
    """
    if not is_object_store(path):
        return FileSystemStore(path)
    from tidelog.outputs.base.stores.object_store import ObjectFileStore

    return ObjectFileStore(path)
