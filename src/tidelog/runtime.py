"""Wires adapters to ports, alone in that; what the command line and `tidelog.Capture` call."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tidelog.capture.catalogue_watch import CatalogueWatch
from tidelog.capture.dumps import DumpCoordinator, DumpOptions
from tidelog.capture.engine import CaptureEngine, CaptureOptions
from tidelog.capture.leadership import LeaseKeeper, lead
from tidelog.capture.session import STATUS_KEY, CaptureSession, Housekeeping
from tidelog.capture.windows import Windows
from tidelog.config import Config, load_config
from tidelog.control.commands import (
    Command,
    ExecuteSnapshot,
    PauseSnapshot,
    ResumeSnapshot,
    SetDumpOptions,
    StopSnapshot,
)
from tidelog.control.mailbox import Mailbox
from tidelog.election.sqlite import SqliteElection
from tidelog.errors import EventLogError, TidelogError, UsageError
from tidelog.eventlog.emitted import EmittedTransactions
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.schema import TableName
from tidelog.ports import SchemaSeen

from tidelog.sources.postgres.catalogue import PostgresCatalogue
from tidelog.sources.postgres.chunks import PostgresChunkReader
from tidelog.sources.postgres.connect import connect
from tidelog.sources.postgres.log_reader import PostgresLogReader
from tidelog.sources.postgres.patterns import matches
from tidelog.sources.postgres.publication import Publications
from tidelog.state.sqlite import SqliteState
from tidelog.wire.tuples import PgoutputKeys

logger = logging.getLogger(__name__)

LEASE_NAME = "capture"
OnStatus = Callable[[dict[str, Any]], None]


def _ignore(_status: dict[str, Any]) -> None:
    """Nobody wants to know."""


# ---------------------------------------------------------------- capture


class Capture:
    """Log capture and dumps of one source, for embedding or for the command line.

    Args:
        config: of `tidelog.config`, or the path of a ``tidelog.yaml``.
    """

    def __init__(self, config: Config | str | Path) -> None:
        self.config = config if isinstance(config, Config) else load_config(config)
        self.holder = f"{socket.gethostname()}:{os.getpid()}"

    def run(self, stop: threading.Event, on_status: OnStatus = _ignore) -> None:
        """Lead, or stand by while another process does, until ``stop``.

        Raises:
            TidelogError: what needs a person; see docs/failure-modes.md.
        """
        config = self.config
        state = SqliteState(config.state.url)
        lease_s = config.capture.lease_ms / 1000
        election = SqliteElection(config.state.url, LEASE_NAME, self.holder, lease_s)

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
            path, identity, epoch, check_lease=keeper.check, schemas=registry
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
        publications = Publications(source.publication, source.tables, source.watermark_schema)

        def publish() -> None:
            with connect(dsn, purpose="publication") as connection:
                publications.sync(connection)

        session = CaptureSession(
            engine=engine,
            coordinator=coordinator,
            reader=reader,
            catalogue=catalogue,
            chunk_reader=chunk_reader,
            snapshot_reader=snapshot_reader,
            state=state,
            housekeeping=Housekeeping(
                commands=lambda target: _act(mailbox, target, catalogue, source.tables),
                maintain=lambda: self._maintain(keeper),
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


def _act(
    mailbox: Mailbox,
    coordinator: DumpCoordinator,
    catalogue: PostgresCatalogue,
    captured: Sequence[str],
) -> None:
    """Act on the commands that wait."""

    def handle(_command_id: str, command: Command) -> dict[str, Any]:
        if isinstance(command, ExecuteSnapshot):
            return _execute(command, coordinator, catalogue, captured)
        if isinstance(command, StopSnapshot):
            tables = list(command.tables)
            return {"dumps": coordinator.cancel(command.dump_id, tables or None)}
        if isinstance(command, PauseSnapshot):
            return {"dumps": coordinator.pause(command.dump_id)}
        if isinstance(command, ResumeSnapshot):
            return {"dumps": coordinator.resume(command.dump_id)}
        if isinstance(command, SetDumpOptions):
            changes = command.model_dump(exclude_none=True)
            options = coordinator.set_options(**changes)
            return {name: getattr(options, name) for name in changes}
        raise UsageError(f"this capture does not know the command {command.type}")

    mailbox.handle_pending(handle)


def _execute(
    command: ExecuteSnapshot,
    coordinator: DumpCoordinator,
    catalogue: PostgresCatalogue,
    captured: Sequence[str],
) -> dict[str, Any]:
    if command.mode == "blocking":
        raise UsageError("blocking dumps are not available yet: use --mode incremental")
    tables = catalogue.tables(captured)
    if command.tables:
        chosen = [table for table in tables if matches(command.tables, table)]
        for pattern in command.tables:
            if not any(matches([pattern], table) for table in tables):
                raise UsageError(
                    f"no captured table matches {pattern!r}; captured are "
                    f"{', '.join(str(table) for table in tables) or 'none'}"
                )
    else:
        chosen = tables
    keys = key_columns = None
    if command.keys is not None:
        keys, key_columns = _ordered_keys(command, catalogue, chosen)
    dump = coordinator.request(
        command.dump_id,
        chosen,
        where=command.where,
        keys=keys,
        key_columns=key_columns,
        now_ms=int(time.time() * 1000),
    )
    return {"dump_id": dump.dump_id, "tables": [table.table for table in dump.tables]}


def _ordered_keys(
    command: ExecuteSnapshot, catalogue: PostgresCatalogue, tables: Sequence[TableName]
) -> tuple[list[tuple[str | None, ...]], tuple[str, ...]]:
    """The command's keys and their columns, in order: the table's key, or its match key."""
    if len(tables) != 1:
        raise UsageError("keys need exactly one table; the pattern matches more")
    shape = catalogue.shape(tables[0])
    key = shape.schema.key if shape is not None else ()
    if not key:
        raise UsageError(f"{tables[0]} has no primary key")
    order = command.key_columns or key
    assert command.keys is not None
    assert shape is not None
    if sorted(order) == sorted(shape.schema.match_key):
        key = shape.schema.match_key
    if sorted(order) != sorted(key) or any(len(k) != len(key) for k in command.keys):
        raise UsageError(f"a key of {tables[0]} is ({', '.join(key)}): give these columns")
    places = [order.index(name) for name in key]
    return list(dict.fromkeys(tuple(k[place] for place in places) for k in command.keys)), key


def capture(config: Config, *, on_status: OnStatus = _ignore, stop_event: threading.Event) -> None:
    """Capture alone, until ``stop_event``."""
    Capture(config).run(stop_event, on_status)


# ---------------------------------------------------------------- control


def send_command(config: Config, command: Command, *, timeout_s: float) -> dict[str, Any]:
    """Give a command to the leading capture; its outcome, or that it waits."""
    state = SqliteState(config.state.url)
    try:
        mailbox = Mailbox(state)
        command_id = mailbox.send(command)
        outcome = mailbox.wait(command_id, timeout_s)
        if outcome is None:
            return {"id": command_id, "state": "waiting", "details": {}, "error": None}
        return {"state": "done", **outcome.to_json()}
    finally:
        state.close()


def status(config: Config) -> dict[str, Any]:
    """Position, lag, leader and dumps, as the leader last wrote them."""
    state = SqliteState(config.state.url)
    election = SqliteElection(config.state.url, LEASE_NAME, "status", 10)
    try:
        document = state.get(STATUS_KEY)
        found: dict[str, Any] = {"leader": election.leader()}
        if document is None:
            found["capture"] = None
            return found
        found.update(document.value)
        found["age_ms"] = int(time.time() * 1000) - found["updated_ms"]
        if EventLog.exists(str(config.log.path)):
            log = EventLog.open(str(config.log.path))
            chain = log.chain()
            found["log"] = {
                "head": chain.head,
                "next": chain.next,
                "segments": len(chain.segments),
                "payload_bytes": sum(meta.payload_bytes for meta in chain.segments),
            }
        return found
    finally:
        election.close()
        state.close()


def dump_wait(
    config: Config,
    dump_id: str,
    *,
    on_progress: OnStatus = _ignore,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """Wait until the dump has finished; its summary."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while deadline is None or time.monotonic() < deadline:
        for dump in status(config).get("dumps", ()):
            if dump["dump_id"] == dump_id:
                on_progress(dump)
                if dump["status"] in ("completed", "aborted"):
                    found: dict[str, Any] = dump
                    return found
        time.sleep(0.2)
    raise TidelogError(f"dump {dump_id} did not finish within {timeout_s} s; it goes on")


def check(config: Config) -> list[dict[str, Any]]:
    """What `tidelog check` found, each with what mends it."""
    from tidelog.sources.postgres import preflight

    return [finding.to_json() for finding in preflight.check(config.source)]


# ---------------------------------------------------------------- reading


def read_log(
    config: Config, *, table: str | None = None, start: int | None = None, follow: bool = False
) -> Iterator[dict[str, Any]]:
    """Change events in Debezium's envelope, from ``start`` (the head if None)."""
    from tidelog.pipeline.envelope import events

    path = str(config.log.path)
    if not EventLog.exists(path):
        raise EventLogError(f"{path} holds no event log; `tidelog capture` begins one")
    log = EventLog.open(path)
    offset = log.head_offset if start is None else start
    while True:
        end = log.latest_offset(durable=False)
        if end > offset:
            yield from events(log, offset, end, table)
            offset = end
        if not follow:
            return
        time.sleep(0.1)
