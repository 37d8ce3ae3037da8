"""Appends to the event log: fenced, in order, and durable on return."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.errors import (
    AppendRaceLostError,
    EventLogError,
    LeaseLostError,
    OutcomeUnknownError,
    StorageError,
)
from tidelog.eventlog.chain import ChainReader
from tidelog.eventlog.log_files import CHAIN_FILE, check_source, create_log, load_log
from tidelog.eventlog.log_poller import HostNotes
from tidelog.eventlog.reader import first_offset_after
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.segments import (
    Identity,
    SegmentMeta,
    encode_segment,
    payload_bytes,
    record_offsets,
    segment_name,
    to_record_batches,
)
from tidelog.eventlog.storage import storage_at
from tidelog.eventlog.storage_port import Guard, Storage
from tidelog.model.records import ChunkMeta, LogBatch, RecordKind, Resume
from tidelog.ports import SchemaRegistry, SourceId
from tidelog.system import failpoints
from tidelog.system.processes import unix_ms


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Counts and bounds of a segment's records; None: there are none. ``rows_by_schema`` counts
    control records as schema 0, ``rows_by_table`` leaves them out.
    """

    rows_by_schema: dict[int, int]
    rows_by_table: dict[str, int]
    payload_bytes: int
    first_position: int | None
    last_position: int | None
    min_xid: int | None
    max_xid: int | None

    @classmethod
    def of(cls, records: Sequence[pa.RecordBatch], table: Callable[[int], str]) -> RecordCounts:
        """Count the records; ``table``: returns the table name of a schema id."""
        by_schema: Counter[int] = Counter()
        xids: list[int] = []
        for record in records:
            counts = np.bincount(record.column("schema_id").to_numpy())
            for schema_id in np.flatnonzero(counts).tolist():
                by_schema[schema_id] += int(counts[schema_id])
            xid = record.column("xid").to_numpy()
            present = xid[xid > 0]
            if len(present):
                xids += [int(present.min()), int(present.max())]
        by_table: Counter[str] = Counter()
        for schema_id, rows in by_schema.items():
            if schema_id:
                by_table[table(schema_id)] += rows
        positions = [record.column("position") for record in records]
        return cls(
            rows_by_schema=dict(by_schema),
            rows_by_table=dict(by_table),
            payload_bytes=sum(map(payload_bytes, records)),
            first_position=positions[0][0].as_py() if positions else None,
            last_position=positions[-1][-1].as_py() if positions else None,
            min_xid=min(xids, default=None),
            max_xid=max(xids, default=None),
        )


_FENCE_ATTEMPTS: Final = 100


class EventLogWriter:
    """The only writer of an event log, while its lease is valid. Used by one thread at a time.

    Every append returns only when its segment is durable, or raises:

    - AppendRaceLostError, LeaseLostError: another writer owns the tail, or may; or it is not known
      whether the segment is durable. This writer is closed. Discard buffers and windows, open a new
      writer and restart the source from its `resume`.
    - StorageError: nothing became visible; the same append may be retried.
    """

    def __init__(
        self,
        storage: Storage,
        source: SourceId,
        epoch: int,
        *,
        check_lease: Guard | None = None,
        schemas: SchemaRegistry | None = None,
        chain: ChainReader | None = None,
        seen: int | None = None,
    ) -> None:
        """Take over the tail: see `open`. ``chain``: a reader for this object only, with a cached
        chain. ``seen``: see `tidelog.eventlog.reader.first_offset_after`; None: begin at the tail.
        """
        self.storage = storage
        self.info = load_log(storage) if chain is None else chain.info
        self.source = source
        self.epoch = epoch
        self.nonce = secrets.token_hex(8)
        self.schemas: SchemaRegistry = SchemaStore(storage) if schemas is None else schemas
        self._check_lease = check_lease
        self._chain = ChainReader(storage, self.info) if chain is None else chain
        self._seen = seen
        self._notes = HostNotes(storage, self.info.generation)
        self._closed: EventLogError | LeaseLostError | None = None
        self._tables: dict[int, str] = {}
        self._tail: SegmentMeta | None = None
        check_source(storage, source, self.info.source)
        if check_lease is not None:
            check_lease()
        tail = self._find_tail()
        storage.sweep()
        self._fence(tail)

    @classmethod
    def open(
        cls,
        path: str | Path,
        source: SourceId,
        epoch: int,
        *,
        check_lease: Guard | None = None,
        schemas: SchemaRegistry | None = None,
    ) -> EventLogWriter:
        """Open the log at its tail and append a fence segment, which shuts older writers out.

        Args:
            path: the event log's directory, or its URL on an object store.
            source: must be the log's, except for the timeline.
            epoch: epoch of our lease; not below the tail's.
            check_lease: called right before a segment becomes visible; may raise LeaseLostError.
            schemas: returns the tables of schema ids; the log's own schema store by default.

        Raises:
            EventLogError: if there is no log; see `create`.
            SourceChangedError: if the log belongs to another source.
            LeaseLostError: if a leader with a greater epoch has written.
        """
        return cls(storage_at(path), source, epoch, check_lease=check_lease, schemas=schemas)

    @classmethod
    def create(
        cls,
        path: str | Path,
        source: SourceId,
        epoch: int,
        *,
        start_offset: int = 0,
        check_lease: Guard | None = None,
        schemas: SchemaRegistry | None = None,
    ) -> EventLogWriter:
        """Create the log unless it exists, then `open` it. ``start_offset``: first offset of a new
        log; a log recreated at the same place must begin above every offset issued before, so that
        outputs can still compare versions.
        """
        create_log(storage_at(path), source, start_offset)
        return cls.open(path, source, epoch, check_lease=check_lease, schemas=schemas)

    @property
    def generation(self) -> str:
        return self.info.generation

    @property
    def tail(self) -> SegmentMeta:
        """The last durable segment; after opening, our fence."""
        assert self._tail is not None
        return self._tail

    @property
    def next_offset(self) -> int:
        return self.tail.next

    @property
    def resume(self) -> Resume | None:
        """Where the source resumes; None if the log has no position yet."""
        return self.tail.resume

    @property
    def closed(self) -> bool:
        """True after a lost race: this instance can't append any more."""
        return self._closed is not None

    def append_log(self, batches: Sequence[LogBatch], resume: Resume | None = None) -> SegmentMeta:
        """Append records of the source's log as one segment.

        Args:
            batches: batches in log order, after what was appended before.
            resume: where a restart resumes after them; the last batch's by default.

        Raises:
            ValueError: if the records or ``resume`` do not follow the tail; a bug in the caller.
        """
        filled = [batch for batch in batches if len(batch)]
        if resume is None:
            if not batches:
                raise ValueError("append_log needs batches or a resume")
            resume = batches[-1].resume
        if not filled:
            return self.append_position(resume)
        if self.resume is not None:
            first = (int(filled[0].position[0]), int(filled[0].ordinal[0]))
            durable = (self.resume.position, self.resume.ordinal)
            if first <= durable:
                raise ValueError(f"record {first} is not after {durable}, which is durable already")
        return self._append("log", filled, resume)

    def append_chunk(self, rows: LogBatch, chunk: ChunkMeta, position: int) -> SegmentMeta:
        """Append a chunk's remaining rows (kinds DUMP_ROW and ABSENT), all at ``position``."""
        if np.any((rows.kind != RecordKind.DUMP_ROW) & (rows.kind != RecordKind.ABSENT)):
            raise ValueError("a chunk holds dump rows and absent keys only")
        placed = replace(rows, position=np.full(len(rows), position, np.int64))
        return self._append("chunk", [placed], self.resume, chunks=(chunk,))

    def append_position(self, resume: Resume) -> SegmentMeta:
        """Append a segment without records, so that ``resume`` may be acknowledged to the
        source.
        """
        return self._append("position", [], resume)

    def append_control(self, message: Any, resume: Resume | None = None) -> SegmentMeta:
        """Append one CONTROL record whose payload is ``message`` as JSON."""
        return self.append_controls([message], resume)[0]

    def append_controls(
        self, messages: Sequence[Any], resume: Resume | None = None
    ) -> tuple[SegmentMeta, list[int]]:
        """Append a CONTROL record for each of ``messages``, which is its payload as JSON; returns
        also the offsets of these records.
        """
        resume = self.resume if resume is None else resume
        at = Resume(0, 0, 0) if resume is None else resume
        payloads = [
            json.dumps(message, separators=(",", ":"), sort_keys=True).encode()
            for message in messages
        ]
        records = LogBatch.of_transaction(
            RecordKind.CONTROL,
            [(0, at.ordinal, payload) for payload in payloads],
            position=at.position,
            xid=0,
            commit_ts=time.time_ns() // 1000,
            resume=at,
        )
        meta = self._append("control", [records], resume)
        offsets, _ = record_offsets(meta.first, records.kind, records.payload_offsets)
        return meta, offsets.tolist()

    def idle(self) -> None:
        """Note for readers on this host that the writer runs although it appends nothing."""
        if self._closed is None:
            self._notes.note_alive()

    def close(self) -> None:
        """Append no more. Idempotent."""
        if self._closed is None:
            self._closed = EventLogError("this event log writer is closed")

    def _find_tail(self) -> SegmentMeta | None:
        """The segment that our fence follows."""
        self._state_tag = self.storage.tag(CHAIN_FILE)
        if (tail := self._chain.tail()) is not None:
            check_source(self.storage, self.source, tail.source)
            self._check_epoch(tail)
        self.state_revision = 0 if tail is None else tail.state_revision
        return tail

    def _fence(self, tail: SegmentMeta | None) -> None:
        for _ in range(_FENCE_ATTEMPTS):
            if tail is not None:
                # The segment before our first append must not be lost after it.
                self.storage.make_durable(tail.name)
            self._tail = tail
            failpoints.hit("writer.before_fence")
            upto = 0 if tail is None else first_offset_after(tail, self._seen)
            try:
                self._append("fence", [], self.resume if tail else None, upto=upto)
                return
            except AppendRaceLostError:  # the old leader's last segment came first: it counts
                self._closed, tail = None, self._find_tail()
        raise AppendRaceLostError(
            f"{self.storage!r}: could not append a fence in {_FENCE_ATTEMPTS} attempts; another "
            "writer keeps appending. Is it leader under another state store?"
        )

    def _append(
        self,
        kind: str,
        batches: Sequence[LogBatch],
        resume: Resume | None,
        chunks: tuple[ChunkMeta, ...] = (),
        upto: int = 0,
    ) -> SegmentMeta:
        if self._closed is not None:
            raise self._closed
        before = self._tail
        self._check_resume(before, resume)
        first = self.info.start_offset if before is None else before.next
        records, following = to_record_batches(batches, first)
        meta = self._describe(kind, records, resume, chunks, first, max(following, first + 1, upto))
        if upto > first:
            meta = replace(meta, unused=((first, upto),))
        self._put(meta, encode_segment(meta, records))
        try:
            self._check_on_chain(meta)
        except AppendRaceLostError:
            raise
        except EventLogError as error:
            self._closed = AppendRaceLostError(
                f"{self.storage!r}: segment {meta.name} was written, but whether another writer "
                "leads by now is unknown. Restart from the tail."
            )
            raise self._closed from error
        self._tail = meta
        self._notes.note_append(meta.next)
        return meta

    def _describe(
        self,
        kind: str,
        records: Sequence[pa.RecordBatch],
        resume: Resume | None,
        chunks: tuple[ChunkMeta, ...],
        first: int,
        following: int,
    ) -> SegmentMeta:
        counts = RecordCounts.of(records, self._table)
        name = segment_name(first)
        return SegmentMeta(
            kind=kind,
            generation=self.info.generation,
            source=self.source,
            epoch=self.epoch,
            nonce=self.nonce,
            pred=None if self._tail is None else self._tail.tail,
            tail=Identity(name, self.epoch, self.nonce),
            first=first,
            next=following,
            first_position=counts.first_position,
            last_position=counts.last_position,
            resume=resume,
            min_xid=counts.min_xid,
            max_xid=counts.max_xid,
            rows=sum(counts.rows_by_schema.values()),
            rows_by_table=counts.rows_by_table,
            rows_by_schema=counts.rows_by_schema,
            payload_bytes=counts.payload_bytes,
            chunks=chunks,
            created_ms=unix_ms(),
            state_revision=self.state_revision,
        )

    def _put(self, meta: SegmentMeta, data: pa.Buffer) -> None:
        try:
            created = self.storage.put_if_absent(meta.name, data, self._check_lease)
        except LeaseLostError as error:
            self._closed = error
            raise
        except StorageError as error:
            if self._was_written(meta, error):
                self._require_ours(meta, error)
                return
            raise
        if not created:
            self._require_ours(meta, None)

    def _was_written(self, meta: SegmentMeta, failure: StorageError) -> bool:
        """Did a failed put succeed after all? If it may succeed later, this writer is closed: it
        must not write another segment under the same name.
        """
        try:
            if self.storage.tag(meta.name) is not None:
                return True
            if not isinstance(failure, OutcomeUnknownError):
                return False
        except StorageError:
            pass
        self._closed = AppendRaceLostError(
            f"{self.storage!r}: whether segment {meta.name} was written is unknown. Restart from "
            "the tail."
        )
        raise self._closed from failure

    def _require_ours(self, meta: SegmentMeta, failure: StorageError | None) -> None:
        """Check that the segment is ours after a failed put whose name exists, or a conflict."""
        try:
            mine = self._chain.meta(meta.name).nonce == self.nonce
        except FileNotFoundError:
            mine = False
        except EventLogError as error:
            self._closed = error
            raise
        if not mine:
            self._closed = AppendRaceLostError(
                f"{self.storage!r}: another writer appended at offset {meta.first}; epoch "
                f"{self.epoch} (nonce {self.nonce}) no longer leads. Restart from the tail."
            )
            raise self._closed
        try:
            self.storage.make_durable(meta.name)
        except StorageError as error:
            self._closed = AppendRaceLostError(
                f"{self.storage!r}: segment {meta.name} was written, but whether it is durable is "
                "unknown. Restart from the tail."
            )
            raise self._closed from (failure or error)

    def _check_on_chain(self, meta: SegmentMeta) -> None:
        """Check that our segment is in the log: if names were freed since we read the tail, its
        name may be one of them.

        The newest segment is always on the chain, so nothing may be newer than ours.
        """
        if (state_tag := self.storage.tag(CHAIN_FILE)) == self._state_tag:
            return
        newest = self._chain.newest()
        if newest is None or newest.identity != meta.identity:
            self._closed = AppendRaceLostError(
                f"{self.storage!r}: segment {meta.name} was appended under epoch {self.epoch}, but "
                "another writer leads by now; it may not be in the log. Restart from the tail."
            )
            raise self._closed
        self._state_tag = state_tag

    def _check_resume(self, tail: SegmentMeta | None, resume: Resume | None) -> None:
        if tail is None or tail.resume is None:
            return
        old = tail.resume
        if resume is None or (
            (resume.position, resume.ordinal) < (old.position, old.ordinal)
            or resume.acknowledge < old.acknowledge
        ):
            raise ValueError(f"{resume} would move the log's end backward from {old}")

    def _check_epoch(self, tail: SegmentMeta | None) -> None:
        if tail is not None and tail.epoch > self.epoch:
            raise LeaseLostError(
                f"segment {tail.name} was written under epoch {tail.epoch}, our lease has "
                f"epoch {self.epoch}: a newer leader exists. If the state store was "
                f"recreated, start its election above epoch {tail.epoch}."
            )

    def _table(self, schema_id: int) -> str:
        table = self._tables.get(schema_id)
        if table is None:
            table = self._tables[schema_id] = str(self.schemas.get(schema_id).table)
        return table
