"""Capture of one source: the adapters put together for one leadership after the other."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidelog.app.alerts import Alerts, open_alerts
from tidelog.app.channels import Channels
from tidelog.app.elections import LEASE_NAME, CaptureElection, leader_of, leader_url
from tidelog.app.log_location import log_place
from tidelog.app.notify import OnNotification
from tidelog.app.roster import Roster, this_holder
from tidelog.app.serve import Serving, open_rest
from tidelog.app.sources.kinds import source_kind
from tidelog.app.sources.snapshots import snapshotter_of
from tidelog.app.state_copy import check_whole
from tidelog.app.status_feed import OnStatus, ignore
from tidelog.app.table_patterns import unmatched
from tidelog.app.upkeep import Upkeep
from tidelog.capture.catalogue_watch import CatalogueWatch
from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.capture.engine import CaptureEngine, CaptureOptions
from tidelog.capture.farewell import end_later
from tidelog.capture.leadership import Leader, LeasedState, LeaseKeeper, lead
from tidelog.capture.refused_tables import RefusedTables, RefusingCatalogue
from tidelog.capture.session import (
    CONSENT_KEY,
    GAP_KEY,
    INITIAL_DUMP,
    START_DUMP,
    STATUS_KEY,
    AtStart,
    CaptureSession,
    Housekeeping,
)
from tidelog.capture.windows.windows import Windows
from tidelog.config import Config, load_config
from tidelog.config.databases import of_one_database
from tidelog.control.commands import Command, HandOver
from tidelog.control.mailbox import Mailbox, Outcome, new_id
from tidelog.errors import GapError, TidelogError
from tidelog.eventlog.emitted import EmittedTransactions
from tidelog.eventlog.led_by import claim
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.dump_options import DumpOptions
from tidelog.model.records import Resume
from tidelog.ports import (
    CatalogueChanged,
    LogReader,
    RelationNamed,
    RowsUnlogged,
    SchemaSeen,
    StateStore,
    TableRefused,
)
from tidelog.state.opening import fenced, look_every_s, open_state

logger = logging.getLogger(__name__)

CONSENT_S = 600.0
"""How long after a start `tidelog reset` holds: what breaks the log is read at once, or soon."""
STATUS_MARGIN = 1 << 40  # far more than is written between two status documents


class Capture:
    """Log capture and dumps of one source, for embedding or for the command line.

    Args:
        config: of `tidelog.config`, or the path of a ``tidelog.yaml``.
        on_notification: told what dumps do, on a thread of its own.
    """

    def __init__(
        self, config: Config | str | Path, *, on_notification: OnNotification | None = None
    ) -> None:
        self.config = of_one_database(config if isinstance(config, Config) else load_config(config))
        self.holder = this_holder()
        self._start_dump: str | None = None
        self._asked = False
        self._consent_until = 0.0
        self._streaming = False
        self._gap: GapError | None = None
        self._snapshotter = snapshotter_of(self.config.source)
        self._callbacks = () if on_notification is None else (on_notification,)

    def send(self, command: Command, *, timeout_s: float = 10.0) -> Outcome | None:
        """Give a command to whichever capture of this configuration leads; None: it waits still."""
        state = open_state(self.config.state.place)
        try:
            mailbox = Mailbox(state)
            return mailbox.wait(mailbox.send(command), timeout_s)
        finally:
            state.close()

    def run(self, stop: threading.Event, on_status: OnStatus = ignore) -> None:
        """Lead, or stand by while another process does, until ``stop``.

        Raises:
            TidelogError: what needs a person; see docs/failure-modes.md.
        """
        config = self.config
        source_kind(config).prepare()
        state = open_state(config.state.place)
        _, every_s = config.renewal_s
        election = CaptureElection(config, self.holder, config.capture.handicap_s, state)

        roster = Roster(state, self.holder, config.capture.zone, url=self._url)

        def on_state(name: str, reason: str) -> None:
            if name == "standby":
                roster.stand_by()
            elif name == "retrying":
                roster.stand_by(trouble=reason)
            elif name == "leading":
                roster.leave()
            on_status({"role": name, "reason": reason, "leader": leader_of(election)})

        def open_session(keeper: LeaseKeeper) -> CaptureSession:
            assert rest is not None
            return self._open_session(state, keeper, on_status, rest, election)

        rest: Serving | None = None
        alerts: Alerts | None = None
        try:
            alerts = open_alerts(config, state, self.holder)
            alerts.start()
            rest = open_rest(config, election.leader, lambda: leader_url(state, election))
            rest.start()
            while True:
                try:
                    lead(election, open_session, stop, renew_every_s=every_s, on_state=on_state)
                    return
                except GapError as error:
                    # Found while the log was read: the next session begins behind it.
                    if not (self._consented and self._streaming):
                        raise
                    self._gap = error
        finally:
            if alerts is not None:
                alerts.close()
            if rest is not None:
                rest.close()
            roster.leave()
            election.close()
            state.close()

    def _open_session(
        self,
        store: StateStore,
        keeper: LeaseKeeper,
        on_status: OnStatus,
        rest: Serving,
        election: CaptureElection,
    ) -> CaptureSession:
        config, source = self.config, self.config.source
        check_whole(store)
        state = LeasedState(fenced(store, LEASE_NAME, keeper.lease.epoch), keeper.check)
        path = log_place(config)
        log = EventLog.open(path) if EventLog.exists(path) else None
        registry = SchemaStore(path)
        kind = source_kind(config)
        reader = kind.log_reader(registry, state, None if log is None else log.captured_from)
        identity = reader.identify()
        epoch = keeper.lease.epoch
        if log is not None:  # before the fence: it would shut out whom this is to spare
            claim(log.storage, log.generation, state, self._store)
        writer = EventLogWriter.create(
            path,
            identity,
            epoch,
            start_offset=_start_offset(state),
            check_lease=keeper.check,
            schemas=registry,
        )
        if log is None:
            log = EventLog.open(path)
            claim(log.storage, log.generation, state, self._store)
        reader.belongs_to(log.generation, log.last_transaction)
        begin = self._begin(state, reader, writer)
        parts = kind.parts(registry)
        options = CaptureOptions(
            flush_bytes=config.capture.flush_bytes,
            flush_s=config.capture.flush_ms / 1000,
            buffer_bytes=config.capture.buffer_bytes,
        )
        windows = Windows(
            parts.keys,
            registry.get,
            retain_bytes=options.retain_bytes,
            journal_entries=options.journal_entries,
        )
        channels = Channels(config, state, identity, self._callbacks)
        refused = RefusedTables(state, channels.notify)
        catalogue = RefusingCatalogue(parts.catalogue, refused)
        coordinator = DumpCoordinator(
            open_reader=parts.open_reader,
            open_blocking=parts.open_blocking,
            catalogue=catalogue,
            refused=refused,
            keys=parts.keys,
            state=state,
            options=_dump_options(config),
            notify=channels.notify,
        )
        session: CaptureSession | None = None

        def on_schema(seen: SchemaSeen) -> None:
            if session is not None:
                session.on_schema(seen)

        def on_unlogged(seen: RowsUnlogged | RelationNamed | CatalogueChanged) -> None:
            if session is not None:
                session.on_unlogged(seen)

        def on_refused(seen: TableRefused) -> None:
            if session is not None:
                session.on_refused(seen)

        engine = CaptureEngine(
            reader=reader,
            windows=windows,
            coordinator=coordinator,
            log=writer,
            emitted=EmittedTransactions(log),
            resume=begin,
            options=options,
            on_schema=on_schema,
            on_signals=channels.on_signals,
            on_unlogged=on_unlogged,
            on_refused=on_refused,
        )

        upkeep = Upkeep(
            config,
            log,
            # Kept from round to round: it remembers what the segments hold.
            EventLogMaintenance(log.storage, keeper.check),
            state=state,
            mailbox=channels.mailbox,
            coordinator=coordinator,
            segments=lambda: engine.progress().segments,
        )

        def close() -> None:
            rest.stand_by()
            channels.close()
            writer.close()

        def hand_over(command: HandOver) -> dict[str, Any]:
            assert session is not None
            if command.leader == self.holder:
                election.hand_over(command.to)
                end_later(session.end, keeper.announce)
            return {"leader": self.holder}

        self._tell_unmatched(catalogue)
        snapshot_reader = parts.open_reader()
        session = CaptureSession(
            engine=engine,
            coordinator=coordinator,
            reader=reader,
            catalogue=catalogue,
            snapshot_reader=snapshot_reader,
            refused=refused,
            state=state,
            housekeeping=Housekeeping(
                commands=channels.act,
                maintain=upkeep.act,
                on_status=on_status,
                look_every_s=look_every_s(config.state.place),
            ),
            watch=lambda request_dump: CatalogueWatch(
                parts.catalogue,
                state,
                source.tables,
                refused=refused,
                publish=parts.publish,
                snapshot=snapshot_reader.current_snapshot,
                request_dump=request_dump,
                dump_new=self._snapshotter.should_snapshot_new_tables(),
                who_is_open=parts.who_is_open,
            ),
            patterns=source.tables,
            chunks=((meta.first, chunk) for meta, chunk in log.chunks()),
            at_start=AtStart(
                dump=self._dump_at_start,
                then_end=not self._snapshotter.should_stream(),
                mode=source.snapshot_mode,
            ),
            leader=Leader(
                self.holder, epoch, config.capture.zone, int(time.time() * 1000), self._url
            ),
            generation=log.generation,
            close_log=close,
        )
        try:
            channels.open(coordinator, catalogue, session.status, engine.append_control, hand_over)
            rest.lead(channels.surface)
        except BaseException:
            session.close()
            raise
        return session

    def _begin(self, state: StateStore, reader: LogReader, writer: EventLogWriter) -> Resume:
        """Where the log goes on; behind a gap, if the user has consented to dump again."""
        self._streaming, gap, self._gap = False, self._gap, None
        if state.get(CONSENT_KEY) is not None:
            self._consent_until = time.monotonic() + CONSENT_S
        try:
            if gap is not None:
                raise gap
            begin = reader.start(writer.resume)
        except GapError as error:
            if not self._consented or writer.resume is None:
                raise
            logger.warning("all tables are dumped again, because changes were missed: %s", error)
            missed = writer.resume
            state.put(GAP_KEY, writer.next_offset, None)
            begin = reader.start_over(missed)
            # What was appended stays appended: the log's end never moves backward.
            begin = reader.start(replace(begin, position=missed.position, ordinal=missed.ordinal))
            writer.append_control(
                {"type": "gap", "from": missed.acknowledge, "to": begin.acknowledge}
            )
            writer.append_position(begin)
            self._consent_until = 0.0
        else:
            if writer.resume is None:
                writer.append_position(begin)
        state.delete(CONSENT_KEY)  # it was given for this start
        self._streaming = True
        return begin

    def _dump_at_start(self, begun: bool, unfinished: bool) -> str | None:
        """A lost connection or lease is no start: the same dump is asked for again."""
        asked, self._asked = self._asked, True
        if not asked and self._snapshotter.should_snapshot(begun, unfinished):
            first = not begun and self.config.source.snapshot != "always"
            self._start_dump = INITIAL_DUMP if first else START_DUMP + new_id().lower()
        return self._start_dump

    def _tell_unmatched(self, catalogue: RefusingCatalogue) -> None:
        """Patterns that name no table: one is misspelled perhaps, or its tables are yet to come."""
        try:
            lost = unmatched(self.config.source.tables, catalogue)
        except TidelogError:
            return  # what needs the catalogue next will tell
        for pattern in lost:
            logger.warning(
                "source.tables: no table matches %r; one that is created later is captured", pattern
            )

    @property
    def _url(self) -> str | None:
        rest = self.config.control.rest
        return None if rest is None else rest.url

    @property
    def _store(self) -> str:
        """For people: the kind of state store, and which host asks."""
        return f"{self.config.state.place.reveal().partition(':')[0]} as of {self.holder}"

    @property
    def _consented(self) -> bool:
        """May what was missed be dumped again?"""
        on_gap = self._snapshotter.should_snapshot_on_gap()
        return on_gap or time.monotonic() < self._consent_until


def _dump_options(config: Config) -> DumpOptions:
    dump = config.dump
    return DumpOptions(**{name: getattr(dump, name) for name in DumpOptions.model_fields})


def _start_offset(state: StateStore) -> int:
    """Where a new log begins: above every version that one before it may have issued."""
    status = state.get(STATUS_KEY)
    if status is None:
        return 0
    issued: int = status.value["capture"]["next_offset"]
    return issued + STATUS_MARGIN if issued else 0


def capture(config: Config, *, on_status: OnStatus = ignore, stop_event: threading.Event) -> None:
    """Capture alone, until ``stop_event``."""
    Capture(config).run(stop_event, on_status)
