"""Publishes staged files exactly once: numbered commits beside the files.

A commit names a range of offsets and its files. It is created only if no other has its number, and
then the files are moved to where readers find them. So the commit decides, and the moves that a
crash omits are done later by the commit. It is in ``_tidelog/<output>/commits``; Spark and Hive
ignore names that begin with ``_``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from tidelog.errors import ConcurrentCommitError, OutcomeUnknownError, OutputBusyError, TidelogError
from tidelog.outputs.base.stores import FileStore
from tidelog.system import failpoints
from tidelog.system.version import check_format


@dataclass(frozen=True)
class StagedFile:
    """A whole file that waits to be published into ``directory``."""

    staged: str
    directory: str
    table: str
    rows: int


@dataclass(frozen=True)
class Attempt:
    """The files that one attempt of a task has staged. All attempts of one task have the same
    ``task``.
    """

    task: str
    files: tuple[StagedFile, ...]

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Attempt:
        found = json.loads(data)
        return cls(found["task"], tuple(StagedFile(**each) for each in found["files"]))


_KEPT = 20  # commits
_MOVERS = 8


@dataclass(frozen=True)
class PublishedFiles:
    """A staged file and its final path."""

    staged: str
    path: str
    table: str
    rows: int


@dataclass(frozen=True)
class Commit:
    """Commit ``number`` of an output: it has written ``[start, end)`` of the log."""

    number: int
    generation: str
    start: int
    end: int
    files: tuple[PublishedFiles, ...]

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, what: str) -> Commit:
        """Decode the commit, ``what`` in messages. Raises NewerFormatError."""
        found = json.loads(data)
        check_format(found.pop("format", None), what)
        files = tuple(PublishedFiles(**each) for each in found.pop("files"))
        return cls(**found, files=files)


class Commits:
    """The commits of one output in one directory. Used by one thread of the driver."""

    def __init__(self, store: FileStore, output: str) -> None:
        self._store = store
        self._output = output
        self._root = f"_tidelog/{output}"
        self._read = False
        self._finished = False  # whether the newest commit's files are known to be in place
        self._newest: Commit | None = None
        self._cleaned = False
        self._uncertain: set[Commit] = set()
        """Commits that were sent without an answer: the store may create them later."""

    @property
    def newest(self) -> Commit | None:
        if not self._read:
            names = self._numbers()
            self._newest = None
            if names:
                self._newest = self._commit(names[-1])
            self._finished = False
            self._read = True
        return self._newest

    def staging(self, attempt: str) -> str:
        """Create the folder for the files of one attempt's tasks at a batch, and return it."""
        folder = f"{self._root}/staging/{attempt}"
        self._store.make_folder(folder)
        return folder

    def publish(
        self, staging: str, generation: str, start: int, end: int, prefix: str, suffix: str
    ) -> Commit:
        """Commit the files that the tasks staged, and move them to where readers find them. Raises
        ConcurrentCommitError if another driver has committed first.
        """
        newest = self.newest
        number = 1 if newest is None else newest.number + 1
        files = tuple(
            PublishedFiles(
                file.staged,
                f"{file.directory}/{prefix}{start:020d}-{end:020d}-{at:05d}{suffix}",
                file.table,
                file.rows,
            )
            for at, file in enumerate(self._files_of_attempts(staging))
        )
        commit = Commit(number, generation, start, end, files)
        self._store.make_folder(f"{self._root}/commits")
        # A commit without its staging folder counts as finished: the folder must survive whatever
        # the commit survives.
        self._store.sync(_parent_folders(_folder(staging)))
        name = _name(number)
        failpoints.hit("files.commit.before")
        try:
            if not self._store.put_if_absent(f"{self._root}/commits/{name}", commit.to_json()):
                self._raise_conflict(name)
            if self._numbers()[-1] != name:
                # Our number had been used and removed: this driver was delayed for long.
                self._store.delete([f"{self._root}/commits/{name}"])
                self._raise_conflict()
        except OutcomeUnknownError:
            self._uncertain.add(commit)
            self._read = False
            raise
        except TidelogError:
            self._read = False  # the commit may exist: the next attempt checks
            raise
        self._uncertain.clear()
        self._newest, self._finished = commit, False
        failpoints.hit("files.commit.after")
        self.finish()
        self._store.delete_folder(staging)  # also that of a commit without files
        self._clean()
        return commit

    def finish(self) -> None:
        """Move the newest commit's files into place, as far as that was not done.

        It was done if none of the commit's staging folders exists: those are deleted last. Then the
        files belong to readers, who may delete or rewrite them.
        """
        commit = self.newest
        if commit is None or self._finished:
            return
        staged = self._staged(commit)
        if staged:
            self._move_all(commit)
            failpoints.hit("files.commit.moved")
            for folder in staged:
                self._store.delete_folder(folder)
        self._finished = True

    def is_finished(self, generation: str, end: int) -> bool:
        """Is the newest commit, if there is one, of this generation of the log and up to ``end`` at
        most, with nothing left to `finish`?
        """
        commit = self.newest
        if commit is None:
            return True
        known = commit.generation == generation and commit.end <= end
        return known and not self._staged(commit)

    def _staged(self, commit: Commit) -> list[str]:
        """Return the staging folders that still exist."""
        folders = sorted({_folder(file.staged) for file in commit.files})
        return [folder for folder in folders if self._store.exists(folder)]

    def _move_all(self, commit: Commit) -> None:
        """Return when the files are in place, durably."""
        # First the commit itself: syncing may have failed when it was created.
        self._store.sync([f"{self._root}/commits"])
        folders = sorted({_folder(file.path) for file in commit.files})
        for folder in folders:
            self._store.make_folder(folder)
        with ThreadPoolExecutor(_MOVERS) as pool:
            list(pool.map(self._move, commit.files))
        self._store.sync(sorted({above for folder in folders for above in _parent_folders(folder)}))

    def _move(self, file: PublishedFiles) -> None:
        failpoints.hit("files.commit.move")
        self._store.move(file.staged, file.path)

    def _files_of_attempts(self, staging: str) -> Sequence[StagedFile]:
        """Return the files of one attempt of each task: Spark may have run a task more
        than once.
        """
        attempts: dict[str, Attempt] = {}
        for name in self._store.names(staging, ".json"):
            found = Attempt.from_json(self._store.read(f"{staging}/{name}"))
            attempts.setdefault(found.task, found)
        files = [file for attempt in attempts.values() for file in attempt.files]
        return sorted(files, key=lambda file: (file.directory, file.staged))

    def _clean(self) -> None:
        """Delete old commits and, once a run, the files that dead attempts staged. Not before a
        commit of our own: until then a driver that was taken for dead may commit.
        """
        names = self._numbers()
        self._store.delete(f"{self._root}/commits/{name}" for name in names[:-_KEPT])
        if not self._cleaned:
            self._store.delete_folder(f"{self._root}/staging")
            self._store.make_folder(f"{self._root}/staging")
            self._cleaned = True

    def _commit(self, name: str) -> Commit:
        path = f"{self._root}/commits/{name}"
        return Commit.from_json(self._store.read(path), f"{self._store.path}/{path}")

    def _numbers(self) -> list[str]:
        return self._store.names(f"{self._root}/commits", ".json")

    def _raise_conflict(self, name: str = "") -> None:
        """``name``: of the commit that was created in place of ours."""
        if name and self._uncertain and self._commit(name) in self._uncertain:
            raise OutputBusyError(
                f"output {self._output}: the store has now created a commit of this pipeline "
                "that it did not answer before. The batch continues after it."
            )
        raise ConcurrentCommitError(
            f"output {self._output}: another pipeline has committed files first. Run one "
            "pipeline for each output, or give the outputs names of their own."
        )


def _name(number: int) -> str:
    return f"{number:020d}.json"


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _parent_folders(folder: str) -> list[str]:
    """Return the folder and those above it, up to the root."""
    parts = folder.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts) + 1)]
