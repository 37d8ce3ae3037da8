"""Recovers what is missing: after a gap in the source's log, and rows of given keys."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from tidelog.app.base.elections import LEASE_NAME
from tidelog.app.base.log_location import event_log_path
from tidelog.app.overview.remote_control import dump_wait, send_command
from tidelog.app.sources.keys import key_scope, missing_keys, store_keys
from tidelog.app.sources.kinds import source_kind
from tidelog.capture.log_guard import GIVEN_UP_KEY, with_its_cause
from tidelog.capture.session.start import CONSENT_KEY, GAP_KEY, GENERATION_KEY, STATUS_KEY
from tidelog.config import AnyConfig, Config, as_config
from tidelog.control.commands import Key, StartDump, build_command
from tidelog.control.mailbox import new_id
from tidelog.errors import (
    GapError,
    LogResetError,
    TidelogError,
    UsageError,
    WaitTimeoutError,
)
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.records import Resume
from tidelog.model.schema import TableSchema
from tidelog.ports import LogReader, StateStore, TableShape, UnsupportedReason
from tidelog.results import KeyRepair, NotDumped, ResetPlan
from tidelog.state.opening import ReadOnlyStateStore, open_election, open_state
from tidelog.system.processes import unix_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# A gap in the source's log, once the user accepts it.

logger = logging.getLogger(__name__)

CONSENT_S: Final = 600.0
"""How long after a start `tidelog reset` is valid: what breaks the log is read soon."""
PASSED_KEY: Final = "log-gap-passed"
"""Key of the time when a capture last resumed after a gap."""


class Gaps:
    """The gaps of one capture, over all its leaderships.

    Args:
        dumps_again: returns whether the configuration allows to dump again what was missed.
    """

    def __init__(self, dumps_again: Callable[[], bool]) -> None:
        self._dumps_again = dumps_again
        self._consent_until = 0.0
        self._streaming = False
        self._pending_gap: GapError | None = None
        self.accepted_ms: int | None = None
        """When a capture last resumed after a gap; None: never."""

    def accept(self, gap: GapError) -> None:
        """Accept a gap that was found during reading, so that the next session resumes after it.
        Raises the GapError unless the user has consented.
        """
        if not (self._consented() and self._streaming):
            raise gap
        self._pending_gap = gap

    def start(self, state: StateStore, reader: LogReader, writer: EventLogWriter) -> Resume:
        """Find the position at which the log resumes; after a gap, if the user has consented.
        Raises GapError, LogResetError.
        """
        self._streaming, gap, self._pending_gap = False, self._pending_gap, None
        passed = state.get(PASSED_KEY)
        self.accepted_ms = None if passed is None else int(passed.value["at_ms"])
        if state.get(CONSENT_KEY) is not None:
            self._consent_until = time.monotonic() + CONSENT_S
        try:
            if gap is not None:
                raise gap
            start = reader.start(writer.resume)
        except (GapError, LogResetError) as error:
            asked = isinstance(error, LogResetError)  # copies may have what the source lost
            if not self._consented(asked=asked) or writer.resume is None:
                cause = with_its_cause(error, state) if isinstance(error, GapError) else error
                raise cause from None
            logger.warning("all tables are dumped again, because changes were missed: %s", error)
            start = self._resume_after_gap(writer.resume, state, reader, writer)
        else:
            writer.source = reader.identify()
            if start != writer.resume:  # the first one, or one of another server
                writer.append_position(start)
        state.delete(CONSENT_KEY)  # the consent was for this start
        state.delete(GIVEN_UP_KEY)
        self._streaming = True
        return start

    def _resume_after_gap(
        self, missed: Resume, state: StateStore, reader: LogReader, writer: EventLogWriter
    ) -> Resume:
        state.put(GAP_KEY, writer.next_offset, None)
        start = reader.start_over(missed)
        # What was appended stays appended: the log's end never moves backward.
        start = reader.start(replace(start, position=missed.position, ordinal=missed.ordinal))
        writer.source = reader.identify()
        self.accepted_ms = unix_ms()
        state.put(PASSED_KEY, {"at_ms": self.accepted_ms}, None)
        writer.append_control({"type": "gap", "from": missed.acknowledge, "to": start.acknowledge})
        writer.append_position(start)
        self._consent_until = 0.0
        return start

    def _consented(self, *, asked: bool = False) -> bool:
        """Return whether what was missed may be dumped again; ``asked``: only if a user said so."""
        return (not asked and self._dumps_again()) or time.monotonic() < self._consent_until


def reset_plan(config: Config) -> ResetPlan:
    """Return what `reset` would lead to; reads the source's tables, and changes nothing.

    Raises:
        UsageError: a capture leads, or nothing was ever captured.
    """
    log_exists = EventLog.exists(event_log_path(config))
    with closing(ReadOnlyStateStore(config.state.location)) as state:
        if not log_exists and state.get(GENERATION_KEY) is None:
            raise UsageError(
                f"{event_log_path(config)} holds no event log: there is nothing to reset"
            )
        if (leader := _leader(config) if state.exists else None) is not None:
            raise UsageError(
                f"{leader} leads: stop capture first, and its standbys. A capture that "
                "leads has no gap"
            )
        status = state.get(STATUS_KEY)
    last_us = 0 if status is None else (status.value.get("capture") or {}).get("last_commit_ts", 0)
    with closing(source_kind(config).catalogue()) as catalogue:
        tables = sorted(catalogue.tables(config.source.tables), key=str)
        shapes = catalogue.shapes(tables)
    reasons = {str(table): _reason_not_dumped(shapes.get(table)) for table in tables}
    return ResetPlan(
        event_log_path(config),
        log_exists,
        captured_until_ms=last_us // 1000 or None,
        tables=tuple(table for table, reason in reasons.items() if reason is None),
        not_dumped=tuple(
            NotDumped(table, reason) for table, reason in reasons.items() if reason is not None
        ),
    )


def _leader(config: Config) -> str | None:
    with closing(open_election(config.state.location, LEASE_NAME, "reset", 10)) as election:
        return election.leader()


def _reason_not_dumped(shape: TableShape | UnsupportedReason | None) -> str | None:
    """Return why no dump can read the table; None: a dump can."""
    if isinstance(shape, UnsupportedReason):
        return shape.reason
    if shape is None:
        return "the table is gone"
    return None


def reset(config: Config) -> None:
    """Allow the next leader to resume after a gap, if there is one.

    It records the gap in the event log, and dumps all tables again that a dump can read. If the
    event log is lost, it creates a new one. Raises UsageError as `reset_plan` does.
    """
    reset_plan(config)
    with closing(open_state(config.state.location)) as state:
        state.put(CONSENT_KEY, {"at_ms": unix_ms()}, None)


# Rows of given keys, from any Spark DataFrame.

COMMAND_TIMEOUT_S = 10.0


def repair(
    df: DataFrame,
    config: AnyConfig,
    table: str,
    *,
    missing: Literal["delete", "list"] = "delete",
    wait: bool = True,
    timeout_s: float | None = None,
) -> KeyRepair:
    """Dump the rows of ``table`` whose keys are in ``df``, while the log is read on.

    Every output then has these rows as the source has them, also if it had lost, doubled or changed
    them.

    Example:
        ::

            lake = spark.read.format("delta").load("/data/lake/public/orders")
            done = tidelog.repair(lake.where("total < 0"), "tidelog.yaml", "public.orders")
            assert done.status == "completed"

    Executors turn the keys into texts and drop duplicates; the driver fetches slices of 250,000 and
    writes them to the state store, where the leading capture reads them 10,000 at a time. So the
    memory of neither grows with their number.

    Args:
        df: a batch DataFrame with the table's key columns, by name; other columns are ignored.
            Values are compared in the source: ``1`` finds ``1.00``. Timestamps are in UTC.
        config: a configuration, or the path of a ``tidelog.yaml``.
        table: one captured table, ``namespace.name``.
        missing: what to do with keys that are not in the table: ``delete``: outputs delete them;
            ``list``: only return them.
        wait: whether to wait until the dump has ended; it is in the event log then. For the
            outputs, see `tidelog.app.wait_delivered`.
        timeout_s: the longest time to wait; None: for ever. The dump continues after it.

    Raises:
        UsageError: ``table`` is not one captured table with a key; ``df`` lacks a key column; rows
            have NULL in the key; with ``delete``, a key has the value of PostgreSQL's infinite
            dates in Spark: if the table did not have that very date, the infinite row's copy would
            be deleted.
        TidelogError: ``timeout_s`` has passed.
    """
    from tidelog.spark.changed_keys import keys_of_frame

    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    config = as_config(config)
    scope = key_scope(config, [table])
    columns = scope.columns_among(df.columns)
    keys = (
        _to_source_key(key, scope.schema, columns, sure=missing == "list")
        for key in keys_of_frame(df, columns)
    )
    name, count = store_keys(config, keys, distinct=True)
    if not count:
        return KeyRepair(None, "completed", 0)
    dump_id = f"repair-{new_id().lower()}"
    data = {"tables": (str(scope.table),), "key_set": name, "key_columns": columns}
    command = build_command(StartDump, {"dump_id": dump_id, "missing": missing, **data})
    until = deadline - time.monotonic() if wait else COMMAND_TIMEOUT_S
    outcome = send_command(config, command, timeout_s=until)
    if outcome.error is not None:
        raise (UsageError if outcome.usage else TidelogError)(outcome.error)
    waiting = outcome.state == "waiting"
    if not wait:
        return KeyRepair(dump_id, "waiting" if waiting else "queued", count)
    if waiting:
        raise WaitTimeoutError(
            f"no capture has handled dump {dump_id} within {timeout_s:g} s; the next one that "
            "leads will"
        )
    left = None if timeout_s is None else max(0.0, deadline - time.monotonic())
    dump = dump_wait(config, dump_id, timeout_s=left)
    absent = tuple(missing_keys(config, dump_id)) if missing == "list" else None
    return KeyRepair(dump_id, dump.status, count, dump, absent)


def _to_source_key(key: Key, schema: TableSchema, columns: Sequence[str], *, sure: bool) -> Key:
    """Return the key in the source's form; ``sure``: nothing is deleted by it."""
    from tidelog.codecs.wire_formats import source_spellings

    spelled = source_spellings(key, schema, columns)
    if len(spelled) > 1 and not sure:
        raise UsageError(
            f"a key of {schema.table} holds the last or the first day, which in Spark may be "
            "infinity or -infinity as well: name such keys in a file (--keys-file), or "
            "give missing='list'"
        )
    return tuple(part for part in spelled[0] if part is not None)  # none is: `keys_of_frame`
