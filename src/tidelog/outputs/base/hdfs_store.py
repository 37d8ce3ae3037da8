"""Stores whole files in a directory of HDFS, without Java: by the package hdfs-native.

Where the cluster needs more than the URL says (the name nodes of a name service, Kerberos), it is
read from the files of HADOOP_CONF_DIR, or of HADOOP_HOME.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import hdfs_native
import pyarrow as pa

from tidelog.errors import AccessRefusedError, ConfigError, OutputError
from tidelog.outputs.base.file_store import StoredFile, name_beside
from tidelog.system import failpoints

_FAILURES: Final = (OSError, RuntimeError, ValueError)
"""What hdfs-native raises."""
_OF_JAVA: Final = re.compile(r'RPCError\("(?:[\w$]+\.)*([\w$]+)", "(.*?)(?:\\n|")', re.DOTALL)
"""The name node's exception and its message, before the stack."""


class HdfsFileStore:
    """`tidelog.outputs.base.stores.FileStore` on HDFS. Every error is an OutputError."""

    def __init__(self, path: str) -> None:
        host, slash, directory = path.removeprefix("hdfs://").partition("/")
        if not host or not directory.strip("/"):
            raise ConfigError(f"{path}: expected hdfs://host[:port]/directory")
        self.path = path.rstrip("/")
        self._name_node = f"hdfs://{host}"
        self._root = slash + directory.rstrip("/")
        self._connected: hdfs_native.Client | None = None

    def __reduce__(self) -> tuple[type[HdfsFileStore], tuple[str]]:
        return HdfsFileStore, (self.path,)

    def check(self) -> None:
        """Does nothing: a rename here replaces no file."""

    def open_output(self, name: str) -> Any:
        with self._errors(name, "created"):
            return pa.PythonFile(self._create(name), "w")

    def sync(self, names: Iterable[str]) -> None:
        """Does nothing: files are durable on as many hosts as HDFS keeps copies, once closed."""

    def make_folder(self, name: str) -> None:
        with self._errors(name, "created"):
            self._client.mkdirs(self._full(name), create_parent=True)

    def put(self, name: str, data: bytes) -> None:
        with self._errors(name, "written"), self._written_beside(name, data) as temporary:
            self._client.rename(temporary, self._full(name), overwrite=True)

    def put_if_absent(self, name: str, data: bytes) -> str | None:
        with self._errors(name, "created"):
            try:
                with self._written_beside(name, data) as temporary:
                    self._client.rename(temporary, self._full(name), overwrite=False)
            except _FAILURES:  # it may have been renamed, and the answer was lost
                found = self._whole(name)
                if found is None:
                    raise
                if found != data:
                    return None
        return self.tag(name)

    def move(self, source: str, target: str) -> None:
        with self._errors(target, "moved into place"):
            try:
                self._client.rename(self._full(source), self._full(target), overwrite=True)
            except _FAILURES:
                if self.exists(source) or not self.exists(target):
                    raise

    def exists(self, name: str) -> bool:
        return self._status(name) is not None

    def tag(self, name: str) -> str | None:
        """Return a text of size and time."""
        found = self._status(name)
        return None if found is None else f"{found.length}-{found.modification_time}"

    def size(self, name: str) -> int:
        with self._errors(name, "read"):
            return self._client.get_file_info(self._full(name)).length

    def open_input(self, name: str) -> Any:
        with self._errors(name, "read"):
            return pa.PythonFile(self._client.read(self._full(name)), "r")

    def read(self, name: str) -> bytes:
        with self._errors(name, "read"):
            return self._client.read(self._full(name)).read()

    def read_optional(self, name: str) -> bytes | None:
        with self._errors(name, "read"):
            return self._whole(name)

    def read_range(self, name: str, start: int, size: int) -> bytes:
        with self._errors(name, "read"):
            file = self._client.read(self._full(name))
            return file.read_range(start, min(size, max(len(file) - start, 0)))

    def names(self, folder: str, suffix: str = "", after: str = "") -> list[str]:
        with self._errors(folder, "listed"):
            found = (each.path.rpartition("/")[2] for each in self._listed(folder))
            return sorted(name for name in found if name > after and name.endswith(suffix))

    def all_files(self, passed_over: Callable[[str], bool]) -> Iterator[StoredFile]:
        start = len(self._root) + 1
        with self._errors("", "listed"):
            for first in self._listed(""):
                if not first.isdir:
                    found: Iterable[hdfs_native.FileStatus] = [first]
                elif passed_over(first.path[start:]):
                    continue
                else:
                    found = self._listed(first.path[start:], recursive=True)
                for each in found:
                    if not each.isdir:
                        yield StoredFile(each.path[start:], each.length, each.modification_time)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(*_FAILURES):
                failpoints.hit("output.delete")
                self._client.delete(self._full(name))

    def delete_folder(self, name: str) -> None:
        with suppress(*_FAILURES):
            self._client.delete(self._full(name), recursive=True)

    # ------------------------------------------------------------------

    @property
    def _client(self) -> hdfs_native.Client:
        """At first use: forked processes can't use their parent's."""
        if self._connected is None:
            if "SPARK_USER" in os.environ:  # an executor's process may be another user's: YARN's
                os.environ.setdefault("HADOOP_USER_NAME", os.environ["SPARK_USER"])
            self._connected = hdfs_native.Client(self._name_node)
        return self._connected

    def _full(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _create(self, name: str) -> Any:
        options = hdfs_native.WriteOptions(overwrite=True, create_parent=True)
        return self._client.create(self._full(name), options)

    @contextmanager
    def _written_beside(self, name: str, data: bytes) -> Iterator[str]:
        """Write a new file in the same folder (`name_beside`), which is removed where the block
        fails. Returns its whole path.
        """
        temporary = name_beside(name)
        try:
            with self._create(temporary) as file:
                file.write(data)
            yield self._full(temporary)
        except BaseException:
            self.delete([temporary])
            raise

    def _whole(self, name: str) -> bytes | None:
        try:
            return self._client.read(self._full(name)).read()
        except FileNotFoundError:
            return None

    def _status(self, name: str) -> hdfs_native.FileStatus | None:
        with self._errors(name, "checked"):
            try:
                return self._client.get_file_info(self._full(name))
            except FileNotFoundError:
                return None

    def _listed(self, folder: str, recursive: bool = False) -> Iterator[hdfs_native.FileStatus]:
        """Yield what is in the folder; nothing if it does not exist."""
        with suppress(FileNotFoundError):
            yield from self._client.list_status(self._full(folder), recursive)

    @contextmanager
    def _errors(self, name: str, what: str) -> Iterator[None]:
        """Turn the client's errors into AccessRefusedError, OutputError: no Java stack."""
        try:
            yield
        except _FAILURES as error:
            known = _OF_JAVA.search(str(error))
            reason = known[2] if known else str(error).partition("\n")[0]
            where = f"{self.path}/{name}" if name else self.path
            refused = known is not None and known[1] == "AccessControlException"
            raised = AccessRefusedError if refused else OutputError
            raise raised(f"{where} can't be {what}: {reason}") from error
