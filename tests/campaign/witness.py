"""What a process of the campaign notes of its own acts, for `tests.campaign.leaders` to judge.

It stands around the rules, not in them: what it notes does not depend on whether a rule was kept.
Times are of the machine's monotonic clock, which all its processes share.

It also stops its process where the nemesis asks for it, by a file: behind the last check of
the lease, before the checked act.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tidelog.app.base import elections
from tidelog.capture import state_writes
from tidelog.capture.session import session
from tidelog.eventlog import writer
from tidelog.ports import Document, Lease, StateStore

NOTES: Final = "notes.jsonl"
APPEND: Final = "append"
STATE_WRITE: Final = "state write"


@dataclass(frozen=True, slots=True)
class Note:
    """
    Attributes:
        what: ``lease``, ``leads``, ``runs``, ``append``, ``put``, ``delete``, ``get``, ``stopped``.
        pid: of the process.
        epoch: of the lease it was done under.
        called: before the lease was looked at; of a lease: before it was asked for.
        begun, ended: before and after it was done.
        deadline: of a lease.
        key: of a document of the state; what it was stopped before.
        offset: of an append: where it stands; of who leads: from where on it will append.
        done: it did not fail.
    """

    what: str
    pid: int
    epoch: int
    called: float
    begun: float
    ended: float
    deadline: float = 0.0
    key: str = ""
    offset: int = 0
    done: bool = True


class Notes:
    """What the processes of a directory have noted."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NOTES
        self._read = 0
        self._notes: list[Note] = []

    def forget(self) -> None:
        """All of before. No process of the directory runs."""
        self.so_far()
        self._notes = []

    def so_far(self) -> list[Note]:
        """A line that is not whole yet is left for the next time."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
            for line in whole.split(b"\n") if whole else ():
                self._notes.append(Note(**json.loads(line)))
                self._read += len(line) + 1
        return self._notes


def stop_before(directory: Path, what: str) -> Path:
    """The file that asks a process of this directory to stop before its next ``what``."""
    return directory / f"stop before {what}"


class Witness:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = os.open(directory / NOTES, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
        self._pid = os.getpid()
        self.called = threading.local()

    def note(
        self, what: str, epoch: int, *, called: float = 0.0, begun: float = 0.0, **more: Any
    ) -> None:
        now = time.monotonic()
        found = Note(what, self._pid, epoch, called or now, begun or now, now, **more)
        os.write(self._file, json.dumps(asdict(found)).encode() + b"\n")

    def stop_if_asked(self, what: str, epoch: int, key: str = "") -> None:
        """One thread stops, and with it all of the process."""
        try:
            stop_before(self._directory, what).unlink()
        except FileNotFoundError:
            return
        self.note("stopped", epoch, key=key or what)
        os.kill(self._pid, signal.SIGSTOP)


class _WitnessedStore:
    """Below the look at the lease of `tidelog.capture.state_writes.LeasedState`."""

    def __init__(self, state: StateStore, epoch: int, witness: Witness) -> None:
        self._state = state
        self._epoch = epoch
        self._witness = witness

    def get(self, key: str) -> Document | None:
        found = self._state.get(key)
        if found is not None:  # what is not there can't be kept from an earlier leader
            self._witness.note("get", self._epoch, key=key)
        return found

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        version: int = self._change(
            "put", key, lambda: self._state.put(key, value, expected_version)
        )
        return version

    def delete(self, key: str) -> None:
        self._change("delete", key, lambda: self._state.delete(key))

    def keys(self, prefix: str) -> list[str]:
        return self._state.keys(prefix)

    def close(self) -> None:
        self._state.close()

    def _change(self, what: str, key: str, change: Callable[[], Any]) -> Any:
        witness = self._witness
        witness.stop_if_asked(STATE_WRITE, self._epoch, key)
        called, begun, done = witness.called.at, time.monotonic(), False
        try:
            found = change()
            done = True
            return found
        finally:
            witness.note(what, self._epoch, called=called, begun=begun, key=key, done=done)


def install(directory: Path) -> None:
    """Note in ``directory`` what this process does from now on."""
    witness = Witness(directory)
    _see_leases(witness)
    _see_appends(witness)
    _see_state_writes(witness)


def _see_leases(witness: Witness) -> None:
    acquire, renew = elections.LogElection.acquire, elections.LogElection.renew

    def noted(lease: Lease, called: float) -> Lease:
        witness.note("lease", lease.epoch, called=called, deadline=lease.deadline)
        return lease

    def acquiring(self: elections.LogElection) -> Lease | None:
        called = time.monotonic()
        lease = acquire(self)
        return None if lease is None else noted(lease, called)

    def renewing(self: elections.LogElection, lease: Lease) -> Lease:
        called = time.monotonic()
        return noted(renew(self, lease), called)

    elections.LogElection.acquire = acquiring  # type: ignore[method-assign]
    elections.LogElection.renew = renewing  # type: ignore[method-assign]


def _see_appends(witness: Witness) -> None:
    begin, put = writer.EventLogWriter.__init__, writer.EventLogWriter._put
    run = session.CaptureSession.run

    def beginning(self: Any, storage: Any, source: Any, epoch: int, **more: Any) -> None:
        look, leads = more.pop("check_lease"), False

        def looking() -> None:
            look()
            if leads:
                witness.stop_if_asked(APPEND, epoch)

        begin(self, storage, source, epoch, check_lease=looking, **more)
        leads = True
        witness.note("leads", epoch, offset=self.next_offset)

    def putting(self: Any, meta: Any, data: Any) -> None:
        called = time.monotonic()
        put(self, meta, data)
        witness.note(APPEND, self.epoch, called=called, offset=meta.first)

    def running(self: Any, stop: threading.Event) -> bool:
        witness.note("runs", self._leadership.leader.epoch)
        return run(self, stop)

    writer.EventLogWriter.__init__ = beginning  # type: ignore[method-assign]
    writer.EventLogWriter._put = putting  # type: ignore[method-assign]
    session.CaptureSession.run = running  # type: ignore[method-assign]


def _see_state_writes(witness: Witness) -> None:
    state = state_writes.LeasedState
    begin, put, delete = state.__init__, state.put, state.delete

    def beginning(self: Any, store: StateStore, check: Any) -> None:
        begin(self, _WitnessedStore(store, check.__self__.lease.epoch, witness), check)

    def putting(self: Any, key: str, value: Any, expected_version: int | None) -> int:
        witness.called.at = time.monotonic()
        return put(self, key, value, expected_version)

    def deleting(self: Any, key: str) -> None:
        witness.called.at = time.monotonic()
        delete(self, key)

    state.__init__ = beginning  # type: ignore[method-assign]
    state.put = putting  # type: ignore[method-assign]
    state.delete = deleting  # type: ignore[method-assign]
