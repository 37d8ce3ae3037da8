"""A file system of 2 MB that a test may let grow; needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.left_out import SAID


@contextmanager
def mounted(place: Path) -> Iterator[Path]:
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"{SAID}the right to mount a tmpfs, which root has")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def grow(place: Path) -> None:
    """To 64 MB."""
    subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
