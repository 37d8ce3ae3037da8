"""Captures one source: connects the adapters for each leadership."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tidelog.app.base.channels import Channels, check_channels
from tidelog.app.base.elections import LEASE_NAME, CaptureElection, leader_of, leader_url
from tidelog.app.base.instances import InstanceRegistration, this_holder
from tidelog.app.base.last_results import CAPTURE, storing_end
from tidelog.app.base.log_location import (
    check_local_paths,
    event_log_path,
    issued_offset_future,
    read_at_startup,
    retry_until_available,
    start_offset,
)
from tidelog.app.base.service import BackgroundService
from tidelog.app.base.state_copy import check_whole
from tidelog.app.base.table_patterns import check_exclusions, log_unmatched
from tidelog.app.capture.maintenance import LogMaintenanceTask, SourceCheck
from tidelog.app.capture.recovery import PASSED_KEY, Gaps
from tidelog.app.capture.standby import Readiness, StandbyLogPoller
from tidelog.app.overview.alerts import Alerts, open_alerts
from tidelog.app.overview.remote_control import OnStatus, ignore_status
from tidelog.app.sources.kinds import SourceKind, SourceParts, snapshotter_of, source_kind
from tidelog.app.web.http_server import Services, open_services
from tidelog.capture.activity import ACTIVITY_KEY, Activity, CountingAppender
from tidelog.capture.capture_scope import RELATIONS_KEY, RENAMED_KEY, SCOPE_KEY, CaptureScope
from tidelog.capture.catalogue_watch import SHAPES_KEY, CatalogueWatch
from tidelog.capture.dump_gate import DumpGate
from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.capture.dumps.refetch_queue import REFETCH_KEY
from tidelog.capture.dumps.store import DUMP_PREFIX, OPTIONS_KEY
from tidelog.capture.leadership import Leader, LeaseKeeper, end_later, lead
from tidelog.capture.log_guard import GIVEN_UP_KEY, LogGuard, WhenLogInDanger
from tidelog.capture.notifications import Notify
from tidelog.capture.pauses import LOG_KEY, ReadingPause
from tidelog.capture.session.loop import CaptureLoop, CaptureOptions
from tidelog.capture.session.session import CaptureSession, SessionMaintenance, SourceConnections
from tidelog.capture.session.start import (
    CONSENT_KEY,
    GAP_KEY,
    GENERATION_KEY,
    INITIAL_DUMP,
    START_DUMP,
    STATUS_KEY,
    StartPlan,
    StatusStore,
    check_lost,
)
from tidelog.capture.state_writes import LeasedState, RetryingStateStore
from tidelog.capture.unsupported_tables import REFUSED_KEY, CheckingCatalogue, UnsupportedTables
from tidelog.capture.windows import Windows
from tidelog.config import AnyConfig, Config, as_config
from tidelog.config.loading import one_database_config
from tidelog.control.channels.notifier import OnNotification
from tidelog.control.commands import Command, Handover
from tidelog.control.mailbox import Mailbox, Outcome, new_id
from tidelog.errors import GapError, UsageError
from tidelog.eventlog.log_files import STORE_KEY, claim_log
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EmittedTransactions, EventLog
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.storage_port import answers
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.dump_options import DumpOptions
from tidelog.model.option_values import is_url
from tidelog.model.records import ChunkMeta, Resume, Snapshot
from tidelog.model.schema import TableName
from tidelog.ports import Catalogue, LogReader, SourceId, StateStore
from tidelog.state.opening import (
    MeteredStateStore,
    PrefetchingStateStore,
    fenced,
    open_state,
    pays_per_request,
    poll_interval_s,
)
from tidelog.system.callbacks import refuse_coroutine_function
from tidelog.system.compilation import compilations
from tidelog.system.processes import unix_ms

KEYS: Final = (
    STORE_KEY, PASSED_KEY, CONSENT_KEY, GIVEN_UP_KEY, ACTIVITY_KEY, REFUSED_KEY, LOG_KEY,
    GENERATION_KEY, OPTIONS_KEY, REFETCH_KEY, SHAPES_KEY, SCOPE_KEY, GAP_KEY, RELATIONS_KEY,
    RENAMED_KEY, STATUS_KEY,
)  # fmt: skip


def prefetch_start_state(state: StateStore, config: Config, kind: SourceKind) -> StateStore:
    """Return ``state``, with the documents prefetched that a start reads."""
    if not pays_per_request(config.state.location):
        return state
    of_source: Sequence[str] = getattr(kind, "state_keys", ())  # a plugin may not have it
    return PrefetchingStateStore(state, (*KEYS, *of_source), [DUMP_PREFIX, f"{REFETCH_KEY}/"])


IDLE_POSITION_S = 60.0
"""Between two positions without records, in a log on an object store: each costs requests, here and
of all who read.
"""


def capture_options(config: Config) -> CaptureOptions:
    """Return the options of the section `capture`."""
    capture = config.capture
    options = CaptureOptions(
        flush_bytes=capture.flush_bytes,
        flush_s=capture.flush_ms / 1000,
        buffer_bytes=capture.buffer_bytes,
        read_bytes_per_s=capture.read_bytes_per_second,
    )
    paid = is_url(config.log.path)
    return replace(options, idle_position_s=IDLE_POSITION_S) if paid else options


def dump_options(config: Config) -> DumpOptions:
    """Return the options of the section `dump`, which a dump's own options override."""
    dump = config.dump
    return DumpOptions(**{name: getattr(dump, name) for name in DumpOptions.model_fields})


@dataclass(frozen=True, slots=True)
class OpenLogs:
    """The source's log and the event log, as a new leader has opened them."""

    reader: LogReader
    identity: SourceId
    registry: SchemaStore
    event_log: EventLog
    writer: EventLogWriter
    resume: Resume


@dataclass(frozen=True, slots=True)
class CaptureLeadership:
    """`tidelog.capture.session.session.SessionLeadership` of this process.

    Attributes:
        leader, status_store: of `tidelog.capture.session.session.SessionLeadership`.
        election, keeper: gave the lease, and renew it.
        state: counts requests to the state store.
        logs: the source's log and the event log.
        parts: the other parts of the source.
        channels: of signals, commands and notifications.
        serving: the HTTP interface.
        source_check: runs while this process leads.
        gaps: knows when a gap in the log was accepted.
    """

    leader: Leader
    election: CaptureElection
    keeper: LeaseKeeper
    state: MeteredStateStore
    status_store: StatusStore
    logs: OpenLogs
    parts: SourceParts
    channels: Channels
    serving: Services
    source_check: SourceCheck
    gaps: Gaps

    @property
    def generation(self) -> str:
        return self.logs.event_log.generation

    def chunks(self) -> Iterator[tuple[int, ChunkMeta]]:
        return ((meta.first, chunk) for meta, chunk in self.logs.event_log.chunks())

    def holds(self, offset: int) -> bool:
        return self.logs.event_log.holds(offset)

    def problems(self) -> dict[str, Any]:
        channels = [*self.channels.problems(), *self.serving.problems()]
        return {"channels": channels, **self.source_check.summary()}

    def begin(
        self, session: CaptureSession, catalogue: Catalogue, reading_pause: ReadingPause
    ) -> None:
        """Pass signals and commands to the session, and check the source from time to time."""
        self.channels.open(
            session.coordinator,
            catalogue,
            partial(self._status, session),
            session.loop.append_control,
            partial(self._hand_over, session),
            reading_pause,
        )
        self.serving.lead(self.channels.surface)
        self.source_check.begin()

    def _status(self, session: CaptureSession) -> dict[str, Any]:
        more = {"state": self.state.summary(), "lease": self.keeper.summary()}
        return {**session.status(), **more, "gap": {"at_ms": self.gaps.accepted_ms}}

    def _hand_over(self, session: CaptureSession, command: Handover) -> dict[str, Any]:
        if command.leader == self.leader.holder:
            self.election.hand_over(command.to)
            end_later(session.end, self.keeper.announce)
        return {"leader": self.leader.holder}

    def forget_log(self) -> None:
        self.keeper.check()
        self.parts.forget_log()

    def release_lease(self) -> None:
        self.serving.stand_by()
        self.keeper.release()

    def close(self) -> None:
        self.serving.stand_by()
        self.source_check.end()
        self.channels.close()
        self.logs.writer.close()


class Capture(BackgroundService):
    """Captures one source's log, and dumps its tables. Leads, or stands by while another process
    leads.

    Example:
        ``with Capture("tidelog.yaml") as capture: capture.wait()``

    Args:
        config: a configuration, the path of a ``tidelog.yaml``, or the contents of one.
        on_notification: called with what dumps report, on a thread of its own; no coroutine
            function.
        on_status: called about once a second with the document that `tidelog status` shows; no
            coroutine function.
        stop_event: ends it when set, as `stop` does; for several that end together.
    """

    def __init__(
        self,
        config: AnyConfig,
        *,
        on_notification: OnNotification | None = None,
        on_status: OnStatus | None = None,
        stop_event: threading.Event | None = None,
    ) -> None:
        super().__init__("tidelog-capture", stop_event)
        refuse_coroutine_function("on_notification", on_notification)
        refuse_coroutine_function("on_status", on_status)
        self.config = one_database_config(as_config(config))
        self.holder = this_holder()
        self._start_dump: str | None = None
        self._start_dump_requested = False
        self._snapshotter = snapshotter_of(self.config.source)
        self._source_check = SourceCheck(lambda: source_kind(self.config).check())
        self._gaps = Gaps(self._snapshotter.should_snapshot_on_gap)
        self._callbacks = () if on_notification is None else (on_notification,)
        self._on_status = on_status or ignore_status

    def send(self, command: Command, *, timeout_s: float = 10.0) -> Outcome | None:
        """Give a command to whichever capture of this configuration leads; None: it waits still."""
        if not isinstance(command, Command):
            raise UsageError(
                f"send takes a command of tidelog.commands, such as StartDump, not {command!r:.80}"
            )
        with closing(open_state(self.config.state.location)) as state:
            mailbox = Mailbox(state)
            return mailbox.wait(mailbox.send(command), timeout_s)

    def _run(self, stop: threading.Event) -> None:
        with storing_end(self.config, CAPTURE):
            self._capture(stop)

    def _capture(self, stop: threading.Event) -> None:
        config, on_status = self.config, self._on_status
        check_channels(config)
        check_local_paths(config)
        state = open_state(config.state.location)
        _, every_s = config.renewal_s
        log_handle = StandbyLogPoller(event_log_path(config), lambda: election.release_announced)
        election = CaptureElection(
            config,
            self.holder,
            config.capture.handicap_s,
            state,
            newest_epoch=log_handle.newest_epoch,
        )
        readiness = Readiness(
            lambda: source_kind(config).reach(), lambda: read_at_startup(config, state), stop
        )
        registration = InstanceRegistration(state, self.holder, config.capture.zone, url=self._url)

        registration.start("capture")

        def on_state(name: str, reason: str) -> None:
            for standby_work in (log_handle, readiness):
                standby_work.stand_by(name == "standby")
            if name == "standby":
                registration.stand_by(trouble=readiness.trouble)
            elif name == "retrying":
                registration.stand_by(trouble=reason)
            elif name == "leading":
                registration.leave(later=True)
            on_status({"role": name, "reason": reason, "leader": leader_of(election)})

        def open_session(keeper: LeaseKeeper) -> CaptureSession:
            assert serving is not None
            for standby_work in (log_handle, readiness):
                standby_work.stand_by(False)
            return self._open_session(state, keeper, on_status, serving, election, log_handle)

        def is_ready() -> bool:
            return read_at_startup(config, state) or check_lost(state, event_log_path(config))

        serving: Services | None = None
        alerts: Alerts | None = None
        try:
            compilations()  # reports them from here on
            source_kind(config).prepare()  # may compile: a quarter of a minute
            alerts = open_alerts(config, state, self.holder)
            alerts.start()
            serving = open_services(
                config, self.holder, election.leader, lambda: leader_url(state, election)
            )
            serving.start()
            with log_handle, readiness:
                if not retry_until_available(is_ready, stop, on_state):
                    return
                while True:
                    try:
                        lead(
                            election,
                            open_session,
                            stop,
                            renew_every_s=every_s,
                            on_state=on_state,
                            ready=readiness.check,
                        )
                        return
                    except GapError as error:
                        self._gaps.accept(error)
        finally:
            if alerts is not None:
                alerts.close()
            if serving is not None:
                serving.close()
            registration.leave()
            election.close()
            state.close()

    def _open_session(
        self,
        store: StateStore,
        keeper: LeaseKeeper,
        on_status: OnStatus,
        serving: Services,
        election: CaptureElection,
        log_handle: StandbyLogPoller,
    ) -> CaptureSession:
        config, epoch = self.config, keeper.lease.epoch
        check_whole(store)
        metered_state = MeteredStateStore(fenced(store, LEASE_NAME, epoch))
        kind = source_kind(config)
        state = LeasedState(prefetch_start_state(metered_state, config, kind), keeper.check)
        logs = self._open_log(kind, state, keeper, log_handle)
        since_ms = unix_ms()
        leadership = CaptureLeadership(
            leader=Leader(self.holder, epoch, config.capture.zone, since_ms, self._url),
            election=election,
            keeper=keeper,
            state=metered_state,
            status_store=StatusStore(state, logs.writer),
            logs=logs,
            parts=kind.parts(logs.registry),
            channels=Channels(config, state, logs.identity, self._callbacks),
            serving=serving,
            source_check=self._source_check,
            gaps=self._gaps,
        )
        return self._build_session(leadership, state, on_status)

    def _build_session(
        self, leadership: CaptureLeadership, state: LeasedState, on_status: OnStatus
    ) -> CaptureSession:
        """Return the session of a leadership, open to signals and commands."""
        config, source = self.config, self.config.source
        logs, parts, channels = leadership.logs, leadership.parts, leadership.channels
        check_lease = leadership.keeper.check
        retrying_state = RetryingStateStore(state, check_lease)
        activity = Activity(state, lambda schema_id: str(logs.registry.get(schema_id).table))
        unsupported = UnsupportedTables(retrying_state, channels.notify)
        gate = DumpGate()
        reading_pause = ReadingPause(state, gate)
        catalogue = CheckingCatalogue(parts.catalogue, unsupported)
        coordinator = DumpCoordinator(
            open_reader=parts.open_reader,
            open_blocking=parts.open_blocking,
            open_keyless=parts.open_keyless,
            catalogue=catalogue,
            unsupported=unsupported,
            keys=parts.keys,
            state=retrying_state,
            options=dump_options(config),
            notify=channels.notify,
            gate=gate,
        )
        loop = CaptureLoop(
            reader=logs.reader,
            windows=Windows(parts.keys, logs.registry.get),
            coordinator=coordinator,
            log=CountingAppender(logs.writer, activity, parts.located),
            log_answers=partial(answers, logs.event_log.storage),
            emitted=EmittedTransactions(logs.event_log),
            resume=logs.resume,
            options=capture_options(config),
            on_signals=channels.on_signals,
            is_paused=reading_pause.is_paused,
        )
        maintenance = LogMaintenanceTask(
            config,
            logs.event_log,
            # Kept from round to round: it remembers what the segments hold.
            EventLogMaintenance(logs.event_log.storage, check_lease, logs.event_log.chain_reader()),
            state=state,
            mailbox=channels.mailbox,
            coordinator=coordinator,
            segments=lambda: loop.progress().segments,
        )
        log_unmatched(config, catalogue)
        check_exclusions(config, catalogue, logs.registry)
        snapshot_reader = parts.open_reader()
        session = CaptureSession(
            loop=loop,
            coordinator=coordinator,
            leadership=leadership,
            source=SourceConnections(logs.reader, catalogue, snapshot_reader, source.tables),
            unsupported=unsupported,
            state=retrying_state,
            reading_pause=reading_pause,
            guard=LogGuard(WhenLogInDanger(source.when_log_in_danger), source.danger_bytes, gate),
            maintenance=SessionMaintenance(
                commands=channels.act,
                maintain=maintenance.act,
                on_status=on_status,
                activity=activity,
                poll_interval_s=poll_interval_s(config.state.location),
            ),
            watch=partial(
                self._watch,
                parts,
                retrying_state,
                unsupported,
                channels.notify,
                snapshot_reader.current_snapshot,
            ),
            at_start=StartPlan(
                dump=self._dump_at_start,
                then_end=not self._snapshotter.should_stream(),
                mode=source.snapshot_mode,
            ),
        )
        try:
            leadership.begin(session, catalogue, reading_pause)
        except BaseException:
            session.close()
            raise
        return session

    def _watch(
        self,
        parts: SourceParts,
        state: StateStore,
        unsupported: UnsupportedTables,
        notify: Notify,
        snapshot: Callable[[], Snapshot],
        request_dump: Callable[[TableName, str], bool],
    ) -> CatalogueWatch:
        source = self.config.source
        signals = [source.signal_table] if source.signal_table else ()
        return CatalogueWatch(
            parts.catalogue,
            state,
            source.tables,
            unsupported=unsupported,
            publish=parts.publish,
            snapshot=snapshot,
            request_dump=request_dump,
            dump_new=self._snapshotter.should_snapshot_new_tables(),
            who_is_open=parts.who_is_open,
            scope=CaptureScope(parts.catalogue, state, source.tables, signals, notify),
        )

    def _open_log(
        self,
        kind: SourceKind,
        state: LeasedState,
        keeper: LeaseKeeper,
        log_handle: StandbyLogPoller,
    ) -> OpenLogs:
        """Open the event log for this leader, created if there is none, and the source's log."""
        path = event_log_path(self.config)
        log = log_handle.current()
        registry = SchemaStore(path) if log is None else log.schemas
        seen = None if log is None else issued_offset_future(state, log)
        reader = kind.log_reader(registry, state, None if log is None else log.captured_from)
        identity = reader.identify()
        epoch = keeper.lease.epoch
        if log is not None:  # before the fence: it would shut out whom this is to spare
            claim_log(log.storage, log.generation, state, self._store)
            writer = EventLogWriter(
                log.storage,
                identity,
                epoch,
                check_lease=keeper.check,
                schemas=registry,
                chain=log.chain_reader(),
                seen=None if seen is None else seen.result(),
            )
        else:
            check_lost(state, path)
            writer = EventLogWriter.create(
                path,
                identity,
                epoch,
                start_offset=start_offset(state),
                check_lease=keeper.check,
                schemas=registry,
            )
            log = log_handle.log()
            assert log is not None
            claim_log(log.storage, log.generation, state, self._store)
        reader.belongs_to(log.generation, log.last_transaction)
        resume = self._gaps.start(state, reader, writer)
        return OpenLogs(reader, identity, registry, log, writer, resume)

    def _dump_at_start(self, begun: bool, unfinished: bool) -> str | None:
        """A lost connection or lease is no start: the same dump is asked for again."""
        asked, self._start_dump_requested = self._start_dump_requested, True
        if not asked and self._snapshotter.should_snapshot(begun, unfinished):
            first = not begun and self.config.source.snapshot != "always"
            self._start_dump = INITIAL_DUMP if first else START_DUMP + new_id().lower()
        return self._start_dump

    @property
    def _url(self) -> str | None:
        return None if (rest := self.config.control.rest) is None else rest.url

    @property
    def _store(self) -> str:
        """For people: the kind of state store, and which host asks."""
        return f"{self.config.state.location.reveal().partition(':')[0]} as of {self.holder}"


def run_capture(
    config: Config, *, on_status: OnStatus | None = None, stop_event: threading.Event
) -> None:
    """Capture alone, until ``stop_event``."""
    Capture(config, on_status=on_status, stop_event=stop_event).run()
