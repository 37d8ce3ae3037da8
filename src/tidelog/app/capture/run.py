"""Captures one source: connects the adapters for each leadership."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tidelog.app.base.channels import Channels, OnNotification, check_channels
from tidelog.app.base.elections import (
    LEASE_NAME,
    CaptureElection,
    check_whole,
    leader_of,
    leader_url,
)
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
from tidelog.app.base.table_patterns import check_exclusions, log_unmatched
from tidelog.app.capture.maintenance import LogMaintenanceTask, SourceCheck
from tidelog.app.capture.recovery import PASSED_KEY, Gaps
from tidelog.app.capture.standby import LogHandle, Readiness
from tidelog.app.overview.alerts import Alerts, open_alerts
from tidelog.app.overview.remote_control import OnStatus, ignore_status
from tidelog.app.sources.kinds import SourceKind, snapshotter_of, source_kind
from tidelog.app.web.http_server import Service, open_services
from tidelog.capture.activity import ACTIVITY_KEY, Activity, CountingAppender
from tidelog.capture.capture_scope import RELATIONS_KEY, RENAMED_KEY, SCOPE_KEY, CaptureScope
from tidelog.capture.catalogue_watch import SHAPES_KEY, CatalogueWatch
from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.capture.dumps.refetch_queue import REFETCH_KEY
from tidelog.capture.dumps.store import DUMP_PREFIX, OPTIONS_KEY
from tidelog.capture.leadership import Leader, LeasedState, LeaseKeeper, end_later, lead
from tidelog.capture.log_guard import GIVEN_UP_KEY, DumpGate, LogGuard, WhenLogInDanger
from tidelog.capture.pauses import LOG_KEY, LogSwitch
from tidelog.capture.session import CaptureSession, RetryingStateStore, SessionMaintenance
from tidelog.capture.session.engine import CaptureEngine, CaptureOptions
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
from tidelog.capture.unsupported_tables import REFUSED_KEY, CheckingCatalogue, UnsupportedTables
from tidelog.capture.windows import Windows
from tidelog.config import AnyConfig, Config, as_config
from tidelog.config.loading import one_database_config
from tidelog.control.commands import Command, Handover
from tidelog.control.mailbox import Mailbox, Outcome, new_id
from tidelog.engine.options import refuse_coroutine_function
from tidelog.errors import GapError
from tidelog.eventlog.log_files import STORE_KEY, claim_log
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EmittedTransactions, EventLog
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.storage_port import answers
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.dump_options import DumpOptions
from tidelog.model.option_values import is_url
from tidelog.model.records import Resume
from tidelog.ports import LogReader, SourceId, StateStore
from tidelog.state.opening import (
    MeteredStateStore,
    PrefetchingStateStore,
    fenced,
    open_state,
    pays_per_request,
    poll_interval_s,
)

KEYS: Final = (
    STORE_KEY, PASSED_KEY, CONSENT_KEY, GIVEN_UP_KEY, ACTIVITY_KEY, REFUSED_KEY, LOG_KEY,
    GENERATION_KEY, OPTIONS_KEY, REFETCH_KEY, SHAPES_KEY, SCOPE_KEY, GAP_KEY, RELATIONS_KEY,
    RENAMED_KEY, STATUS_KEY,
)  # fmt: skip


def prefetch_start_state(state: StateStore, config: Config, kind: SourceKind) -> StateStore:
    """Return ``state``, with the documents prefetched that a start reads."""
    if not pays_per_request(config.state.place):
        return state
    of_source: Sequence[str] = getattr(kind, "state_keys", ())  # a plugin may not have it
    return PrefetchingStateStore(state, (*KEYS, *of_source), [DUMP_PREFIX, f"{REFETCH_KEY}/"])


IDLE_POSITION_S = 60.0
"""Between two positions without records, in a log on an object store: each costs requests, here and
of all who read.
"""


def capture_options(config: Config) -> CaptureOptions:
    """Of ``capture``."""
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
    """Of ``dump``, for dumps that say nothing else."""
    dump = config.dump
    return DumpOptions(**{name: getattr(dump, name) for name in DumpOptions.model_fields})


@dataclass(frozen=True, slots=True)
class OpenLog:
    """The source's log and the event log, as a new leader has opened them."""

    reader: LogReader
    identity: SourceId
    registry: SchemaStore
    log: EventLog
    writer: EventLogWriter
    resume: Resume


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
    """

    def __init__(
        self,
        config: AnyConfig,
        *,
        on_notification: OnNotification | None = None,
        on_status: OnStatus = ignore_status,
    ) -> None:
        super().__init__("tidelog-capture")
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
        self._on_status = on_status

    def send(self, command: Command, *, timeout_s: float = 10.0) -> Outcome | None:
        """Give a command to whichever capture of this configuration leads; None: it waits still."""
        with closing(open_state(self.config.state.place)) as state:
            mailbox = Mailbox(state)
            return mailbox.wait(mailbox.send(command), timeout_s)

    def _run(self, stop: threading.Event) -> None:
        with storing_end(self.config, CAPTURE):
            self._capture(stop)

    def _capture(self, stop: threading.Event) -> None:
        config, on_status = self.config, self._on_status
        source = source_kind(config)
        source.prepare()
        check_channels(config)
        check_local_paths(config)
        state = open_state(config.state.place)
        _, every_s = config.renewal_s
        log_handle = LogHandle(event_log_path(config), lambda: election.release_announced)
        election = CaptureElection(
            config,
            self.holder,
            config.capture.handicap_s,
            state,
            newest_epoch=log_handle.newest_epoch,
        )
        readiness = Readiness(source.reach, lambda: read_at_startup(config, state), stop)
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

        serving: Service | None = None
        alerts: Alerts | None = None
        try:
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
        serving: Service,
        election: CaptureElection,
        log_handle: LogHandle,
    ) -> CaptureSession:
        config, source = self.config, self.config.source
        check_whole(store)
        metered_state = MeteredStateStore(fenced(store, LEASE_NAME, keeper.lease.epoch))
        kind = source_kind(config)
        state = LeasedState(prefetch_start_state(metered_state, config, kind), keeper.check)
        retrying_state = RetryingStateStore(state, keeper.check)
        found = self._open_log(kind, state, keeper, log_handle)
        reader, identity, log, writer = found.reader, found.identity, found.log, found.writer
        registry = found.registry
        parts = kind.parts(registry)
        options = capture_options(config)
        windows = Windows(parts.keys, registry.get)
        activity = Activity(state, lambda schema_id: str(registry.get(schema_id).table))
        channels = Channels(config, state, identity, self._callbacks)
        unsupported = UnsupportedTables(retrying_state, channels.notify)
        gate = DumpGate()
        switch = LogSwitch(state, gate)
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
        engine = CaptureEngine(
            reader=reader,
            windows=windows,
            coordinator=coordinator,
            log=CountingAppender(writer, activity, parts.located),
            log_answers=partial(answers, log.storage),
            emitted=EmittedTransactions(log),
            resume=found.resume,
            options=options,
            on_signals=channels.on_signals,
            is_paused=switch.is_off,
        )

        maintenance = LogMaintenanceTask(
            config,
            log,
            # Kept from round to round: it remembers what the segments hold.
            EventLogMaintenance(log.storage, keeper.check, log.chain_reader()),
            state=state,
            mailbox=channels.mailbox,
            coordinator=coordinator,
            segments=lambda: engine.progress().segments,
        )

        def close() -> None:
            serving.stand_by()
            self._source_check.end()
            channels.close()
            writer.close()

        def release_lease() -> None:
            serving.stand_by()
            keeper.release()

        def forget_log() -> None:
            keeper.check()
            parts.forget_log()

        def status() -> dict[str, Any]:
            more = {"state": metered_state.summary(), "lease": keeper.summary()}
            return {**session.status(), **more, "gap": {"at_ms": self._gaps.accepted_ms}}

        def hand_over(command: Handover) -> dict[str, Any]:
            if command.leader == self.holder:
                election.hand_over(command.to)
                end_later(session.end, keeper.announce)
            return {"leader": self.holder}

        log_unmatched(config, catalogue)
        check_exclusions(config, catalogue, registry)
        snapshot_reader = parts.open_reader()
        session = CaptureSession(
            engine=engine,
            coordinator=coordinator,
            reader=reader,
            catalogue=catalogue,
            snapshot_reader=snapshot_reader,
            unsupported=unsupported,
            state=retrying_state,
            switch=switch,
            guard=LogGuard(
                WhenLogInDanger(source.when_log_in_danger), source.log_danger_bytes, gate
            ),
            forget_log=forget_log,
            give_back=release_lease,
            maintenance=SessionMaintenance(
                commands=channels.act,
                maintain=maintenance.act,
                on_status=on_status,
                activity=activity,
                troubles=lambda: {**channels.problems(), **self._source_check.summary()},
                poll_interval_s=poll_interval_s(config.state.place),
            ),
            watch=lambda request_dump: CatalogueWatch(
                parts.catalogue,
                retrying_state,
                source.tables,
                unsupported=unsupported,
                publish=parts.publish,
                snapshot=snapshot_reader.current_snapshot,
                request_dump=request_dump,
                dump_new=self._snapshotter.should_snapshot_new_tables(),
                who_is_open=parts.who_is_open,
                scope=CaptureScope(
                    parts.catalogue,
                    retrying_state,
                    source.tables,
                    [source.signal_table] if source.signal_table else (),
                    channels.notify,
                ),
            ),
            patterns=source.tables,
            chunks=((meta.first, chunk) for meta, chunk in log.chunks()),
            holds=log.holds,
            at_start=StartPlan(
                dump=self._dump_at_start,
                then_end=not self._snapshotter.should_stream(),
                mode=source.snapshot_mode,
            ),
            leader=Leader(
                self.holder,
                keeper.lease.epoch,
                config.capture.zone,
                int(time.time() * 1000),
                self._url,
            ),
            generation=log.generation,
            close_log=close,
            status_store=StatusStore(state, writer),
        )
        try:
            channels.open(coordinator, catalogue, status, engine.append_control, hand_over, switch)
            serving.lead(channels.surface)
            self._source_check.begin()
        except BaseException:
            session.close()
            raise
        return session

    def _open_log(
        self, kind: SourceKind, state: LeasedState, keeper: LeaseKeeper, log_handle: LogHandle
    ) -> OpenLog:
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
        return OpenLog(reader, identity, registry, log, writer, resume)

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
        return f"{self.config.state.place.reveal().partition(':')[0]} as of {self.holder}"


def capture(
    config: Config, *, on_status: OnStatus = ignore_status, stop_event: threading.Event
) -> None:
    """Capture alone, until ``stop_event``."""
    Capture(config, on_status=on_status)._run(stop_event)
