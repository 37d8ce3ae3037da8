"""Files and lakes on disks of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tests.faults.outputs.target import Strike, Target, nothing
from tests.integration.spark.frozen_destinations import Place, Places
from tests.small_disk import mounted


@contextmanager
def filled(directory: Path) -> Iterator[Strike]:
    """The disk that it is on has no room any more."""
    ballast = directory / "ballast"
    command = ["dd", "if=/dev/zero", f"of={ballast}", "bs=1k"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "No space left" in done.stderr
    try:
        yield nothing
    finally:
        ballast.unlink()


def disk(opened: ExitStack, place: Path, of: Any = None, size: str = "12m") -> Path:
    """A file system of its own in ``place``, owned by whom the server ``of`` runs as."""
    if place.exists():
        for each in place.iterdir():
            each.unlink()
        place.rmdir()
    opened.enter_context(mounted(place))
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)
    if of is not None:
        of._own(place)
        place.chmod(0o750 if of.title.startswith("M") else 0o700)
    return place


class DiskTarget(Target):
    """Files on a disk of its own."""

    kind: ClassVar[str]

    def make(self) -> Place:
        self.disk = disk(self._opened, self._root / "disk")
        made: Place = getattr(Places(self.places._request, self.disk), self.kind)()
        path = "activity" if self.kind == "files" else "lake"
        made.output["path"] = str(self.disk / path)
        return made

    @contextmanager
    def read_only(self) -> Iterator[Strike]:
        self._remount("ro")
        try:
            yield nothing
        finally:
            self._remount("rw")

    def _remount(self, how: str) -> None:
        """Not while a file is open for writing."""
        for _ in range(600):
            command = ["mount", "-o", f"remount,{how}", str(self.disk)]
            if not subprocess.run(command, capture_output=True, check=False).returncode:
                return
        raise AssertionError(f"{self.disk} can't be remounted {how}")

    def full(self) -> Any:
        return filled(self.disk)


class LakeTarget(DiskTarget):
    def follow(self, message: str) -> None:
        assert "Move the table away" in message, message
        (self.disk / "lake/public/t").rename(self.disk / "away")


class Files(DiskTarget):
    kind = "files"


class Delta(LakeTarget):
    kind = "delta"


class Iceberg(LakeTarget):
    kind = "iceberg"
