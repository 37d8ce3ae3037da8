"""Opens the storage at a location, a directory (`LocalStorage`) or an object store, and provides
its options.

Options that may be secret (keys, tokens) are passed to other processes in the environment, under a
name that Spark treats as a secret's, and so appear in no plan, log line or checkpoint.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa

from tidelog.errors import EventLogError, StorageError, UsageError
from tidelog.eventlog.storage_port import Guard, Storage, Tag
from tidelog.model.option_values import is_url
from tidelog.system import failpoints
from tidelog.system.extras import check_installed
from tidelog.system.private_files import create_directory, create_file, fsync_directory

PROBE_PREFIX = ".tmp-probe-"
"""Prefix of the probe's files; remains of a crash are swept like temporary files."""


_TRANSIENT = frozenset((
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT),
))  # fmt: skip
"""Errors that are not due to the kind of file system: a StorageError, which is retried."""


def probe_directory(root: Path) -> None:
    """Check that the directory can hold an event log. Raises UsageError if it can't; StorageError
    if the probe's files vanished: a new leader has swept them.
    """
    try:
        _probe(root)
    except FileNotFoundError as error:
        raise StorageError(f"checking {root}: {error.strerror}; it is retried") from error


def _probe(root: Path) -> None:
    base = PROBE_PREFIX + secrets.token_hex(8)
    one, other, name = (root / f"{base}-{part}" for part in ("one", "other", "name"))
    try:
        with _require(root, "makes no files with O_EXCL, or can't make them durable"):
            for path, content in ((one, b"1"), (other, b"2")):
                _write_probe(path, content)
            fsync_directory(root)
        _check_links(root, one, other, name)
        with _require(root, "does not rename over a file"):
            other.rename(name)
        if name.read_bytes() != b"2" or one.read_bytes() != b"1":
            raise _unsuitable_directory(root, "does not show what was renamed")
        _check_locks(root, name)
    finally:
        for path in (one, other, name):
            with suppress(OSError):
                path.unlink()


def _write_probe(path: Path, content: bytes) -> None:
    descriptor = create_file(path, os.O_EXCL | os.O_WRONLY)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_links(root: Path, one: Path, other: Path, name: Path) -> None:
    with _require(root, "has no hard links"):
        name.hardlink_to(one)
    if not name.samefile(one):
        raise _unsuitable_directory(root, "copies a file where a hard link is asked for")
    try:
        name.hardlink_to(other)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno in _TRANSIENT:
            raise
        raise _unsuitable_directory(
            root, f"rejects a second link for another reason: {error}"
        ) from error
    raise _unsuitable_directory(
        root, "makes a hard link where the name exists: two leaders would not see it"
    )


def _check_locks(root: Path, path: Path) -> None:
    with _require(root, "has no locks (flock)"):
        first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        finally:
            os.close(first)
            os.close(second)
    raise _unsuitable_directory(root, "gives one lock to two holders")


@contextmanager
def _require(root: Path, lacks: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _TRANSIENT:
            raise
        raise _unsuitable_directory(root, f"{lacks} ({error.strerror or error})") from error


def _unsuitable_directory(root: Path, lacks: str) -> UsageError:
    return UsageError(
        f"the event log's file system at {root} {lacks}. An event log needs a POSIX file system, "
        "as ext4, XFS, NFS or CephFS, or an object store (docs/how-to/standby.md)"
    )


# The directory.

_TEMPORARY = ".tmp-"
_QUARANTINE = "quarantine"
_NOT_THE_FILES_FAULT = (
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
)


_SMALL_FILE_BYTES = 64 << 10
"""A file of which only the footer is wanted is read as a whole up to this size: a memory map costs
more."""


class LocalStorage:
    """A directory of a local file system with hard links."""

    parallel: ClassVar[int] = 1

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._folder = f"{self.root}/"
        self._written = False

    def __repr__(self) -> str:
        return f"LocalStorage({str(self.root)!r})"

    def path(self, name: str) -> Path:
        return self.root / name

    def put_if_absent(self, name: str, data: pa.Buffer | bytes, guard: Guard | None = None) -> bool:
        target = self.path(name)
        temporary = self._write_temporary(target, data, "put")
        try:
            if guard is not None:
                guard()
            with _storage_errors("create", target):
                failpoints.hit("put.before_link")
                try:
                    target.hardlink_to(temporary)
                except (FileExistsError, FileNotFoundError):
                    return False
                failpoints.hit("put.after_link")
                fsync_directory(target.parent)
                failpoints.hit("put.after_fsync")
            return True
        finally:
            with suppress(OSError):
                temporary.unlink()

    def replace(self, name: str, data: pa.Buffer | bytes, guard: Guard | None = None) -> None:
        target = self.path(name)
        temporary = self._write_temporary(target, data, "replace")
        try:
            if guard is not None:
                guard()
            with _storage_errors("replace", target):
                failpoints.hit("replace.before_rename")
                try:
                    temporary.rename(target)
                except FileNotFoundError as error:
                    raise StorageError(
                        f"cannot replace {target}: another process became leader and removed our "
                        "temporary file. Nothing was changed."
                    ) from error
                failpoints.hit("replace.after_rename")
                fsync_directory(target.parent)
                failpoints.hit("replace.after_fsync")
        finally:
            with suppress(OSError):
                temporary.unlink()

    def replace_if(
        self, name: str, data: pa.Buffer | bytes, expected: Tag | None, guard: Guard | None = None
    ) -> Tag | None:
        if self.tag(name) != expected:  # it can't change: the caller holds the lock
            return None
        self.replace(name, data, guard)
        return self.tag(name)

    def open(self, name: str, *, footer: bool = False) -> pa.NativeFile:
        path = f"{self._folder}{name}"
        try:
            if footer and os.stat(path).st_size <= _SMALL_FILE_BYTES:  # noqa: PTH116
                with open(path, "rb") as file:  # noqa: PTH123
                    return pa.BufferReader(file.read())
            return pa.memory_map(path, "r")
        except OSError as error:
            if error.errno in _NOT_THE_FILES_FAULT:
                raise _storage_error("open", self.path(name), error) from error
            raise

    def fetch_ahead(self, names: Sequence[str]) -> None:
        """Does nothing: the operating system reads ahead."""

    def read(self, name: str) -> bytes:
        with _storage_errors("read", self.path(name)):
            return self.path(name).read_bytes()

    def tag(self, name: str) -> Tag | None:
        try:
            # A Path costs as much as the call.
            status = os.stat(f"{self._folder}{name}")  # noqa: PTH116
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _storage_error("check", self.path(name), error) from error
        return Tag((status.st_ino, status.st_mtime_ns, status.st_size))

    def tags_of(self, names: Sequence[str]) -> list[Tag | None]:
        return [self.tag(name) for name in names]

    def names(self, folder: str = "") -> list[str]:
        prefix = f"{folder}/" if folder else ""
        with _storage_errors("list", self.path(folder)):
            try:
                with os.scandir(self.path(folder)) as entries:
                    return sorted(
                        prefix + entry.name
                        for entry in entries
                        if not entry.name.startswith(".") and not entry.is_dir()
                    )
            except FileNotFoundError:
                return []

    def tags(self) -> dict[str, Tag]:
        tags = ((name, self.tag(name)) for name in self.names())
        return {name: tag for name, tag in tags if tag is not None}

    def delete(self, name: str) -> None:
        with _storage_errors("delete", self.path(name)), suppress(FileNotFoundError):
            self.path(name).unlink()

    def quarantine(self, name: str) -> str:
        new_name = f"{_QUARANTINE}/{name}.{time.time_ns()}"
        with _storage_errors("set aside", self.path(name)):
            _make_directory(self.path(new_name).parent)
            self.path(name).rename(self.path(new_name))
            fsync_directory(self.path(new_name).parent)
            fsync_directory(self.path(name).parent)
        return new_name

    def make_durable(self, name: str) -> None:
        target = self.path(name)
        with _storage_errors("write", target):
            descriptor = os.open(target, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            fsync_directory(target.parent)

    def sweep(self) -> None:
        with _storage_errors("remove temporary files from", self.root):
            for place in (self.root, self.root / "schemas"):
                for path in place.iterdir() if place.is_dir() else ():
                    if path.name.startswith(_TEMPORARY):
                        path.unlink(missing_ok=True)
            probe_directory(self.root)

    @contextmanager
    def exclusive(self, name: str) -> Iterator[bool]:
        # flock: the kernel keeps it while its holder is frozen and frees it when the holder dies.
        path = self.path(f".{name}.lock")
        with _storage_errors("lock", path):
            descriptor = create_file(path, os.O_RDWR)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(descriptor)

    def _write_temporary(self, target: Path, data: pa.Buffer | bytes, step: str) -> Path:
        temporary = target.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}-{target.name}")
        with _storage_errors("write", target):
            begun = self._written or target.parent != self.root
            if begun and not self.root.is_dir():
                raise EventLogError(f"{self.root} is gone: was it deleted, or a volume unmounted?")
            _make_directory(target.parent)
            self._written = True
            try:
                failpoints.hit(f"{step}.before_write")
                descriptor = create_file(temporary, os.O_EXCL | os.O_WRONLY)
                try:
                    view = memoryview(data).cast("B")
                    while view:
                        view = view[os.write(descriptor, view) :]
                    failpoints.hit(f"{step}.after_write")
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        return temporary


def _make_directory(path: Path) -> None:
    if path.is_dir():
        return
    try:
        create_directory(path)
    except FileNotFoundError as error:  # e.g. in /proc
        raise UsageError(
            f"the event log's directory {path} can't be created: its file system holds no files; "
            "name another one (log.path)"
        ) from error
    fsync_directory(path.parent)


@contextmanager
def _storage_errors(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _storage_error(verb, path, error) from error


def _storage_error(verb: str, path: Path, error: OSError) -> StorageError:
    advice = "Check permissions and the file system"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "Check free space there, and make room"
    return StorageError(f"cannot {verb} {path}: {error.strerror or error}. {advice}.")


OPTIONS_VARIABLE: Final = "TIDELOG_LOG_STORAGE_SECRETS"
_providing = threading.Lock()


def storage_at(location: str | Path) -> Storage:
    """Return the storage at a directory or a URL such as ``s3://bucket/prefix``.

    Raises:
        MissingExtraError: if a URL needs the extra ``object-store``.
        UsageError: if an option or the URL is wrong.
    """
    if not is_url(location):
        return LocalStorage(location)
    # Checked first: of two threads that import a failing module, one may see half of it.
    check_installed("obstore")
    from tidelog.eventlog.object_storage import ObjectStorage

    url = str(location).rstrip("/")
    return ObjectStorage(url, options_of(url))


def provide_options(location: str | Path, options: Mapping[str, str]) -> None:
    """Set options of the object store at ``location`` and below, for this process and those that it
    starts from now on.

    Options that are not given here come from the store's own environment variables, such as
    ``AWS_*``.
    """
    if not options:
        return
    with _providing:
        known = _all_options()
        known[_location_key(location)] = dict(options)
        os.environ[OPTIONS_VARIABLE] = json.dumps(known)


def options_of(url: str) -> dict[str, str]:
    """The options that `provide_options` got for the location, or for the nearest one above it."""
    options = _all_options()
    url = _location_key(url)
    above = [place for place in options if f"{url}/".startswith(f"{place}/")]
    return options[max(above, key=len)] if above else {}


def _location_key(location: str | Path) -> str:
    """The location's key; ``s3a``, as Hadoop calls it, is ``s3``."""
    text = str(location).rstrip("/")
    return "s3" + text.removeprefix("s3a") if text.startswith("s3a://") else text


def _all_options() -> dict[str, dict[str, str]]:
    options: dict[str, dict[str, str]] = json.loads(os.environ.get(OPTIONS_VARIABLE, "{}"))
    return options
