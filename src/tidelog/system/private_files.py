"""Creates files and directories for their owner alone, and finds out why none can be created.

They have rows, keys or state. Whatever the umask: a directory gets 0700, a file 0600. In a
directory with the setgid bit, which its owner created to share it (``install -d -m 2750 -g analysts
…``), its group gets rights, too.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO


def create_file(path: Path, flags: int) -> int:
    """Return a descriptor as `os.open`; create a missing file (``O_EXCL``: or fail)."""
    mode = 0o600 | _shared(path.parent) & 0o060
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags | os.O_CREAT, mode)
    with suppress(OSError):  # a file system without modes
        os.fchmod(descriptor, mode)
    return descriptor


def append_text(path: Path) -> IO[str]:
    """Open a file to append UTF-8 text; create it if it is missing."""
    descriptor = create_file(path, os.O_WRONLY | os.O_APPEND)
    return os.fdopen(descriptor, "a", encoding="utf-8")


def create_directory(path: Path) -> None:
    """Create the directory, and those above it with the umask's mode; an existing one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shared = _shared(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        with suppress(OSError):
            path.chmod(0o700 | shared | (stat.S_ISGID if shared else 0))


def temporary_directory(name: str) -> Path:
    """Return this user's own directory below the one for temporary files; create it if missing.
    Raises PermissionError if somebody else created it, or may write into it.
    """
    path = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} is not this user's own")
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def users_of(path: Path) -> str:
    """Return its intended users: ``owner``, or by the setgid bit ``owner and group``."""
    directory = path if path.is_dir() else path.parent
    return "owner and group" if directory.stat().st_mode & stat.S_ISGID else "owner"


def readable_by_others(path: Path) -> bool:
    """Return whether other users than those can read it."""
    place = path.resolve()
    beyond = 0o007 if "group" in users_of(place) else 0o077
    if place.stat().st_mode & beyond == 0:
        return False
    return all(parent.stat().st_mode & 0o011 for parent in place.parents)


def _shared(directory: Path) -> int:
    """Return the group's mode bits for files in the directory."""
    with suppress(OSError):
        mode = directory.stat().st_mode
        return mode & 0o070 if mode & stat.S_ISGID else 0
    return 0


def fsync_directory(path: Path) -> None:
    """Make the directory's entries durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Why no file can be created at a path; this creates none.


def obstacle_to_files(directory: Path) -> str:
    """Return why no file can be created in the directory, which may be missing; empty: one can.
    Whether there is space is another question: it may come back.
    """
    place = nearest_existing(directory)
    try:
        is_directory = stat.S_ISDIR(place.stat().st_mode)
    except OSError as error:
        return f"{place} can't be read ({error.strerror})"
    if not is_directory:
        return f"{place} is a file"
    if os.access(place, os.W_OK | os.X_OK):
        return ""
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"{place} is on a file system that is mounted read-only"
    return f"this user may not write to {place}"


def nearest_existing(path: Path) -> Path:
    """Return the path, or the nearest one above it that exists."""
    for place in (path, *path.parents):
        try:
            place.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            pass  # it exists, and can't be read
        return place
    return path


def free_bytes(path: Path) -> int:
    """Return the free space of the file system that has the path, or will have it."""
    return shutil.disk_usage(nearest_existing(path)).free
