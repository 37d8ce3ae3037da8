"""The tasks of an engine: they capture a source, and read the captured events.

Engines of one name are a group. Its members and their partitions of the keys (a group of one has
all keys) are in one document of the state store, changed by compare-and-set: a member that was
taken for dead can't change anything, however late its change arrives.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from decimal import Decimal
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.app.async_engine.log_task import LogTask, OffsetStore, StartingOffset
from tidelog.app.base.instances import this_holder
from tidelog.app.base.log_location import event_log_path
from tidelog.app.capture.run import Capture
from tidelog.app.overview.reader import ENGINE_GROUPS, process_of
from tidelog.app.overview.remote_control import OnStatus, ignore_status
from tidelog.config import Config
from tidelog.engine.event_batches import EventBatch
from tidelog.engine.events import Events
from tidelog.engine.options import BATCH_SIZE
from tidelog.engine.ports import EndReachedError
from tidelog.errors import (
    ConfigError,
    EventLogError,
    IncompleteDumpError,
    LeaseLostError,
    SourceError,
    StateConflictError,
    StateError,
    TaskStartError,
)
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import Int64s
from tidelog.outputs.base.sections import StepSection
from tidelog.ports import StateStore
from tidelog.state.opening import open_state
from tidelog.system.callbacks import refuse_coroutine
from tidelog.system.processes import has_ended, this_process, unix_ms

# The members of a group, and the tasks that read their partitions.

_BEATS: Final = 5  # within the duration of a lease
_DOUBT: Final = 0.7  # the share of a lease after which it ends here, before others take over
_WARN_AFTER_S: Final = 10.0  # of waiting for the others
_OTHERS_S: Final = 0.2  # between two reads of the others' offsets


class GroupMembers:
    """This process's membership in the group: a lease on its partitions, renewed by a thread.

    Thread-safe.

    Args:
        open_state: opens the store of the document, from `join` to `leave`.
        name: the name of the engines.
        lease_s: seconds without a heartbeat after which a member counts as dead; one that ended
            on this host does so at once.
    """

    def __init__(self, open_state: Callable[[], StateStore], name: str, lease_s: float) -> None:
        self._open_state = open_state
        self._store: StateStore | None = None
        self._name, self._key, self._lease_s = name, f"{ENGINE_GROUPS}{name}", lease_s
        self.holder = f"{this_holder()}-{secrets.token_hex(4)}"
        self._last_heartbeats: dict[str, tuple[int, float]] = {}
        self._expires_at = 0.0
        self._lost = False
        self._leaving = threading.Event()
        self._document: dict[str, Any] = {}
        self._thread: threading.Thread | None = None

    def join(self, partitions: int, generation: str, start: int) -> None:
        """Become a member. ``start``: the first offset of a group without progress.

        Raises:
            ConfigError: the others have another number of partitions.
        """
        self._store = self._open_state()
        first = {"partitions": partitions, "generation": generation, "start": start}
        if self._state.get(self._key) is None:
            none: dict[str, Any] = {"members": {}, "owners": {}, "offsets": {}}
            with suppress(StateConflictError):  # another member was faster
                self._state.put(self._key, {**first, **none}, 0)

        def enter(document: dict[str, Any]) -> None:
            self._remove_dead(document)
            if not document["members"] and not document["offsets"]:
                document.update(first)
            document["seen_ms"] = unix_ms()
            if document["partitions"] == partitions:
                document["members"][self.holder] = 0
                document["processes"][self.holder] = this_process()

        deadline = time.monotonic() + self._lease_s * (1 + 2 / _BEATS)
        while True:
            began = time.monotonic()
            self.change(enter, entering=True)
            if self.holder in self._document["members"]:
                break
            # Without progress the number may change once the others are dead.
            if self._document["offsets"] or began > deadline:
                raise ConfigError(
                    f"engines named {self._name} divide the keys into "
                    f"{self._document['partitions']} partitions, this one into {partitions}: give "
                    "all of them the same group "
                    "(without one it is 1), or this one another name"
                )
            time.sleep(self._lease_s / _BEATS)
        self._expires_at = began + self._lease_s * _DOUBT
        self._thread = threading.Thread(target=self._keep, name="tidelog-group", daemon=True)
        self._thread.start()

    @property
    def document(self) -> dict[str, Any]:
        """The last known ``generation``, ``start``, ``members``, ``owners``, ``offsets``."""
        return self._document

    def check(self) -> None:
        """Raise LeaseLostError if others may have our partitions."""
        if self._lost or time.monotonic() > self._expires_at:
            raise LeaseLostError(
                "this engine did not reach the state store in time: others of its name take over; "
                "start it again"
            )

    @property
    def owner(self) -> str | None:
        """The owner of the first partition."""
        owner: str | None = self._document["owners"].get("0")
        return owner

    def owned_partitions(self) -> list[int]:
        return _owned_partitions(self._document, self.holder)

    def target(self) -> list[int]:
        """Return the partitions to own: an equal share of those that are free or ours."""
        return _target_partitions(self._document, self.holder)

    def have_reached(self, offset: int) -> bool:
        """Whether all partitions are committed up to an offset. Raises StateError."""
        document = self._state.get(self._key)
        return document is not None and min(_offsets(document.value)) >= offset

    def rebalance(self) -> None:
        """Take and release partitions until `target` is reached; no event may be in progress."""

        def change(document: dict[str, Any]) -> None:
            target = _target_partitions(document, self.holder)
            owners = document["owners"]
            for partition in _owned_partitions(document, self.holder):
                del owners[str(partition)]
            owners.update({str(partition): self.holder for partition in target})

        self.change(change)

    def change(self, change: Callable[[dict[str, Any]], None], *, entering: bool = False) -> None:
        """Change the document; repeat if another member was faster.

        Raises:
            LeaseLostError: we are no member any more.
            StateError: the store failed.
        """
        while True:
            document = self._state.get(self._key)
            if document is None or not (entering or self.holder in document.value["members"]):
                self._lost = True
                self.check()
            assert document is not None
            value = deepcopy(document.value)
            change(value)
            try:
                self._state.put(self._key, value, document.version)
            except StateConflictError:
                continue
            self._document = value
            return

    def leave(self) -> None:
        """Release everything."""
        self._leaving.set()
        if self._store is None:
            return
        if self._thread is not None:
            self._thread.join()

            def go(document: dict[str, Any]) -> None:
                _remove(document, self.holder)

            with suppress(LeaseLostError, StateError):  # the others take it, or have done so
                self.change(go)
        self._store.close()

    @property
    def _state(self) -> StateStore:
        assert self._store is not None, "join first"
        return self._store

    def _keep(self) -> None:
        while not self._leaving.wait(self._lease_s / _BEATS) and not self._lost:
            began = time.monotonic()
            try:
                self.change(self._beat)
            except StateError:
                continue  # retried until `check` raises
            except LeaseLostError:
                return
            if began < self._expires_at:  # once in doubt, always: it may have been reported
                self._expires_at = began + self._lease_s * _DOUBT

    def _beat(self, document: dict[str, Any]) -> None:
        document["members"][self.holder] += 1
        document["seen_ms"] = unix_ms()  # for people
        self._remove_dead(document)

    def _remove_dead(self, document: dict[str, Any]) -> None:
        now, processes = time.monotonic(), document.setdefault("processes", {})
        for holder, beats in list(document["members"].items()):
            seen, since = self._last_heartbeats.get(holder, (-1, now))
            if seen != beats:
                self._last_heartbeats[holder] = beats, now
            silent = now - since > self._lease_s
            if holder != self.holder and (silent or has_ended(processes.get(holder, {}))):
                _remove(document, holder)


def _remove(document: dict[str, Any], holder: str) -> None:
    document["members"].pop(holder, None)
    document["processes"].pop(holder, None)
    document["owners"] = {
        partition: one for partition, one in document["owners"].items() if one != holder
    }


def _offsets(document: dict[str, Any]) -> list[int]:
    """Return the committed offset of each partition."""
    stored, start = document["offsets"], document["start"]
    return [stored.get(str(each), start) for each in range(document["partitions"])]


def _owned_partitions(document: dict[str, Any], holder: str) -> list[int]:
    return sorted(
        int(partition) for partition, owner in document["owners"].items() if owner == holder
    )


def _target_partitions(document: dict[str, Any], holder: str) -> list[int]:
    members, partitions = sorted(document["members"]), int(document["partitions"])
    owned_partitions = _owned_partitions(document, holder)
    if holder not in members:
        return owned_partitions
    quota = partitions // len(members) + (members.index(holder) < partitions % len(members))
    free = [
        partition for partition in range(partitions) if str(partition) not in document["owners"]
    ]
    return sorted([*owned_partitions, *free][:quota])


class GroupTask(LogTask):
    """A `LogTask` that returns the events of its partitions of the keys, and every truncate.

    A truncate is of all keys: every member returns it once all have committed what comes before,
    and what comes after it once all have committed the truncate.

    Partitions move when all returned events are done and committed, or when their owner's lease has
    expired: so two members never process events of one key at once, unless one was frozen for
    longer.

    Args:
        members: the members of the group.
        partitions: the number of partitions of the keys; at most so many members get any.
    """

    def __init__(
        self,
        path: str,
        name: str,
        members: GroupMembers,
        *,
        partitions: int,
        batch_size: int = BATCH_SIZE,
        steps: Sequence[StepSection] = (),
        starting_offset: StartingOffset = "earliest",
    ) -> None:
        super().__init__(
            path, name, batch_size=batch_size, steps=steps, starting_offset=starting_offset
        )
        self._members, self._partitions = members, partitions
        self._start_offsets: dict[int, int] = {}  # the start offset of each of our partitions
        self._returned_end: int | None = None
        self._committed_end: int | None = None
        self._polled: Events | None = None  # what was not returned yet of the last poll
        self._truncates: list[int] = []  # their versions in it
        self._waits_for = 0  # the offset that all partitions must reach before it is returned
        self._warn_at = math.inf  # `time.monotonic`

    def start(self, cancelled: threading.Event) -> None:
        super().start(cancelled)
        generation = self._open_log().generation
        self._members.join(self._partitions, generation, self._next)
        if self._members.document["generation"] != generation:
            raise EventLogError(
                f"{self._path}: the group {self.name} has offsets of another event log: it was "
                "recreated. Give the engines another name."
            )

    @property
    def has_events(self) -> bool:
        return self._polled is None  # else some wait for the other members

    def poll(self, timeout_s: float) -> Events | None:
        self._members.check()
        if self._members.target() != sorted(self._start_offsets):
            if (
                self._returned_end != self._committed_end
            ):  # first, everything returned is done and committed
                time.sleep(min(timeout_s, 0.01))
                return None
            self._rebalance()
        if not self._start_offsets:
            time.sleep(timeout_s)
            return None
        if self._polled is None:
            polled = super().poll(timeout_s)
            if polled is None:
                return None
            kept = [self._filter_partitions(part) for part in polled.parts]
            self._polled = Events([part for part, _ in kept], polled.end, polled.generation)
            self._truncates = [version for _, found in kept for version in found.tolist()]
        if self._waits_for and not self._members.have_reached(self._waits_for):
            if time.monotonic() > self._warn_at:
                self._warn_at = math.inf
                logger.warning(
                    "engine %s waits at version %d, where a table was truncated: not all members "
                    "have committed the events before it",
                    self.name,
                    self._waits_for,
                )
            time.sleep(max(timeout_s, _OTHERS_S))
            return None
        self._members.check()
        returned = self._next_events(self._polled)
        self._returned_end = returned.end
        return returned

    def _next_events(self, polled: Events) -> Events:
        """Return the events before the next truncate, which may be none, or that truncate."""
        if not self._truncates:
            self._polled, self._waits_for = None, 0
            return polled
        truncate = self._truncates[0]
        self._warn_at = time.monotonic() + _WARN_AFTER_S
        if self._waits_for != truncate:
            self._waits_for = truncate
        else:
            self._truncates.pop(0)
            self._waits_for = truncate + 1
        returned, self._polled = _split(polled, self._waits_for)
        return returned

    def commit(self, offset: int) -> None:
        """Commit an offset. Raises LeaseLostError: other members have these keys by now."""

        def move(document: dict[str, Any]) -> None:
            for partition in self._start_offsets:
                before = document["offsets"].get(str(partition), document["start"])
                document["offsets"][str(partition)] = max(before, offset)

        self._members.change(move)
        self._committed_end = offset
        reached = min(_offsets(self._members.document))
        Consumers(self._open_log().storage).register(self.name, reached, engine=True)

    def stop(self) -> None:
        self._members.leave()

    def _rebalance(self) -> None:
        self._members.rebalance()
        offsets = _offsets(self._members.document)
        self._start_offsets = {each: offsets[each] for each in self._members.owned_partitions()}
        self._returned_end = self._committed_end = self._polled = None
        self._waits_for = 0
        self._reading, self._rest, self._at_head = iter(()), None, False
        if self._start_offsets:
            self._next = self._until = min(self._start_offsets.values())
            self._open_log().segments(self._next)  # raises if retention has removed it

    def _filter_partitions(self, part: EventBatch) -> tuple[EventBatch, Int64s]:
        """Return what this member returns of a batch, and the versions of the truncates in it."""
        partitions = self._partitions_of(part)
        begins = np.full(self._partitions + 1, np.iinfo(np.int64).max)
        for partition, offset in self._start_offsets.items():
            begins[partition] = offset
        begins[-1] = min(self._start_offsets.values())  # of truncates, which every member gets
        kept = part.versions >= begins[partitions]
        truncates = part.versions[kept & (partitions == self._partitions)]
        if kept.all():
            return part, truncates
        filtered = EventBatch(part.schema, part.origin, part.data.filter(pa.array(kept)))
        return filtered, truncates

    def _partitions_of(self, part: EventBatch) -> Int64s:
        table = str(part.schema.table)
        names = part.schema.match_key
        places = [part.schema.column_index(name) for name in names]
        partitions = np.empty(len(part), np.int64)
        for row in range(len(part)):
            if part.value("op", row) == "t":
                partitions[row] = self._partitions
                continue
            before, after = part.value("before", row), part.value("after", row)
            missing = part.value("missing", row) or ()
            key = [table]
            for name, at in zip(names, places, strict=True):
                has_new_value = after is not None and not (before is not None and name in missing)
                key.append(_text((after if has_new_value else before)[at]))
            partitions[row] = (
                zlib.crc32("\0".join(key).encode("utf-8", "surrogatepass")) % self._partitions
            )
        return partitions


def _split(events: Events, version: int) -> tuple[Events, Events]:
    """Return the events below a version, and the others."""
    below, others = [], []
    for part in events.parts:
        at = int(np.searchsorted(part.versions, version))
        below.append(part.slice(0, at))
        others.append(part.slice(at, len(part)))
    return (
        Events(below, version, events.generation),
        Events(others, events.end, events.generation),
    )


def _text(value: Any) -> str:
    """Return one text for all values that a database may treat as one key."""
    if isinstance(value, str):
        folded = value.casefold().rstrip()
        if folded.isascii():
            return folded
        parts = unicodedata.normalize("NFKD", folded)
        return "".join(each for each in parts if not unicodedata.combining(each))
    if isinstance(value, Decimal):
        return str(value.normalize() + 0)
    return str(value + 0.0) if isinstance(value, float) else str(value)


class ExclusiveTask(LogTask):
    """A `LogTask` that returns events while it has its name, a lease in the state store.

    Else it stands by, and resumes where the other has committed. If it can't reach the store in
    time, it raises LeaseLostError for further events and commits.

    Args:
        members: the members of the name, which has one partition.
        log_task: the arguments of `LogTask`.
    """

    def __init__(self, path: str, name: str, members: GroupMembers, **log_task: Any) -> None:
        super().__init__(path, name, **log_task)
        self._members = members
        self._logged_owner: str | None = None
        self._cancelled = threading.Event()

    def start(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled
        self._members.join(1, EventLog.open(self._path).generation, 0)
        self._start_if_owner()

    @property
    def has_events(self) -> bool:
        return self._log is not None

    def poll(self, timeout_s: float) -> Events | None:
        self._members.check()
        if self._log is None and not self._start_if_owner():
            time.sleep(timeout_s)
            return None
        polled = super().poll(timeout_s)
        self._members.check()
        return polled

    def commit(self, offset: int) -> None:
        """Commit an offset. Raises LeaseLostError: another engine has the name by now."""
        self._members.change(lambda _found: None)
        super().commit(offset)

    def committed(self) -> int | None:
        return None if self._log is None else super().committed()

    def stop(self) -> None:
        self._members.leave()

    def _start_if_owner(self) -> bool:
        """Start if we have the name: until then another engine changes the progress."""
        if self._members.target():
            self._members.rebalance()
        if self._members.owned_partitions():
            super().start(self._cancelled)
            return True
        owner = self._members.owner
        if owner is not None and owner != self._logged_owner:
            self._logged_owner = owner
            logger.warning("engine %s stands by: %s has its name", self.name, process_of(owner))
        return False


# The task that captures.

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.02
_STABLE_S: Final = 10.0
_READY: Final = ("leading", "standby")


class CaptureTask:
    """A `tidelog.engine.ports.SourceTask`: a capture, and a reader of its event log.

    It has started when capture leads or stands by: then another process writes the same log. It has
    reached the end when capture has ended by itself (``snapshot: initial_only``) and everything in
    the log was read. If tables are missing then, `stop` raises capture's error: by then all that
    there is was delivered, by this task and the others.

    Args:
        most_retries: how often in a row capture may fail without leading for ten seconds, or
            standing by, in between; -1: without limit.
        on_status: as in `tidelog.Capture`.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        *,
        batch_size: int,
        offsets: OffsetStore | None = None,
        steps: Sequence[StepSection] = (),
        starting_offset: StartingOffset = "earliest",
        exclusive: bool = True,
        group: int | None = None,
        most_retries: int = -1,
        on_status: OnStatus = ignore_status,
    ) -> None:
        self.name = name
        self.capture = Capture(config, on_status=self._on_status)
        self._path = event_log_path(config)
        given: dict[str, Any] = {
            "batch_size": batch_size,
            "steps": steps,
            "starting_offset": starting_offset,
        }
        opened = partial(open_state, config.state.location)
        members = GroupMembers(opened, name, config.renewal_s[0])
        self._reader: LogTask
        if group is not None:
            self._reader = GroupTask(self._path, name, members, partitions=group, **given)
        elif exclusive:
            self._reader = ExclusiveTask(self._path, name, members, offsets=offsets, **given)
        else:
            self._reader = LogTask(self._path, name, offsets=offsets, **given)
        self._most_retries, self._status_callback, self._retries = most_retries, on_status, 0
        self._leading_since = math.inf
        self._ready = False
        self.trouble = ""
        self._role: dict[str, Any] = {}
        self._failure: BaseException | None = None
        self._failed = False
        self._complete = False
        self._incomplete: IncompleteDumpError | None = None
        self._thread: threading.Thread | None = None

    def start(self, cancelled: threading.Event) -> None:
        thread = self._begin()
        while not ((self._ready or self._complete) and EventLog.exists(self._path)):
            self._raise_failure()
            if not thread.is_alive() and not (self._complete and EventLog.exists(self._path)):
                self._raise_failure()
                raise TaskStartError(f"task {self.name}: capture ended before there was a log")
            if cancelled.wait(_POLL_S):
                raise TaskStartError(f"task {self.name} was cancelled during its start")
        self._reader.start(cancelled)

    def poll(self, timeout_s: float) -> Events | None:
        if self._failed:  # the error was raised: try again
            self._failed = False
            self._begin()
        self._raise_failure()
        complete = self._complete  # read before the log: then the log has all there will be
        events = self._reader.poll(timeout_s)
        if events is None and complete and self._reader.has_events:
            raise EndReachedError
        return events

    def committed(self) -> int | None:
        return self._reader.committed()

    def commit(self, offset: int) -> None:
        self._reader.commit(offset)

    def stop(self) -> None:
        """Stop. What capture has read is durable when this returns."""
        self.capture.stop()
        if self._thread is not None:
            self._thread.join()
        self._reader.stop()
        self._raise_failure()
        if self._incomplete is not None:
            raise self._incomplete

    def _raise_failure(self) -> None:
        """Raise the failure once: `stop` does not raise it again."""
        failure, self._failure = self._failure, None
        if failure is not None:
            self._failed = True
            raise failure

    def _begin(self) -> threading.Thread:
        name = f"tidelog-capture-{self.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        return self._thread

    def _run(self) -> None:
        try:
            self.capture.run()
            self._complete = not self.capture.stopping
        except IncompleteDumpError as error:
            # Raised now, it would prevent the delivery of the rest, at every start.
            self._incomplete, self._complete = error, True
        except BaseException as error:  # noqa: BLE001 - raised by the next call
            self._failure = error

    def _on_status(self, status: dict[str, Any]) -> None:
        role = status.get("role")
        if role is not None:
            self._role = {"role": role, "reason": status.get("reason", "")}
        self._ready = self._ready or role in _READY
        self.trouble = str(status.get("reason", "")) if role == "retrying" else ""
        if role == "standby":
            self._retries = 0
        elif role == "leading":
            self._leading_since = time.monotonic()
        elif role == "retrying":
            led_s = time.monotonic() - self._leading_since
            self._leading_since = math.inf
            self._retries = 1 if led_s >= _STABLE_S else self._retries + 1
            if 0 <= self._most_retries < self._retries and not self.capture.stopping:
                self.capture.stop()  # no more retries
                self._failure = SourceError(
                    f"capture failed {self._retries} times in a row (errors_max_retries: "
                    f"{self._most_retries}), the last time: {self.trouble}"
                )
        try:
            refuse_coroutine(self._status_callback({**self._role, **status}))
        except Exception as error:  # noqa: BLE001 - as of every callback
            logger.error("on_status raised %s", type(error).__name__)
