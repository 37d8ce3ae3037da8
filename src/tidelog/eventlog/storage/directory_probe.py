"""Does a directory do what keeps two leaders apart, and what was told durable? Tried by doing it.

What is needed of a file system that hosts share:

- a hard link is made of the file itself, and is refused where the name exists (link() is what
  creates a segment; so does every POSIX file system, NFS and CephFS);
- a rename puts one file in the place of another, and shows;
- a lock of one holder is refused to another (flock; between hosts NFS passes it on, unless it is
  mounted with ``nolock`` or ``local_lock``, which can't be seen from one host);
- files and directories can be made durable.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidelog.errors import StorageError, UsageError
from tidelog.system.private_files import create_file, fsync_directory

PROBE = ".tmp-probe-"
"""What is left of it after a crash is swept with temporary files."""


_PASSING = frozenset((
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT),
))  # fmt: skip
"""Not the kind of file system is at fault: a StorageError, which is tried again."""


def probe(root: Path) -> None:
    """Raises UsageError if the directory can't hold an event log; StorageError if the files that
    are tried went: whoever leads by now has swept them.
    """
    try:
        _probe(root)
    except FileNotFoundError as error:
        raise StorageError(f"trying {root}: {error.strerror}; it is tried again") from error


def _probe(root: Path) -> None:
    base = PROBE + secrets.token_hex(8)
    one, other, name = (root / f"{base}-{part}" for part in ("one", "other", "name"))
    try:
        with _needed(root, "makes no files with O_EXCL, or can't make them durable"):
            for path, content in ((one, b"1"), (other, b"2")):
                _write(path, content)
            fsync_directory(root)
        _links(root, one, other, name)
        with _needed(root, "does not rename over a file"):
            other.rename(name)
        if name.read_bytes() != b"2" or one.read_bytes() != b"1":
            raise _refused(root, "does not show what was renamed")
        _locks(root, name)
    finally:
        for path in (one, other, name):
            with suppress(OSError):
                path.unlink()


def _write(path: Path, content: bytes) -> None:
    descriptor = create_file(path, os.O_EXCL | os.O_WRONLY)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _links(root: Path, one: Path, other: Path, name: Path) -> None:
    with _needed(root, "has no hard links"):
        name.hardlink_to(one)
    if not name.samefile(one):
        raise _refused(root, "copies a file where a hard link is asked for")
    try:
        name.hardlink_to(other)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno in _PASSING:
            raise
        raise _refused(root, f"refuses a second link for another reason: {error}") from error
    raise _refused(root, "makes a hard link where the name exists: two leaders would not see it")


def _locks(root: Path, path: Path) -> None:
    with _needed(root, "has no locks (flock)"):
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
    raise _refused(root, "gives one lock to two holders")


@contextmanager
def _needed(root: Path, lacks: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _PASSING:
            raise
        raise _refused(root, f"{lacks} ({error.strerror or error})") from error


def _refused(root: Path, lacks: str) -> UsageError:
    return UsageError(
        f"the event log's file system at {root} {lacks}. An event log needs a POSIX file system, "
        "as ext4, XFS, NFS or CephFS, or an object store (docs/how-to/standby.md)"
    )
