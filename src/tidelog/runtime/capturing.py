"""Capture of one source: the adapters put together for one leadership after the other."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidelog.capture.catalogue_watch import CatalogueWatch
from tidelog.capture.dumps import DumpCoordinator, DumpOptions
from tidelog.capture.engine import CaptureEngine, CaptureOptions
from tidelog.capture.leadership import LeaseKeeper, lead
from tidelog.capture.session import STATUS_KEY, CaptureSession, Housekeeping
from tidelog.capture.windows import Windows
from tidelog.config import Config, load_config
from tidelog.control.mailbox import Mailbox
from tidelog.election.sqlite import SqliteElection
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.emitted import EmittedTransactions
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.storage import LocalStorage
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.schema import TableName
from tidelog.ports import SchemaSeen
from tidelog.runtime.acting import act
from tidelog.sources.postgres.catalogue import PostgresCatalogue
from tidelog.sources.postgres.chunks import PostgresChunkReader
from tidelog.sources.postgres.connect import connect
from tidelog.sources.postgres.log_reader import PostgresLogReader
from tidelog.sources.postgres.publication import Publications
from tidelog.state.sqlite import SqliteState
from tidelog.wire.tuples import PgoutputKeys

logger = logging.getLogger(__name__)

LEASE_NAME = "capture"
PIPELINE_NAME = "pipeline"
STATUS_MARGIN = 1 << 40  # far more than is written between two status documents
OnStatus = Callable[[dict[str, Any]], None]


def ignore(_status: dict[str, Any]) -> None:
    """Nobody wants to know."""


class Capture:
    """Log capture and dumps of one source, for embedding or for the command line.

    Args:
        config: of `tidelog.config`, or the path of a ``tidelog.yaml``.
    """

    def __init__(self, config: Config | str | Path) -> None:
        self.config = config if isinstance(config, Config) else load_config(config)
        self.holder = f"{socket.gethostname()}:{os.getpid()}"

    def run(self, stop: threading.Event, on_status: OnStatus = ignore) -> None:
        """Lead, or stand by while another process does, until ``stop``.

        Raises:
            TidelogError: what needs a person; see docs/failure-modes.md.
        """
        config = self.config
        state = SqliteState(config.state.url)
        lease_s = config.capture.lease_ms / 1000
        path = str(config.log.path)
        tail = EventLog.open(path).tail if EventLog.exists(path) else None
        election = SqliteElection(
            config.state.url,
            LEASE_NAME,
            self.holder,
            lease_s,
            first_epoch=1 if tail is None else tail.epoch + 1,
        )

        def on_state(name: str, reason: str) -> None:
            on_status({"role": name, "reason": reason, "holder": self.holder})

        def open_session(keeper: LeaseKeeper) -> CaptureSession:
            return self._open_session(state, keeper, on_status)

        try:
            lead(election, open_session, stop, renew_every_s=lease_s / 4, on_state=on_state)
        finally:
            election.close()
            state.close()

    def _open_session(
        self, state: SqliteState, keeper: LeaseKeeper, on_status: OnStatus
    ) -> CaptureSession:
        config, source = self.config, self.config.source
        dsn, path = source.url.reveal(), str(config.log.path)
        log = EventLog.open(path) if EventLog.exists(path) else None
        registry = SchemaStore(path)
        reader = PostgresLogReader(
            dsn,
            registry,
            slot=source.slot,
            publication=source.publication,
            tables=source.tables,
            watermark_schema=source.watermark_schema,
            keys=source.keys,
            expected=None if log is None else log.source,
        )
        identity = reader.identify()
        epoch = keeper.lease.epoch
        writer = EventLogWriter.create(
            path,
            identity,
            epoch,
            start_offset=_start_offset(state),
            check_lease=keeper.check,
            schemas=registry,
        )
        log = EventLog.open(path)
        begin = reader.start(writer.resume)
        if writer.resume is None:
            writer.append_position(begin)
        catalogue = PostgresCatalogue(dsn, own_schemas=[source.watermark_schema], keys=source.keys)
        chunk_reader, snapshot_reader = (self._chunk_reader(registry) for _ in range(2))
        keys = PgoutputKeys()
        options = CaptureOptions(
            flush_bytes=config.capture.flush_bytes,
            flush_s=config.capture.flush_ms / 1000,
            buffer_bytes=config.capture.buffer_bytes,
        )
        windows = Windows(
            keys,
            registry.get,
            retain_bytes=options.retain_bytes,
            journal_entries=options.journal_entries,
        )
        coordinator = DumpCoordinator(
            reader=chunk_reader,
            catalogue=catalogue,
            keys=keys,
            state=state,
            options=DumpOptions(
                config.dump.chunk_rows, config.dump.delay_ms, config.dump.parallelism
            ),
        )
        session: CaptureSession | None = None

        def on_schema(seen: SchemaSeen) -> None:
            if session is not None:
                session.on_schema(seen)

        engine = CaptureEngine(
            reader=reader,
            windows=windows,
            coordinator=coordinator,
            log=writer,
            emitted=EmittedTransactions(log),
            resume=begin,
            options=options,
            on_schema=on_schema,
        )
        mailbox = Mailbox(state)

        def maintain() -> None:
            self._maintain(keeper)
            mailbox.forget_old_outcomes(int(time.time() * 1000))

        publications = Publications(source.publication, source.tables, source.watermark_schema)

        def publish() -> list[TableName]:
            with connect(dsn, purpose="publication") as connection:
                return publications.sync(connection)

        session = CaptureSession(
            engine=engine,
            coordinator=coordinator,
            reader=reader,
            catalogue=catalogue,
            chunk_reader=chunk_reader,
            snapshot_reader=snapshot_reader,
            state=state,
            housekeeping=Housekeeping(
                commands=lambda target: act(mailbox, target, catalogue, source.tables),
                maintain=maintain,
                on_status=on_status,
            ),
            watch=lambda request_dump: CatalogueWatch(
                catalogue,
                state,
                source.tables,
                publish=publish,
                snapshot=snapshot_reader.current_snapshot,
                request_dump=request_dump,
                dump_new=source.snapshot == "initial",
            ),
            patterns=source.tables,
            chunks=((meta.first, chunk) for meta, chunk in log.chunks()),
            initial_dump=source.snapshot == "initial",
            epoch=epoch,
            holder=self.holder,
            generation=log.generation,
            close_log=writer.close,
        )
        return session

    def _chunk_reader(self, registry: SchemaStore) -> PostgresChunkReader:
        source = self.config.source
        return PostgresChunkReader(
            source.url.reveal(),
            registry,
            watermark_schema=source.watermark_schema,
            keys=source.keys,
        )

    def _maintain(self, keeper: LeaseKeeper) -> None:
        """Roll up, retain, and put strays aside."""
        log = self.config.log
        maintenance = EventLogMaintenance(str(log.path), keeper.check)
        consumers = Consumers(LocalStorage(str(log.path)))
        if self.config.outputs and not consumers.all():
            # The pipeline has not run yet: what it will need must wait for it.
            consumers.register(PIPELINE_NAME, EventLog.open(str(log.path)).head_offset)
        swept = maintenance.quarantine_strays()
        for name in swept.quarantined:
            logger.warning("segment %s was not on the log's chain and is in quarantine", name)
        if log.rollup_bytes:
            maintenance.rollup(target_bytes=log.rollup_bytes)
        if log.retention is not None:
            cap = log.retention_cap
            maintenance.retain(
                log.retention.total_seconds(),
                hard_cap_age_s=None if cap is None else cap.total_seconds(),
            )


def _start_offset(state: SqliteState) -> int:
    """Where a new log begins: above every version that one before it may have issued."""
    status = state.get(STATUS_KEY)
    if status is None:
        return 0
    issued: int = status.value["capture"]["next_offset"]
    return issued + STATUS_MARGIN if issued else 0


def capture(config: Config, *, on_status: OnStatus = ignore, stop_event: threading.Event) -> None:
    """Capture alone, until ``stop_event``."""
    Capture(config).run(stop_event, on_status)
