"""Compares the copies that outputs keep with their source."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from tidelog.app.base.elections import LEASE_NAME, pipeline_lease_name
from tidelog.app.base.last_results import store_results
from tidelog.app.base.log_location import event_log_path
from tidelog.app.base.outputs import check_installed, check_spark, make_output
from tidelog.app.base.table_patterns import choose_tables
from tidelog.app.overview.remote_control import OnStatus, ignore_status, send_command
from tidelog.app.pipeline.run import session
from tidelog.app.sources.kinds import SourceKind, source_kind
from tidelog.capture.session.start import GENERATION_KEY, STATUS_KEY
from tidelog.config import AnyConfig, Config, as_config
from tidelog.config.models import OUTPUTS
from tidelog.config.source import SOURCES
from tidelog.control.commands import StartDump
from tidelog.control.mailbox import new_id
from tidelog.errors import (
    ChunkError,
    EventLogError,
    OutputError,
    SourceError,
    TableLeftOutError,
    UnsupportedTableError,
    UsageError,
)
from tidelog.eventlog.reader import EventLog
from tidelog.model.option_values import is_url
from tidelog.model.patterns import matches
from tidelog.model.schema import Column, TableName, TableSchema, backticked
from tidelog.model.units import format_bytes
from tidelog.outputs.base.sections import OutputSection
from tidelog.outputs.delivery_settings import transform_steps
from tidelog.ports import (
    Catalogue,
    ChunkReader,
    ChunkRequest,
    Digest,
    DigestReader,
    NullRegistry,
    TargetTable,
)
from tidelog.results import RepairRequest, TableComparison, Verification
from tidelog.state.opening import open_election, open_state, state_exists

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.outputs.database.output import DatabaseOutput
    from tidelog.verify.model import Copy, Key, Range, ReadableOutput, SourceRanges
    from tidelog.verify.range_sums import RowSource


# The copies, as DataFrames.


class OpenReader:
    """Opens chunk readers of a database, source or copy, on executors.

    It has the connection string, so its text form shows nothing.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def __repr__(self) -> str:
        return "OpenReader()"

    def __call__(self) -> ChunkReader:
        return source_kind(self._config).plain_reader(NullRegistry())


class Copies(Protocol):
    """The copies that one output keeps."""

    def of(self, schema: TableSchema) -> Copy:
        """Return the copy of the source's table."""
        ...

    def close(self) -> None: ...


def is_compared(section: OutputSection, table: TableName) -> bool:
    """Return whether the output has a copy of the table; changes are no copy."""
    return section.keeps_copy(table) and matches(section.tables, table)


def copies_of(config: Config, section: OutputSection, spark: SparkSession) -> Copies:
    """Return the copies of an output whose section has ``copies``."""
    of_kind = _OutputCopies if section.copies == "by_output" else _DatabaseCopies
    return of_kind(config, section, spark)


class _OutputCopies:
    """Copies that the output reads."""

    def __init__(self, config: Config, section: OutputSection, spark: SparkSession) -> None:
        self._section: Any = section  # its steps are used, if it has any
        self._output = cast("ReadableOutput", make_output(config, section, spark))

    def of(self, schema: TableSchema) -> Copy:
        from tidelog.verify.model import Copy

        output = self._output
        target = output.table_of(schema)
        return Copy(
            target,
            transform_steps(self._section),
            lambda: output.columns(target.source),
            lambda part: output.read(target, part),
            lambda: output.committed(schema.table) or 0,
            lambda part: output.row_sources(target, part),
        )

    def close(self) -> None:
        self._output.close()


class _DatabaseCopies:
    """Copies in a database: read by the chunk reader of its kind, on an executor."""

    def __init__(self, config: Config, section: OutputSection, spark: SparkSession) -> None:
        self._config = config
        self._section: Any = section  # its ``url`` and ``deletes`` are used
        self._spark = spark

    def of(self, schema: TableSchema) -> Copy:
        from tidelog.outputs.database.dialect import DELETED
        from tidelog.spark.source_rows import source_frame
        from tidelog.verify.model import Copy

        section, spark = self._section, self._spark
        output = self._output()
        try:
            target, location = output.target_of(schema)
        finally:
            output.close()
        copy_config = _as_source(self._config, section, location)

        def copy_schema() -> TableSchema | None:
            catalogue = source_kind(copy_config).catalogue()
            try:
                shape = catalogue.shape(location)
            except SourceError as error:
                raise OutputError(f"output {section.name}: {error}") from error
            finally:
                catalogue.close()
            return None if shape is None else shape.schema

        def columns() -> Collection[str] | None:
            schema_of_copy = copy_schema()
            return None if schema_of_copy is None else schema_of_copy.column_names

        def request(schema_of_copy: TableSchema, part: Range) -> ChunkRequest:
            after, upto = part if schema_of_copy.match_key == target.key else (None, None)
            return ChunkRequest(location, after=after, upto=upto)

        def frame(part: Range) -> DataFrame | None:
            schema_of_copy = copy_schema()
            if schema_of_copy is None:
                return None
            rows = source_frame(
                spark, OpenReader(copy_config), schema_of_copy, [request(schema_of_copy, part)]
            )
            rows = _with_source_digits(rows, schema_of_copy, target)
            if section.deletes == "soft":
                rows = rows.where(f"NOT coalesce(CAST({DELETED} AS BOOLEAN), false)")
            return rows

        def row_sources(part: Range) -> Sequence[RowSource] | None:
            schema_of_copy = copy_schema()
            if (
                schema_of_copy is None
                or section.deletes == "soft"
                or not _same_types(schema_of_copy, target)
            ):
                return None
            names = tuple(target.columns.names)
            return [
                _DatabaseRows(
                    OpenReader(copy_config), schema_of_copy, request(schema_of_copy, part), names
                )
            ]

        def committed() -> int:
            output = self._output()  # a new one: an output caches its progress
            try:
                return output.committed(schema.table) or 0
            finally:
                output.close()

        return Copy(target, transform_steps(section), columns, frame, committed, row_sources)

    def close(self) -> None:
        pass

    def _output(self) -> DatabaseOutput:
        return cast("DatabaseOutput", make_output(self._config, self._section, self._spark))


@dataclass(frozen=True)
class _DatabaseRows:
    """A `tidelog.verify.range_sums.RowSource` of a copy in a database."""

    open_reader: OpenReader
    schema: TableSchema
    request: ChunkRequest
    columns: tuple[str, ...]
    bytes: int = 1  # unknown

    def batches(self) -> Iterator[pa.RecordBatch]:
        from tidelog.spark.source_rows import read_rows

        for batch in read_rows(self.open_reader, self.schema, [self.request]):
            yield batch.select(self.columns)


def _same_types(schema_of_copy: TableSchema, target: TargetTable) -> bool:
    """Return whether a copy has the target's columns and types, as the source writes them."""
    from tidelog.spark.formats.shapes import row_type
    from tidelog.spark.sessions.versions import arrow_schema

    if any(
        _base_type(column) in _DIGITS and column.logical == "text"
        for column in schema_of_copy.columns
    ):
        return False
    copy_types = {field.name: field.type for field in arrow_schema(row_type(schema_of_copy))}
    return all(copy_types.get(field.name) == field.type for field in target.columns)


# Types delivered as text that a copy in MySQL keeps with more digits than the source writes.
_DIGITS = ("time", "decimal")


def _base_type(column: Column) -> str:
    return column.type_name.partition("(")[0]


def _with_source_digits(
    rows: DataFrame, schema_of_copy: TableSchema, target: TargetTable
) -> DataFrame:
    """Return rows with times and numbers in the source's digits: trailing zeros mean nothing."""
    from pyspark.sql import functions as f

    for column in schema_of_copy.columns:
        source = target.unchanged.get(column.name)
        if source is None or column.logical != "text" or _base_type(column) not in _DIGITS:
            continue
        digits = 0  # the least number of digits: PostgreSQL omits zeros
        if schema_of_copy.wire_format == target.schema.wire_format:
            found = re.search(r"\((?:\d+,)?(\d+)\)", source.type_name)
            digits = int(found[1]) if found else 0
        zeros = f"([.][0-9]{{{digits}}}[0-9]*?)0+$" if digits else "([.][0-9]*[1-9])0+$|[.]0+$"
        value = f.regexp_replace(f.col(backticked(column.name)), zeros, "$1")
        rows = rows.withColumn(column.name, value)
    return rows


def _as_source(config: Config, section: Any, location: TableName) -> Config:
    options = {"kind": section.kind, "url": section.url, "tables": [str(location)]}
    source = SOURCES[section.kind].model_validate(options)
    return config.model_copy(update={"source": source})


# The comparison.

Item = TypeVar("Item")
Result = TypeVar("Result")

LEFT_OUT, NOT_COMPARED = "the output leaves it out", "not compared"
CATCH_UP_S = 180.0
SHORT_WAIT_S = 10.0
ABSENT_S, ABSENT_WAIT_S = 3.0, 20.0
"""How long it waits for capture, or a pipeline, before it reports that no process runs it, and
before it continues without it.
"""
POLL_EVERY_S, PAID_POLL_EVERY_S = 0.2, 2.0
"""Seconds between two polls while it waits for capture or an output: usually, and if polls cost
requests.
"""


def verify_outputs(
    config: AnyConfig,
    *,
    tables: Sequence[str] = (),
    repair: bool = False,
    on_progress: OnStatus | None = None,
    on_partial: Callable[[Verification], object] | None = None,
) -> Verification:
    """Compare source and outputs; with ``repair``, dump the keys that differ.

    ``on_progress`` is called with each ``table`` and ``output`` before it is compared, with the
    number of copies that are ``done``, ``of`` all, and again with the ``stage`` in words; before
    that, with a ``stage`` alone. Many tables are compared at a time. The first one waits while the
    output is behind, up to three minutes after its last progress.

    ``on_partial`` is called before an error, or KeyboardInterrupt, is raised that ends it early:
    with the report of what was compared, if anything was, and what was ``not_compared``.
    """
    on_progress, on_partial = on_progress or ignore_status, on_partial or ignore_status
    config = as_config(config)
    sections, log = _copies_to_compare(config)
    kind = source_kind(config)
    from tidelog.verify.compare import verify_tables

    catalogue = kind.catalogue()
    reports: list[TableComparison] = []
    planned: list[str] = []
    skipped = _Skipped()
    try:
        kind.check_source(log.captured_from)  # the event log must be of this source
        chosen = _choose_tables(catalogue, config, tables, sections)
        source = ComparedSource(config, kind)
        try:
            on_progress({"stage": "Spark starts"})
            planned = [
                f"{table} in {each.name}"
                for each in sections
                for table in chosen
                if is_compared(each, table)
            ]
            spark = _session(config)

            def counts() -> dict[str, int]:
                return {"done": len(reports) + len(skipped.named), "of": len(planned)}

            for section in sections:
                report_stage = partial(_report_stage, on_progress, section.name, counts)
                source.on_stage = report_stage
                named = [each for each in chosen if is_compared(section, each)]
                with closing(copies_of(config, section, spark)) as kept:
                    copies = _copies(
                        catalogue, kept, section.name, named, report_stage, skipped, source
                    )
                    for copy, report in verify_tables(spark, copies, source):
                        requested = None
                        if report.keys and repair:
                            requested = _repair(config, copy.target.schema, report.keys)
                        values = {each.name: getattr(report, each.name) for each in fields(report)}
                        reports.append(TableComparison(section.name, **values, repair=requested))
                reports += skipped.left_out
                skipped.left_out.clear()
        except BaseException as error:
            reports += skipped.left_out
            if reports or isinstance(error, KeyboardInterrupt):
                done = {each.copy for each in reports}
                rest = tuple(name for name in planned if name not in done)
                on_partial(_verification(reports, rest, equal=False))
                if reports and source.state is not None:
                    missed = [name for name in rest if name not in skipped.keyless]
                    store_results(source.state, reports, missed, whole=False)
            raise
        else:
            if skipped.named and not reports:
                raise UsageError(f"nothing was compared: {', '.join(skipped.named)}")
            if source.state is not None:
                store_results(source.state, reports, skipped.refused, whole=not tables)
        finally:
            source.close()
    finally:
        catalogue.close()
    equal = not skipped.refused and all(report.equal for report in reports)
    return _verification(reports, tuple(skipped.named), equal=equal)


def _verification(
    reports: Sequence[TableComparison], not_compared: tuple[str, ...], *, equal: bool
) -> Verification:
    dumped = [each.copy for each in reports if each.repair is not None and each.repair.is_requested]
    repaired = None
    if dumped:
        repaired = f"{', '.join(dumped)}: keys that differed are dumped again; run verify again"
    return Verification(equal, tuple(reports), not_compared or None, repaired)


class _Skipped:
    """Copies that can't be compared: without a key or refused, by name with the reason, and those
    whose output leaves them out.
    """

    def __init__(self) -> None:
        self.keyless: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.left_out: list[TableComparison] = []

    @property
    def named(self) -> list[str]:
        both = {**self.keyless, **self.refused}
        return [f"{copy} ({reason})" for copy, reason in both.items()]


def _copies_to_compare(config: Config) -> tuple[list[OutputSection], EventLog]:
    """Return the outputs that have copies, and the event log. Raises errors of what is missing."""
    if not config.outputs:
        raise UsageError("there are no outputs to compare with; add one under 'outputs'")
    sections = [section for section in config.outputs if section.copies]
    if not sections:
        kinds = ", ".join(kind for kind, section in OUTPUTS.items() if section.copies)
        raise UsageError(
            "no output keeps rows that could be compared: verify knows outputs of the kinds "
            + kinds
        )
    check_installed(sections)
    check_spark(config)
    path = event_log_path(config)
    if not EventLog.exists(path):
        raise EventLogError(f"{path} holds no event log; `tidelog run` creates one")
    return sections, EventLog.open(path)


def _report_stage(
    on_progress: OnStatus,
    output: str,
    counts: Callable[[], Mapping[str, int]],
    table: TableName,
    stage: str | None = None,
) -> None:
    """Report that the table is about to be compared, or a stage of that."""
    document = {"table": str(table), "output": output, **counts()}
    on_progress(document if stage is None else {**document, "stage": stage})


def _copies(
    catalogue: Catalogue,
    output_copies: Copies,
    output: str,
    tables: Iterable[TableName],
    report_stage: Callable[[TableName], None],
    skipped: _Skipped,
    source: ComparedSource,
) -> Iterator[Copy]:
    """Yield the copy of each table that has a key; name the others in ``skipped``."""
    for table in tables:
        report_stage(table)
        try:
            shape = catalogue.shape(table)
        except UnsupportedTableError as error:
            skipped.refused[f"{table} in {output}"] = f"not captured: {error.reason}"
            continue
        if shape is not None and shape.schema.match_key:
            try:
                copy = output_copies.of(shape.schema)
            except OutputError as error:
                is_left_out = isinstance(error, TableLeftOutError)
                note = f"{LEFT_OUT if is_left_out else NOT_COMPARED}: {error}"
                skipped.left_out.append(
                    TableComparison(
                        output, str(table), False, note=note, left_out=is_left_out or None
                    )
                )
            else:
                yield replace(copy, left_out=partial(source.left_out, output, table))
        elif shape is not None:
            skipped.keyless[f"{table} in {output}"] = "no key"


def _choose_tables(
    catalogue: Catalogue, config: Config, patterns: Sequence[str], sections: Sequence[Any]
) -> list[TableName]:
    captured = catalogue.tables(config.source.tables)
    chosen = choose_tables(catalogue, captured, patterns)
    for pattern in patterns:
        named = [table for table in chosen if matches([pattern], table)]
        if named and not any(is_compared(each, table) for each in sections for table in named):
            raise UsageError(f"no output keeps a copy of a table of {pattern!r} to compare")
    if captured and not any(is_compared(each, table) for each in sections for table in captured):
        raise UsageError("no output keeps a copy of a captured table: changes are not compared")
    return chosen


def _session(config: Config) -> SparkSession:
    from tidelog.spark.datasource.source import prepare_workers
    from tidelog.spark.sessions.connect import session_beside
    from tidelog.verify.digests import SESSION_CONF

    spark = session_beside(session(config), SESSION_CONF)
    prepare_workers(spark)
    return spark


class ComparedSource:
    """A `tidelog.verify.model.Source` over a configured source and its event log."""

    def __init__(self, config: Config, kind: SourceKind) -> None:
        self._path = event_log_path(config)
        self.log = EventLog.open(self._path)
        self.open_reader = OpenReader(config)
        self._kind = kind
        self._pause_s = config.dump.delay_ms / 1000
        self._readers: list[DigestReader] = [
            self._kind.digests() for _ in range(min(2, config.dump.parallelism))
        ]
        self._closed = False
        self._pool = ThreadPoolExecutor(len(self._readers), thread_name_prefix="tidelog-digests")
        exists = state_exists(config.state.location)
        self.state = open_state(config.state.location) if exists else None
        self._pipeline_lease = pipeline_lease_name(config.pipeline.name)
        self._elections = {
            name: open_election(config.state.location, name, "verify", 10)
            for name in (LEASE_NAME, self._pipeline_lease)
            if exists
        }
        self._absent: set[str] = set()  # leases that were waited for in vain
        self._max_wait_s = CATCH_UP_S
        self._poll_s = PAID_POLL_EVERY_S if is_url(self._path) else POLL_EVERY_S
        self.on_stage: Callable[[TableName, str], None] = lambda _table, _stage: None

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        for reader in self._readers:
            reader.close()
        for election in self._elections.values():
            election.close()
        if self.state is not None:
            self.state.close()

    def left_out(self, output: str, table: TableName) -> str | None:
        """Return why the output leaves the table out now; None if it does not."""
        from tidelog.outputs.base.left_out import LeftOutTableStore

        return LeftOutTableStore(self.state, self.log.generation, output).why_now(str(table))

    # ------------------------------------------------------------------ port

    def report_stage(self, table: TableName, stage: str) -> None:
        self.on_stage(table, stage)

    def why_not(self, schema: TableSchema, columns: Sequence[str]) -> str | None:
        return self._readers[0].why_not(schema, columns)

    def boundaries(
        self, requests: Sequence[ChunkRequest], count: int
    ) -> list[list[Key] | ChunkError]:
        from tidelog.spark.source_rows import retry_while_busy

        def ends(reader: DigestReader, request: ChunkRequest) -> list[Key] | ChunkError:
            try:
                return retry_while_busy(lambda: reader.boundaries(request, count))
            except ChunkError as error:
                return error

        return self._run_on_readers(ends, requests)()

    def digests(
        self, tables: Sequence[SourceRanges]
    ) -> Callable[[], list[list[Digest] | ChunkError]]:
        from tidelog.spark.source_rows import retry_while_busy

        failed: dict[int, ChunkError] = {}

        def digest(reader: DigestReader, part: tuple[int, Range]) -> Digest | None:
            number, (after, upto) = part
            table = tables[number]
            if number in failed:
                return None
            request = ChunkRequest(table.schema.table, after=after, upto=upto)
            try:
                result = retry_while_busy(
                    partial(reader.digest, request, table.schema, table.columns)
                )
            except ChunkError as error:
                failed[number] = error
                return None
            time.sleep(self._pause_s)
            return result

        parts = [(number, part) for number, table in enumerate(tables) for part in table.ranges]
        wait = self._run_on_readers(digest, parts)

        def digests() -> list[list[Digest] | ChunkError]:
            results: list[list[Digest]] = [[] for _ in tables]
            for (number, _), each in zip(parts, wait(), strict=True):
                if each is not None:
                    results[number].append(each)
            return [failed.get(number, each) for number, each in enumerate(results)]

        return digests

    def caught_up(self, copies: Sequence[Copy]) -> list[bool]:
        """Return whether the copies have caught up; wait while one makes progress.

        After a wait in vain, the next one is shorter. Comparing a copy that is far behind reads its
        rows one by one, repeatedly, and takes the cores from what it waits for.
        """
        if not copies:
            return []
        deadline = time.monotonic() + self._max_wait_s
        end = self._wait_for_position(
            self._readers[0].position(), deadline, copies[0].target.source
        )
        if end is None:
            self._max_wait_s = SHORT_WAIT_S
            return [False] * len(copies)
        return [self._wait_for_copy(copy, end) for copy in copies]

    def watch(self, table: TableName, copy: Copy) -> Callable[[SparkSession], DataFrame | bool]:
        from tidelog.spark.changed_keys import changed_keys, first_unseen

        reader = self._readers[0]
        snapshot = reader.snapshot()
        committed = copy.committed()

        def judge(spark: SparkSession) -> DataFrame | bool:
            end = self._wait_for_position(
                reader.position(), time.monotonic() + self._max_wait_s, table
            )
            if end is None:
                return True  # it is not known what changed in the meantime
            start = min(committed, first_unseen(self.log, table, snapshot, end))
            key = copy.target.schema.match_key
            return changed_keys(spark, self._path, self.log, table, key, start, end)

        return judge

    # ------------------------------------------------------------------ the source

    def _run_on_readers(
        self, work: Callable[[DigestReader, Item], Result], items: Sequence[Item]
    ) -> Callable[[], list[Result]]:
        """Start ``work`` for each item, with the next free reader.

        Returns a function that waits for the results, and returns them in order.
        """
        waiting = enumerate(items)  # each is given to one thread
        results: dict[int, Result] = {}

        def work_on(reader: DigestReader) -> None:
            try:
                while not self._closed and (item := next(waiting, None)) is not None:
                    results[item[0]] = work(reader, item[1])
            except BaseException:
                deque(waiting, maxlen=0)  # no thread starts another one
                raise

        begun = [self._pool.submit(work_on, reader) for reader in self._readers]

        def wait() -> list[Result]:
            for each in begun:
                each.result()
            return [results[number] for number in range(len(items))]

        return wait

    # ------------------------------------------------------------------ the log

    def _wait_for_copy(self, copy: Copy, end: int) -> bool:
        """Return whether the copy has everything below offset ``end``."""
        table = copy.target.source
        moved, before = time.monotonic(), -1
        while True:
            committed = copy.committed()
            self.log.check_offsets(committed)
            if not self._records(table, committed, end):
                return True
            if committed > before:
                moved, before = time.monotonic(), committed
            left = format_bytes(self.log.bytes_between(committed, end))
            what = f"waits for the output: {left} of the log to go"
            absent = self._report_wait(table, what, self._pipeline_lease, moved)
            if absent or time.monotonic() >= moved + self._max_wait_s:
                self._max_wait_s = SHORT_WAIT_S
                return False
            time.sleep(self._poll_s)

    def _wait_for_position(self, position: int, deadline: float, table: TableName) -> int | None:
        """Return the event log's end once it has all that was committed before ``position``.

        None if it does not have it in time. Reports only a wait, for ``table``.
        """
        begun = time.monotonic()
        while self._captured_position() < position:
            absent = self._report_wait(table, "waits for capture", LEASE_NAME, begun)
            if absent or time.monotonic() >= deadline:
                return None
            time.sleep(self._poll_s)
        return self.log.latest_offset()

    def _report_wait(self, table: TableName, what: str, lease: str, since: float) -> bool:
        """Report what it waits for. Returns True if it should not, as no process holds the
        ``lease`` and it has waited long enough.
        """
        waited = time.monotonic() - since
        absent = False
        if (waited >= ABSENT_S or lease in self._absent) and lease in self._elections:
            absent = self._elections[lease].leader() is None
        where = ", which no process runs: start `tidelog run CONFIG`" if absent else ""
        self.report_stage(table, f"{what}{where}")
        if absent and waited >= ABSENT_WAIT_S:
            self._absent.add(lease)
        elif not absent:
            self._absent.discard(lease)
        return lease in self._absent

    def _captured_position(self) -> int:
        """Return the position before which everything is in the event log.

        It is that of the last segment or of capture's status, which on an idle source is newer by
        seconds.
        """
        tail = self.log.tail
        covered = 0
        if tail is not None and tail.resume is not None:
            covered = max(tail.resume.acknowledge, tail.last_position or 0)
        if self.state is not None:
            generation, status = self.state.get(GENERATION_KEY), self.state.get(STATUS_KEY)
            if generation is not None and generation.value == self.log.generation and status:
                covered = max(covered, int(status.value.get("capture", {}).get("covered", 0)))
        return covered

    def _records(self, table: TableName, start: int, end: int) -> bool:
        """Return whether there are records of the table in ``[start, end)``."""
        start = max(start, self.log.head_offset)
        if start >= end:
            return False
        return any(
            batch.num_rows
            for ref in self.log.segments(start, end, tables=(str(table),))
            if ref.rows
            for batch in self.log.batches(ref, ("offset",), tables=(str(table),))
        )


def _repair(
    config: Config, schema: TableSchema, keys: Sequence[tuple[str | None, ...]]
) -> RepairRequest:
    dump_id = f"repair-{new_id().lower()}"
    from tidelog.codecs.wire_formats import source_spellings

    spelled = [source_spellings(key, schema, schema.match_key) for key in keys]
    # The source has one of two spellings; a dump of the other one would delete its copy.
    sure = [found[0] for found in spelled if len(found) == 1]
    left_out = len(keys) - len(sure)
    if not sure:
        return RepairRequest(None, "none", None, left_out)
    whole = [tuple(part for part in key if part is not None) for key in sure]
    command = StartDump(
        dump_id=dump_id,
        tables=(str(schema.table),),
        keys=tuple(key for key in whole if len(key) == len(schema.match_key)),
        key_columns=schema.match_key,
    )
    outcome = send_command(config, command, timeout_s=30)
    return RepairRequest(dump_id, outcome.state, outcome.error, left_out)
