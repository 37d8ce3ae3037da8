"""The store of an output that keeps whole files: a directory, or a prefix of an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from tidelog.model.option_values import is_object_store
from tidelog.outputs.base.file_store import LocalFileStore, StoredFile
from tidelog.system.extras import check_installed


class FileStore(Protocol):
    """A store of whole files below ``path``. Picklable; connects at first use.

    Names are relative to ``path``, with ``/`` between folders. A method that writes a file creates
    its folder. Every error is a TidelogError that names the file.
    """

    @property
    def path(self) -> str: ...

    def check(self) -> None:
        """Raise UsageError if `put_if_absent` can't exclude a second driver there."""
        ...

    def open_output(self, name: str) -> Any:
        """Return a stream into a new file. Call `sync` for the file when it is closed."""
        ...

    def sync(self, names: Iterable[str]) -> None:
        """Make files and folders durable: they survive a power failure once this returns."""
        ...

    def make_folder(self, name: str) -> None: ...

    def put(self, name: str, data: bytes) -> None:
        """Create or replace a file as a whole, durably."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> str | None:
        """Create a file as a whole, in one atomic step, durably, and return its `tag`. Returns None
        if a file of that name has other data. After an error the file may exist, or appear later.
        """
        ...

    def move(self, source: str, target: str) -> None:
        """Move a file into an existing folder. Does nothing if the file was moved before."""
        ...

    def exists(self, name: str) -> bool:
        """Is there a file or a folder of that name?"""
        ...

    def tag(self, name: str) -> str | None:
        """Return a text that stays equal until somebody replaces the file; None: no such file."""
        ...

    def size(self, name: str) -> int:
        """Return the size in bytes."""
        ...

    def open_input(self, name: str) -> Any:
        """Return a seekable `pyarrow.NativeFile`. On an object store each read is a request: give
        readers of Parquet ``pre_buffer=True``. The last 64 KiB, a Parquet file's footer, are read
        at once.
        """
        ...

    def read(self, name: str) -> bytes: ...

    def read_optional(self, name: str) -> bytes | None:
        """Return the file's content; None: no such file."""
        ...

    def read_range(self, name: str, start: int, size: int) -> bytes:
        """Return at most ``size`` bytes from ``start`` on: less where the file ends."""
        ...

    def names(self, folder: str, suffix: str = "", after: str = "") -> list[str]:
        """Return the sorted names of the files in ``folder``, without the folder; empty if it does
        not exist. Only names that sort after ``after``, where object stores start to list.
        """
        ...

    def all_files(self, passed_over: Callable[[str], bool]) -> Iterator[StoredFile]:
        """Yield the files of all folders, in no order, except those below a folder of the first
        level for whose name ``passed_over`` returns True. Lists them step by step, as the caller
        iterates.
        """
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete the files, as far as possible."""
        ...

    def delete_folder(self, name: str) -> None:
        """Delete the folder and all files in it, as far as possible."""
        ...


def open_file_store(path: str) -> FileStore:
    """Return the store at ``path``: a local directory, or a URL of HDFS (``hdfs://``) or an object
    store (``s3://``, ``s3a://``, ``gs://``, ``abfs://``). Raises ConfigError, and MissingExtraError
    for a URL.
    """
    if is_object_store(path):
        from tidelog.outputs.base.object_store import ObjectFileStore

        return ObjectFileStore(path)
    if path.startswith("hdfs://"):
        check_installed("hdfs_native")
        from tidelog.outputs.base.hdfs_store import HdfsFileStore

        return HdfsFileStore(path)
    return LocalFileStore(path)
