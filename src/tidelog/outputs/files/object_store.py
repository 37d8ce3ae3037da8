"""Whole files below a prefix of an object store: S3 and what speaks its protocol, GCS, Azure."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import obstore
import pyarrow as pa

from tidelog.errors import ConfigError, StorageError
from tidelog.eventlog.storage.objects import ObjectStorage
from tidelog.eventlog.storage.opening import options_of

_PART_BYTES = 8 << 20


class ObjectFileStore:
    """`tidelog.outputs.files.store.FileStore` on an object store. Every failure is a StorageError.

    Args:
        path: URL of the prefix. Options of the store are those that
            `tidelog.eventlog.storage.opening.provide_options` was given, or its environment's.
    """

    def __init__(self, path: str) -> None:
        if "?" in path:
            raise ConfigError(
                f"{path.partition('?')[0]}: options of an object store belong in "
                "`storage_options`, not in the URL"
            )
        self.path = path.rstrip("/")
        self._storage = ObjectStorage(self.path, options_of(self.path))

    def __reduce__(self) -> tuple[type[ObjectFileStore], tuple[str]]:
        return ObjectFileStore, (self.path,)  # options may be secret: they go by the environment

    def check(self) -> None:
        self._storage.sweep()

    def open_output(self, name: str) -> Any:
        return pa.PythonFile(_Upload(self._storage, name), "w")

    def sync(self, names: Iterable[str]) -> None:
        """What can be read there is durable."""

    def make_folder(self, name: str) -> None:
        """There are none: a folder is there as long as a file is in it."""

    def put(self, name: str, data: bytes) -> None:
        self._storage.replace(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        # If the answer to a put got lost, the client's next attempt finds what the first put.
        return self._storage.put_if_absent(name, data) or self.read(name) == data

    def move(self, source: str, target: str) -> None:
        try:
            with self._storage.failing("move into place", target):
                obstore.copy(self._storage.client(), source, target)
        except FileNotFoundError:
            if self._storage.tag(target) is None:
                raise StorageError(
                    f"cannot move into place {self.path}/{target}: neither {source} nor it is there"
                ) from None
        self._storage.delete(source)

    def exists(self, name: str) -> bool:
        if self._storage.tag(name) is not None:
            return True
        return bool(self._below(name, chunk_size=1))

    def read(self, name: str) -> bytes:
        try:
            return self._storage.read(name)
        except FileNotFoundError:
            raise StorageError(f"cannot read {self.path}/{name}: it is not there") from None

    def names(self, folder: str, suffix: str = "") -> list[str]:
        found = (path.rpartition("/")[2] for path in self._storage.names(folder))
        return sorted(name for name in found if name.endswith(suffix))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(StorageError):
                self._storage.delete(name)

    def delete_folder(self, name: str) -> None:
        with suppress(StorageError):
            self.delete(self._below(name))

    def _below(self, folder: str, chunk_size: int = 1000) -> list[str]:
        """Paths of the files in ``folder`` and the folders in it; at least the first ones."""
        with self._storage.failing("list", folder):
            parts = obstore.list(self._storage.client(), prefix=f"{folder}/", chunk_size=chunk_size)
            if chunk_size == 1:
                return [meta["path"] for meta in next(iter(parts), [])]
            return [meta["path"] for part in parts for meta in part]


class _Upload(io.RawIOBase):
    """A new file that appears whole when it is closed."""

    def __init__(self, storage: ObjectStorage, name: str) -> None:
        self._storage, self._name = storage, name
        with storage.failing("create", name):
            self._file = obstore.open_writer(storage.client(), name, buffer_size=_PART_BYTES)
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with self._storage.failing("write", self._name):
            self._file.write(view)
        self._size += len(view)
        return len(view)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        with self._storage.failing("write", self._name):
            self._file.close()
