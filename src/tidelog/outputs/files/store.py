"""Whole files in a directory: on a local disk or HDFS by pyarrow's file systems, on an object store
by `tidelog.outputs.files.object_store`.

Every failure is a TidelogError that names the file. On a local disk what is written is synced.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from pyarrow import fs

from tidelog.errors import ConfigError, OutputError
from tidelog.model.log_places import is_object_store


class FileStore(Protocol):
    """Whole files below ``path``. Picklable; connects at first use.

    Names are relative to ``path``, with ``/`` between folders.
    """

    @property
    def path(self) -> str: ...

    def check(self) -> None:
        """Raises UsageError if `put_if_absent` can't keep two drivers apart there."""
        ...

    def open_output(self, name: str) -> Any:
        """A stream into a new file, whose folder is there; `sync` it when it is closed."""
        ...

    def sync(self, names: Iterable[str]) -> None:
        """Files and folders survive a power failure once this returns."""
        ...

    def make_folder(self, name: str) -> None: ...

    def put(self, name: str, data: bytes) -> None:
        """Create or replace a file as a whole; its folder is there."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create a file as a whole, in one atomic step; its folder is there.

        False: the name is taken by other data. After an error the file may be there, or appear
        later.
        """
        ...

    def move(self, source: str, target: str) -> None:
        """Move a file into a folder that is there. One that was moved before is left alone."""
        ...

    def exists(self, name: str) -> bool:
        """Is there a file or a folder of that name?"""
        ...

    def read(self, name: str) -> bytes: ...

    def names(self, folder: str, suffix: str = "") -> list[str]:
        """Sorted names of the files in ``folder``, without it; empty if it is not there."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete the files, as far as that is possible."""
        ...

    def delete_folder(self, name: str) -> None:
        """With what is in it, as far as that is possible."""
        ...


def open_file_store(path: str) -> FileStore:
    """``path``: a local directory, or a URL of HDFS (``hdfs://``) or an object store (``s3://``,
    ``gs://``, ``abfs://``). Raises ConfigError, and MissingExtraError for an object store.
    """
    if not is_object_store(path):
        return FileSystemStore(path)
    from tidelog.outputs.files.object_store import ObjectFileStore

    return ObjectFileStore(path)


class FileSystemStore:
    """`FileStore` on a local disk or HDFS."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._opened: tuple[fs.FileSystem, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_opened": None}

    def check(self) -> None:
        """Its link and rename replace nothing."""

    def open_output(self, name: str) -> Any:
        with failing(name, "created"):
            return self._fs.open_output_stream(self._full(name))

    def sync(self, names: Iterable[str]) -> None:
        if not isinstance(self._fs, fs.LocalFileSystem):
            return
        for name in names:
            with failing(name, "synced"):
                handle = os.open(self._full(name), os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def make_folder(self, name: str) -> None:
        with failing(name, "created"):
            self._fs.create_dir(self._full(name), recursive=True)

    def put(self, name: str, data: bytes) -> None:
        temporary = f"{name}.{uuid.uuid4().hex[:8]}.part"
        self._write(temporary, data)
        with failing(name, "written"):
            self._fs.move(self._full(temporary), self._full(name))
        self.sync([_folder(name)])

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """By a hard link on a local disk, by a rename on HDFS: neither replaces a file there."""
        temporary = f"{name}.{uuid.uuid4().hex[:8]}.part"
        self._write(temporary, data)
        try:
            if isinstance(self._fs, fs.LocalFileSystem):
                with failing(name, "created", FileExistsError):
                    os.link(self._full(temporary), self._full(name))
            else:
                try:
                    self._fs.move(self._full(temporary), self._full(name))
                except OSError as error:
                    if self.exists(name):
                        raise FileExistsError from error
                    raise
        except FileExistsError:
            # A network's file system may report the second try of a link that it has made.
            if self.read(name) != data:
                return False
        finally:
            with suppress(OSError):
                self._fs.delete_file(self._full(temporary))
        self.sync([_folder(name)])
        return True

    def move(self, source: str, target: str) -> None:
        with failing(target, "moved into place"):
            try:
                if isinstance(self._fs, fs.LocalFileSystem):
                    Path(self._full(source)).replace(self._full(target))
                else:
                    self._fs.move(self._full(source), self._full(target))
            except OSError:
                if self.exists(source) or not self.exists(target):
                    raise

    def exists(self, name: str) -> bool:
        with failing(name, "looked for"):
            found = self._fs.get_file_info(self._full(name))
        return bool(found.type != fs.FileType.NotFound)

    def read(self, name: str) -> bytes:
        with failing(name, "read"), self._fs.open_input_stream(self._full(name)) as file:
            return bytes(file.read())

    def names(self, folder: str, suffix: str = "") -> list[str]:
        selector = fs.FileSelector(self._full(folder), allow_not_found=True)
        with failing(folder, "listed"):
            found = self._fs.get_file_info(selector)
        return sorted(each.base_name for each in found if each.base_name.endswith(suffix))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(OSError):
                self._fs.delete_file(self._full(name))

    def delete_folder(self, name: str) -> None:
        with suppress(OSError):
            self._fs.delete_dir(self._full(name))

    # ------------------------------------------------------------------

    @property
    def _fs(self) -> fs.FileSystem:
        return self._open()[0]

    def _full(self, name: str) -> str:
        root = self._open()[1]
        return f"{root}/{name}" if name else root

    def _open(self) -> tuple[fs.FileSystem, str]:
        if self._opened is None:
            try:
                found, root = fs.FileSystem.from_uri(self.path)
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{self.path}: {error}") from None
            except OSError as error:
                raise OutputError(f"{self.path} can't be reached: {_reason(error)}") from None
            self._opened = found, root.rstrip("/")
        return self._opened

    def _write(self, name: str, data: bytes) -> None:
        with failing(name, "written"), self._fs.open_output_stream(self._full(name)) as file:
            file.write(data)
        self.sync([name])


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


@contextmanager
def failing(name: str, what: str, *passed: type[OSError]) -> Iterator[None]:
    """An OSError becomes an OutputError: ``name`` can't be ``what``."""
    try:
        yield
    except passed:
        raise
    except OSError as error:
        raise OutputError(f"files: {name} can't be {what}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else type(error).__name__
