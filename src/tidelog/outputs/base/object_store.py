"""Stores whole files below a prefix of an object store: S3 and compatible stores, GCS, Azure."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import obstore
import pyarrow as pa

from tidelog.errors import StorageError
from tidelog.eventlog.object_storage import ObjectStorage
from tidelog.eventlog.storage import options_of
from tidelog.outputs.base.file_store import StoredFile
from tidelog.system import failpoints

_PART_BYTES = 8 << 20
_DELETED = 1000  # files in one request, where the store supports that


class ObjectFileStore:
    """`tidelog.outputs.base.stores.FileStore` on an object store. Every error is a
    StorageError.

    Args:
        path: URL of the prefix. The store's options are those given to
            `tidelog.eventlog.storage.provide_options`, or the environment's.
    """

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        self._storage = ObjectStorage(self.path, options_of(self.path))

    def __reduce__(self) -> tuple[type[ObjectFileStore], tuple[str]]:
        return ObjectFileStore, (self.path,)  # options may be secret: passed by the environment

    def check(self) -> None:
        self._storage.sweep()

    def open_output(self, name: str) -> Any:
        return pa.PythonFile(_Upload(self._storage, name), "w")

    def sync(self, names: Iterable[str]) -> None:
        """Does nothing: a file that can be read in the store is durable."""

    def make_folder(self, name: str) -> None:
        """Does nothing: a folder exists while a file is in it."""

    def put(self, name: str, data: bytes) -> None:
        self._storage.replace(name, data)

    def put_if_absent(self, name: str, data: bytes) -> str | None:
        tag = self._storage.replace_if(name, data, None)
        return None if tag is None else str(tag.identity)

    def move(self, source: str, target: str) -> None:
        try:
            with self._storage.storage_errors("move into place", target):
                obstore.copy(self._storage.client(), source, target)
        except FileNotFoundError:
            if self._storage.tag(target) is None:
                raise StorageError(
                    f"cannot move into place {self.path}/{target}: neither {source} nor it exists"
                ) from None
        self._storage.delete(source)

    def exists(self, name: str) -> bool:
        if self._storage.tag(name) is not None:
            return True
        return bool(self._files_below(name, chunk_size=1))

    def tag(self, name: str) -> str | None:
        found = self._storage.tag(name)
        return None if found is None else str(found.identity)

    def size(self, name: str) -> int:
        with self._present(name), self._storage.storage_errors("read", name):
            return int(obstore.head(self._storage.client(), name)["size"])

    def open_input(self, name: str) -> Any:
        with self._present(name):
            return self._storage.open(name, footer=True)

    def read(self, name: str) -> bytes:
        with self._present(name):
            return self._storage.read(name)

    def read_optional(self, name: str) -> bytes | None:
        try:
            return self._storage.read(name)
        except FileNotFoundError:
            return None

    def read_range(self, name: str, start: int, size: int) -> bytes:
        with self._present(name):
            return self._storage.read_range(name, start, start + size, None)

    def names(self, folder: str, suffix: str = "", after: str = "") -> list[str]:
        begin = f"{folder}/" if folder else ""
        offset = begin + after if after else None
        with self._storage.storage_errors("list", folder):
            if offset is None:
                found = obstore.list_with_delimiter(self._storage.client(), folder or None)
                paths = [meta["path"] for meta in found["objects"]]
            else:  # this listing includes the folders below
                parts = obstore.list(self._storage.client(), begin or None, offset=offset)
                paths = [meta["path"] for part in parts for meta in part]
        names = (path[len(begin) :] for path in paths)
        return sorted(
            name for name in names if "/" not in name and name > after and name.endswith(suffix)
        )

    def all_files(self, passed_over: Callable[[str], bool]) -> Iterator[StoredFile]:
        client = self._storage.client()
        with self._storage.storage_errors("list", ""):
            first = obstore.list_with_delimiter(client)
            yield from map(_stored_file, first["objects"])
            for folder in first["common_prefixes"]:
                if not passed_over(folder):
                    for part in obstore.list(client, f"{folder}/"):
                        yield from map(_stored_file, part)

    def delete(self, names: Iterable[str]) -> None:
        left = list(names)
        for start in range(0, len(left), _DELETED):
            some = left[start : start + _DELETED]
            failpoints.hit("output.delete")
            try:
                with self._storage.storage_errors("delete", some[0]):
                    obstore.delete(self._storage.client(), some)
            except (FileNotFoundError, StorageError):  # for one of them: the others may be deleted
                for name in some:
                    with suppress(StorageError):
                        self._storage.delete(name)

    def delete_folder(self, name: str) -> None:
        with suppress(StorageError):
            self.delete(self._files_below(name))

    @contextmanager
    def _present(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise StorageError(f"cannot read {self.path}/{name}: it does not exist") from None

    def _files_below(self, folder: str, chunk_size: int = 1000) -> list[str]:
        """Return paths of the files in ``folder`` and below it; at least the first ones."""
        with self._storage.storage_errors("list", folder):
            parts = obstore.list(self._storage.client(), prefix=f"{folder}/", chunk_size=chunk_size)
            if chunk_size == 1:
                return [meta["path"] for meta in next(iter(parts), [])]
            return [meta["path"] for part in parts for meta in part]


def _stored_file(meta: Any) -> StoredFile:
    return StoredFile(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))


class _Upload(io.RawIOBase):
    """A new file that appears as a whole when it is closed."""

    def __init__(self, storage: ObjectStorage, name: str) -> None:
        self._storage, self._name = storage, name
        with storage.storage_errors("create", name):
            self._file = obstore.open_writer(storage.client(), name, buffer_size=_PART_BYTES)
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with self._storage.storage_errors("write", self._name):
            self._file.write(view)
        self._size += len(view)
        return len(view)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        with self._storage.storage_errors("write", self._name):
            self._file.close()
