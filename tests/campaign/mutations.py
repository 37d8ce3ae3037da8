"""Ways to break what keeps two leaders apart; see `tests.e2e.oracle_mutations`.

The rules stand behind each other: a leader that does not check its lease is stopped by the fence,
and without the fence a segment's name is still given once. So a reader of the event log sees none
of them go. `tests.campaign.leaders` does, one by one; what the first one breaks, any reader sees.
"""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.app.capture import run as capture_run
from tidelog.app.capture import standby
from tidelog.capture import capture_scope, leadership, state_writes
from tidelog.eventlog import object_storage, storage, writer
from tidelog.eventlog.log_files import CHAIN_FILE
from tidelog.eventlog.segments import is_segment_name
from tidelog.state import documents

Patch = pytest.MonkeyPatch


def late_appends_overwrite(patch: Patch) -> None:
    """No look at the lease before an append, and a segment's name is given twice."""

    def put(self: storage.LocalStorage, name: str, data: Any, guard: Any = None) -> bool:
        self.replace(name, data)
        return True

    patch.setattr(leadership.LeaseKeeper, "check", lambda self: None)
    patch.setattr(storage.LocalStorage, "put_if_absent", put)


def appends_to_a_bucket_overwrite(patch: Patch) -> None:
    """A segment is put whatever is there."""
    put_if_absent = object_storage.ObjectStorage.put_if_absent

    def put(self: object_storage.ObjectStorage, name: str, data: Any, guard: Any = None) -> bool:
        if not is_segment_name(name):
            return put_if_absent(self, name, data, guard)
        self.replace(name, data, guard)
        return True

    patch.setattr(object_storage.ObjectStorage, "put_if_absent", put)


def tables_left_out_are_forgotten(patch: Patch) -> None:
    """Nothing says which tables another configuration left out."""
    patch.setattr(capture_scope.CaptureScope, "store_choice", lambda self, known: None)


def offsets_issued_again(patch: Patch) -> None:
    """A leader begins where the log ends that it finds."""
    patch.setattr(writer, "first_offset_after", lambda tail, seen: tail.next)


def no_lease_check_before_an_append(patch: Patch) -> None:
    begin = writer.EventLogWriter.__init__

    def beginning(self: Any, *arguments: Any, **more: Any) -> None:
        begin(self, *arguments, **{**more, "check_lease": lambda: None})

    patch.setattr(writer.EventLogWriter, "__init__", beginning)


def no_fence(patch: Patch) -> None:
    """A new leader takes the tail as it is, and appends nothing before it begins."""
    fence = writer.EventLogWriter._fence

    def fencing(self: writer.EventLogWriter) -> None:
        tail = self._chain.newest()
        if tail is None:
            fence(self)  # a new log has no tail to take
            return
        self._state_tag, self._tail = self.storage.tag(CHAIN_FILE), tail

    patch.setattr(writer.EventLogWriter, "_fence", fencing)


def epoch_not_raised(patch: Patch) -> None:
    """Every leader has the epoch of the one before, whatever the event log says."""
    look = documents.LeaseElection._read

    def looking(self: documents.LeaseElection) -> Any:
        found = look(self)
        if found is not None:
            self._next_epoch = found.value["epoch"]
        return found

    patch.setattr(documents.LeaseElection, "_read", looking)
    patch.setattr(standby.StandbyLogPoller, "newest_epoch", lambda self: 0)


def progress_written_without_epoch(patch: Patch) -> None:
    """The state store is not told whose change it is."""
    patch.setattr(capture_run, "fenced", lambda store, name, epoch: store)


def state_written_after_the_deadline(patch: Patch) -> None:
    """No look at the lease before a change of the state."""

    def put(self: state_writes.LeasedState, key: str, value: Any, expected: int | None) -> int:
        return self._state.put(key, value, expected)

    patch.setattr(state_writes.LeasedState, "put", put)
    patch.setattr(state_writes.LeasedState, "delete", lambda self, key: self._state.delete(key))
