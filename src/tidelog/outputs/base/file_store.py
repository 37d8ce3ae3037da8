"""Stores whole files in a directory of a local disk, by pyarrow's file system.

Each file that is written is synced, and so are the folders that are created for it. Errors of the
file system become errors of the output.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import fs

from tidelog.errors import ConfigError, OutputError
from tidelog.model.option_values import URL_SCHEMES
from tidelog.system import failpoints

# Errors, and files in a listing.


@contextmanager
def file_errors(name: str, what: str, *passed: type[OSError]) -> Iterator[None]:
    """Turn an OSError into an OutputError: ``name`` can't be ``what``. Errors of the types
    ``passed`` pass unchanged.
    """
    try:
        yield
    except passed:
        raise
    except OSError as error:
        raise OutputError(f"{name} can't be {what}: {os_error_text(error)}") from error


def name_beside(name: str) -> str:
    """Return the name of a file in the folder of ``name``, for its contents before it is complete.
    Listings ignore it.
    """
    folder, _, last = name.rpartition("/")
    return "/".join(filter(None, [folder, f".{last}.{uuid.uuid4().hex[:8]}.part"]))


def is_beside(name: str) -> bool:
    """Is it one of `name_beside`? It remains where the process was killed."""
    return re.search(r"(?:^|/)\.[^/]+\.[0-9a-f]{8}\.part$", name) is not None


def os_error_text(error: OSError) -> str:
    """Return the system's text for an error, without paths."""
    return os.strerror(error.errno) if error.errno else type(error).__name__


class StoredFile(NamedTuple):
    """A file's ``name`` below the store's path, its size in bytes, and its time since 1970, UTC."""

    name: str
    size: int
    modified_ms: int


class LocalFileStore:
    """`tidelog.outputs.base.stores.FileStore` on a local disk. Every error is an OutputError."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._opened: tuple[fs.FileSystem, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_opened": None}

    def check(self) -> None:
        """Does nothing: a link here replaces no file."""

    def open_output(self, name: str) -> Any:
        with self._file_errors(name, "created"):
            return self._create(name)

    def sync(self, names: Iterable[str]) -> None:
        for name in names:
            with self._file_errors(name, "synced"):
                _sync(self._full(name))

    def make_folder(self, name: str) -> None:
        with self._file_errors(name, "created"):
            self._fs.create_dir(self._full(name), recursive=True)

    def put(self, name: str, data: bytes) -> None:
        with self._written_beside(name, data) as temporary, self._file_errors(name, "written"):
            self._fs.move(self._full(temporary), self._full(name))
        self.sync([_folder(name)])

    def put_if_absent(self, name: str, data: bytes) -> str | None:
        """Uses a hard link, which does not replace an existing file."""
        with self._written_beside(name, data) as temporary:
            try:
                with self._file_errors(name, "created", FileExistsError):
                    os.link(self._full(temporary), self._full(name))
            except FileExistsError:
                # A network file system may report an error for a retry of a link that it created.
                if self.read_optional(name) != data:
                    return None
        self.sync([_folder(name)])
        return self.tag(name)

    def move(self, source: str, target: str) -> None:
        with self._file_errors(target, "moved into place"):
            try:
                Path(self._full(source)).replace(self._full(target))
            except OSError:
                if self.exists(source) or not self.exists(target):
                    raise

    def exists(self, name: str) -> bool:
        return bool(self._info(name).type != fs.FileType.NotFound)

    def tag(self, name: str) -> str | None:
        """Return a text of size, time and inode."""
        try:
            with self._file_errors(name, "checked", FileNotFoundError, NotADirectoryError):
                found = Path(self._full(name)).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ino}"

    def size(self, name: str) -> int:
        info = self._info(name)
        if info.type == fs.FileType.NotFound:
            raise OutputError(f"{self._display_path(name)} can't be read: it does not exist")
        return int(info.size)

    def open_input(self, name: str) -> Any:
        with self._file_errors(name, "read"):
            return self._fs.open_input_file(self._full(name))

    def read(self, name: str) -> bytes:
        with self._file_errors(name, "read"):
            return self._whole(name)

    def read_optional(self, name: str) -> bytes | None:
        try:
            with self._file_errors(name, "read", FileNotFoundError, NotADirectoryError):
                return self._whole(name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_range(self, name: str, start: int, size: int) -> bytes:
        with self._file_errors(name, "read"), self._fs.open_input_file(self._full(name)) as file:
            file.seek(start)
            return bytes(file.read(size))

    def names(self, folder: str, suffix: str = "", after: str = "") -> list[str]:
        found = (each.base_name for each in self._infos(folder, recursive=False))
        return sorted(name for name in found if name > after and name.endswith(suffix))

    def all_files(self, passed_over: Callable[[str], bool]) -> Iterator[StoredFile]:
        start = len(self._full("")) + 1
        for each in self._infos("", recursive=False):
            if each.type != fs.FileType.Directory:
                found = [each]
            elif passed_over(each.base_name):
                continue
            else:
                found = self._infos(each.path[start:], recursive=True)
            for info in found:
                if info.type == fs.FileType.File:
                    yield StoredFile(info.path[start:], info.size, info.mtime_ns // 1_000_000)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(OSError):
                failpoints.hit("output.delete")
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

    def _display_path(self, name: str) -> str:
        return f"{self.path}/{name}" if name else self.path

    def _open(self) -> tuple[fs.FileSystem, str]:
        if self._opened is None:
            try:
                found, root = fs.FileSystem.from_uri(self.path)
            except (ValueError, TypeError, OSError):
                found, root = None, ""
            if not isinstance(found, fs.LocalFileSystem):
                known = ", ".join((*URL_SCHEMES, "hdfs"))
                raise ConfigError(f"{self.path}: expected a directory, or a URL of {known}")
            self._opened = found, root.rstrip("/")
        return self._opened

    @contextmanager
    def _file_errors(self, name: str, what: str, *passed: type[OSError]) -> Iterator[None]:
        with file_errors(self._display_path(name), what, *passed):
            yield

    def _info(self, name: str) -> fs.FileInfo:
        with self._file_errors(name, "checked"):
            return self._fs.get_file_info(self._full(name))

    def _infos(self, folder: str, *, recursive: bool) -> list[fs.FileInfo]:
        """Return the files and folders in the folder; none if it does not exist."""
        with self._file_errors(folder, "listed"):
            selector = fs.FileSelector(
                self._full(folder), allow_not_found=True, recursive=recursive
            )
            return list(self._fs.get_file_info(selector))

    def _whole(self, name: str) -> bytes:
        with self._fs.open_input_stream(self._full(name)) as file:
            return bytes(file.read())

    @contextmanager
    def _written_beside(self, name: str, data: bytes) -> Iterator[str]:
        """Write a new file in the same folder (`name_beside`); it is removed after the block."""
        temporary = name_beside(name)
        try:
            with self._file_errors(name, "written"), self._create(temporary) as file:
                file.write(data)
            self.sync([temporary])
            yield temporary
        finally:
            with suppress(OSError):
                self._fs.delete_file(self._full(temporary))

    def _create(self, name: str) -> Any:
        try:
            return self._fs.open_output_stream(self._full(name))
        except FileNotFoundError:
            self._make_folders(_folder(name))
            return self._fs.open_output_stream(self._full(name))

    def _make_folders(self, name: str) -> None:
        """Create the folders that are missing, each durably in the one above it."""
        folder = Path(self._full(name))
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for made in missing:
            _sync(str(made.parent))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _folder(name: str) -> str:
    return name.rpartition("/")[0]
