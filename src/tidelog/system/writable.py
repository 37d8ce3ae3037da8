"""Finds why no file can be created at a path; creates none."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path


def obstacle(directory: Path) -> str:
    """Return why no file can be created in the directory, which may be missing; empty: one can.

    Whether there is space is another question: it may come back.
    """
    place = nearest(directory)
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


def nearest(path: Path) -> Path:
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
    return shutil.disk_usage(nearest(path)).free
