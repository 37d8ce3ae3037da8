"""Whole files in a directory, on a local disk, HDFS or an object store, by pyarrow's file systems.

Every failure is an OutputError that names the file. On a local disk what is written is synced.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyarrow import fs

from tidelog.errors import ConfigError, OutputError

# Their objects appear whole, when the stream is closed.
_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})


class FileStore:
    """``path`` is a local directory or a URL that pyarrow knows (s3://, gs://, abfs://, hdfs://).

    Names are relative to it, with ``/`` between folders. Picklable; connects at first use.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._opened: tuple[fs.FileSystem, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_opened": None}

    def open_output(self, name: str) -> Any:
        """A stream into a new file, whose folder is there; `sync` it when it is closed."""
        with failing(name, "created"):
            return self._fs.open_output_stream(self._full(name))

    def sync(self, names: Iterable[str]) -> None:
        """Files and folders survive a power failure once this returns (local disks only)."""
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
        """Create or replace a file as a whole; its folder is there."""
        if self._fs.type_name in _OBJECT_STORES:
            with failing(name, "written"), self._fs.open_output_stream(self._full(name)) as file:
                file.write(data)
            return
        temporary = f"{name}.{uuid.uuid4().hex[:8]}.part"
        self._write(temporary, data)
        with failing(name, "written"):
            self._fs.move(self._full(temporary), self._full(name))
        self.sync([_folder(name)])

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """False: another one has created the file. Its folder is there.

        Atomic on local disks, and on HDFS, whose rename replaces nothing; elsewhere it looks first.
        """
        if not isinstance(self._fs, fs.LocalFileSystem) and self.exists(name):
            return False
        if self._fs.type_name in _OBJECT_STORES:
            self.put(name, data)
            return True
        temporary = f"{name}.{uuid.uuid4().hex[:8]}.part"
        self._write(temporary, data)
        try:
            if isinstance(self._fs, fs.LocalFileSystem):
                with failing(name, "created", FileExistsError):
                    os.link(self._full(temporary), self._full(name))
            else:
                try:
                    self._fs.move(self._full(temporary), self._full(name))
                except OSError:
                    if self.exists(name):
                        return False
                    raise
        except FileExistsError:
            return False
        finally:
            with suppress(OSError):
                self._fs.delete_file(self._full(temporary))
        self.sync([_folder(name)])
        return True

    def move(self, source: str, target: str) -> None:
        """Move a file into a folder that is there. One that was moved before is left alone."""
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
        """Sorted names of what is in ``folder``, without it; empty if it is not there."""
        selector = fs.FileSelector(self._full(folder), allow_not_found=True)
        with failing(folder, "listed"):
            found = self._fs.get_file_info(selector)
        return sorted(each.base_name for each in found if each.base_name.endswith(suffix))

    def delete(self, names: Iterable[str]) -> None:
        """Delete the files, as far as that is possible."""
        for name in names:
            with suppress(OSError):
                self._fs.delete_file(self._full(name))

    def delete_folder(self, name: str) -> None:
        """With what is in it, as far as that is possible."""
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
