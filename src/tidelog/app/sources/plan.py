"""Estimates chunks, rows, bytes and time of a dump, for `tidelog plan`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.app.base.table_patterns import choose_tables
from tidelog.app.sources.kinds import Estimates, source_kind
from tidelog.capture.dumps.chunk_planner import RowWidths
from tidelog.capture.dumps.store import OPTIONS_KEY
from tidelog.capture.session.start import STATUS_KEY
from tidelog.config import Config
from tidelog.errors import TidelogError, UsageError
from tidelog.model.schema import TableName
from tidelog.ports import ChunkReader, ChunkRequest, NullRegistry
from tidelog.results import DumpPlan, NotDumped, PlanTotal, TablePlan
from tidelog.state.opening import open_state, state_exists

SAMPLE_CHUNKS = 2  # the second one measures speed better: caches and plans are warm
SAMPLE_ROWS = 20_000
SAMPLE_TIMEOUT_MS = 10_000
MEASURED_ROWS = 1_000  # a smaller dump is no measure of speed


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of reading one or two chunks; the rate is None if too little was read."""

    rows: int
    bytes_per_row: float
    rows_per_s: float | None
    exhausted: bool


def plan(
    config: Config,
    *,
    tables: Sequence[str] = (),
    where: str | None = None,
    parallelism: int | None = None,
    chunk_rows: int | None = None,
) -> DumpPlan:
    """Estimate a dump of the tables that match. Writes nothing to the source.

    Args:
        config: the configuration.
        tables: patterns; none: all captured tables.
        where: an SQL condition; needs exactly one table.
        parallelism: the number of readers; None: as set now.
        chunk_rows: the rows of a chunk; None: as set now.
    """
    gentle = config.dump.model_copy(update={"statement_timeout_ms": SAMPLE_TIMEOUT_MS})
    config = config.model_copy(update={"dump": gentle})
    stored, last_rates = _read_state(config)
    options = {
        name: stored.get(name, getattr(config.dump, name))
        for name in ("chunk_rows", "parallelism", "delay_ms", "rows_per_second")
    }
    overrides = {"parallelism": parallelism, "chunk_rows": chunk_rows}
    options.update({name: value for name, value in overrides.items() if value is not None})
    source = source_kind(config)
    reader = source.plain_reader(NullRegistry())
    catalogue = source.catalogue()
    estimates = source.estimates()
    try:
        chosen = choose_tables(catalogue, catalogue.tables(config.source.tables), tables)
        if where is not None and len(chosen) != 1:
            raise UsageError("--where needs exactly one --table")
        estimated, rejected = [], []
        for table in chosen:
            try:
                last = last_rates.get(str(table)) if parallelism is None and where is None else None
                room = config.dump.chunk_bytes
                estimated.append(_table(reader, estimates, table, where, options, room, last))
            except TidelogError as error:
                rejected.append(NotDumped(str(table), str(error)))
    finally:
        reader.close()
        estimates.close()
        catalogue.close()
    total = PlanTotal(
        len(estimated),
        sum(each.rows for each in estimated),
        sum(each.bytes for each in estimated),
        sum(each.chunks for each in estimated),
        _total_seconds([each.seconds for each in estimated]),
    )
    return DumpPlan(options, total, tuple(estimated), tuple(rejected))


def _table(
    reader: ChunkReader,
    estimates: Estimates,
    table: TableName,
    where: str | None,
    options: dict[str, int],
    chunk_bytes: int,
    last_rows_per_s: float | None,
) -> TablePlan:
    sample = _sample(reader, table, where, options["chunk_rows"], chunk_bytes)
    estimate = estimates.rows(table, where)
    if estimate is None:
        raise TidelogError("the table does not exist (any more)")
    rows, basis = estimate.rows, estimate.basis
    if sample.exhausted:
        rows, basis = sample.rows, "counted"
    else:
        rows = max(rows, sample.rows)
    widths = RowWidths()
    widths.note(table, sample.rows, round(sample.rows * sample.bytes_per_row))
    chunks = rows // widths.rows(table, options["chunk_rows"], chunk_bytes) + 1
    rate, rate_from = last_rows_per_s, "its last dump"
    if rate is None:
        rate, rate_from = sample.rows_per_s, "a sample"
        if rate is not None:
            rate *= min(options["parallelism"], chunks)
    return TablePlan(
        str(table),
        rows,
        round(rows * sample.bytes_per_row),
        chunks,
        _seconds(rows, chunks, rate, options),
        rows_from=basis,
        speed_from="-" if rate is None else rate_from,
    )


def _sample(
    reader: ChunkReader, table: TableName, where: str | None, chunk_rows: int, chunk_bytes: int
) -> Sample:
    """Read the table's first chunks as a dump does, but without watermarks."""
    limit_rows = min(chunk_rows, SAMPLE_ROWS)
    rows = payload = 0
    rate = after = None
    exhausted = False
    for _ in range(SAMPLE_CHUNKS):
        request = ChunkRequest(
            table, after=after, limit_rows=limit_rows, where=where, limit_bytes=chunk_bytes
        )
        begun = time.monotonic()
        try:
            chunk = reader.read(request)
            seconds = time.monotonic() - begun
        finally:
            reader.release()
        rows += len(chunk.rows)
        payload += int(chunk.rows.payload_offsets[-1])
        if len(chunk.rows) and (rate is None or not chunk.exhausted):
            rate = len(chunk.rows) / max(seconds, 1e-6)
        after, exhausted = chunk.last_key, chunk.exhausted
        if exhausted:
            break
    return Sample(rows, payload / rows if rows else 0.0, rate, exhausted)


def _seconds(
    rows: int, chunks: int, rows_per_s: float | None, options: dict[str, int]
) -> float | None:
    """Return the shortest duration: the effect of the throttle is not known before."""
    if rows and rows_per_s is None:
        return None
    reading = rows / rows_per_s if rows_per_s else 0.0
    limited = rows / options["rows_per_second"] if options["rows_per_second"] else 0.0
    pauses = (chunks - 1) * options["delay_ms"] / 1000
    if options["parallelism"] == 1:
        return round(max(reading + pauses, limited), 3)
    return round(max(reading, limited, pauses), 3)


def _total_seconds(each: Sequence[float | None]) -> float | None:
    """Return the sum: tables share the readers, so that in sequence or together takes as long."""
    known = [seconds for seconds in each if seconds is not None]
    return round(math.fsum(known), 3) if len(known) == len(each) else None


def _read_state(config: Config) -> tuple[dict[str, int], dict[str, float]]:
    """Return options as set at run time, and the rows a second of each table's last whole dump."""
    if not state_exists(config.state.location):
        return {}, {}
    state = open_state(config.state.location)
    try:
        options, status = state.get(OPTIONS_KEY), state.get(STATUS_KEY)
    finally:
        state.close()
    rates: dict[str, float] = {}
    for dump in (status.value if status else {}).get("dumps", ()):
        for table in dump["tables"]:
            begun, ended = table.get("started_ms"), table.get("finished_ms")
            whole = not table.get("where") and not table.get("key_set")
            read = table.get("rows_read", 0)
            if whole and begun and ended and ended > begun and read >= MEASURED_ROWS:
                rates[table["table"]] = read * 1000 / (ended - begun)
    return dict(options.value) if options else {}, rates
