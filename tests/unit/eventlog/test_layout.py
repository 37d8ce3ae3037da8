"""Offsets, names, metadata and the encoding of segments."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from tests.unit.eventlog.records import SOURCE, batch, chunk

from tidelog.eventlog.segments import (
    Identity,
    SegmentFile,
    SegmentMeta,
    encode_segment,
    first_offset_of,
    is_segment_name,
    record_offsets,
    segment_name,
    to_record_batches,
)
from tidelog.eventlog.storage import LocalStorage
from tidelog.model.records import RecordKind, Resume
from tidelog.system import failpoints

KINDS = st.sampled_from(
    [
        RecordKind.INSERT,
        RecordKind.DELETE,
        RecordKind.CONTROL,
        RecordKind.DUMP_ROW,
        RecordKind.ABSENT,
    ]
)


@given(
    first=st.integers(0, 2**62),
    records=st.lists(st.tuples(KINDS, st.integers(0, 5)), max_size=30),
)
def test_offsets_advance_by_payload_bytes_and_by_one_for_dump_rows(first, records):
    kind = np.array([k for k, _ in records], np.uint8)
    bounds = np.cumsum([0, *(length for _, length in records)]).astype(np.int32)
    offsets, following = record_offsets(first, kind, bounds)
    expected = first
    for (one, length), offset in zip(records, offsets.tolist(), strict=True):
        assert offset == expected
        expected += 1 if one in (RecordKind.DUMP_ROW, RecordKind.ABSENT) else max(1, length)
    assert following == expected
    # version = offset + index of the row: unique, because each row takes at least a byte
    assert len(set(offsets.tolist())) == len(records)


@given(st.integers(0, 2**63 - 1))
def test_names_order_as_offsets(first):
    name = segment_name(first)
    assert is_segment_name(name)
    assert first_offset_of(name) == first
    assert (name < segment_name(2**62)) == (first < 2**62)


def test_other_files_are_no_segments():
    for name in ("log.json", "1.arrow", ".tmp-1-" + segment_name(1), segment_name(1) + ".bak"):
        assert not is_segment_name(name)


def example_meta(**changes) -> SegmentMeta:
    fields = {
        "kind": "log",
        "generation": "g",
        "source": SOURCE,
        "epoch": 3,
        "nonce": "n",
        "pred": Identity(segment_name(1), 2, "m"),
        "tail": Identity(segment_name(5), 3, "n"),
        "first": 5,
        "next": 9,
        "first_position": 1,
        "last_position": 2**62,
        "resume": Resume(1, 2, 3),
        "min_xid": None,
        "max_xid": None,
        "rows": 0,
        "rows_by_table": {"public.Größe": 4},
        "rows_by_schema": {1: 4},
        "payload_bytes": 4,
        "chunks": (chunk(),),
        "created_ms": 1,
    }
    return SegmentMeta(**{**fields, **changes})


@pytest.mark.parametrize(
    "meta",
    [
        example_meta(),
        example_meta(pred=None, resume=None, first_position=None, chunks=()),
        example_meta(
            merged=(
                Identity(segment_name(5), 2, "m"),
                Identity(segment_name(6), 2, "m"),
                Identity(segment_name(8), 3, "n"),
            )
        ),
    ],
)
def test_metadata_survives_the_round_trip(meta):
    assert SegmentMeta.from_bytes(meta.to_bytes(), "it") == meta


@given(
    st.lists(st.lists(st.binary(max_size=300), max_size=8), max_size=6),
)
def test_encoding_keeps_every_record(lists):
    batches = [batch(payload, 10 + i, xid=i) for i, payload in enumerate(lists)]
    records, following = to_record_batches(batches, 100)
    flat = [p for payload in lists for p in payload]
    assert following == 100 + sum(max(1, len(p)) for p in flat)
    stored = [p for record in records for p in record.column("payload").to_pylist()]
    assert stored == flat
    assert [x for r in records for x in r.column("xid").to_pylist()] == [
        i for i, payload in enumerate(lists) for _ in payload
    ]


def test_large_batches_are_not_copied():
    one = batch([bytes(400_000)], 10)
    (record,), _ = to_record_batches([one], 0)
    assert record.column("payload").buffers()[2].address == one.payload.ctypes.data


def test_slices_and_column_subsets_are_verified(tmp_path):
    storage = LocalStorage(tmp_path)
    records, following = to_record_batches([batch([b"abc"] * 10, 10)], 5)
    meta = example_meta(next=following, rows=4)
    storage.put_if_absent(meta.name, encode_segment(meta, [records[0].slice(3, 4)]))
    (read,) = SegmentFile(storage, meta.name, ["offset", "payload"]).batches()
    assert read.column_names == ["offset", "payload"]
    assert read.column("offset").to_pylist() == [14, 17, 20, 23]
    (whole,) = SegmentFile(storage, meta.name).batches()
    assert whole.column("payload") == pa.array([b"abc"] * 4, pa.binary())


def test_failpoints_parse_and_count():
    with pytest.raises(ValueError, match="name:action"):
        failpoints.parse("a:explode")
    armed = failpoints.parse("a:error:2, b:error")
    armed["a"]()
    with pytest.raises(OSError, match="failpoint"):
        armed["a"]()
    armed["a"]()
    with failpoints.arm(armed), pytest.raises(OSError, match="failpoint"):
        failpoints.hit("b")


def test_a_failpoint_acts_while_its_file_is_there(tmp_path):
    armed = failpoints.parse(f"a:error:{tmp_path / 'armed'}")
    armed["a"]()
    (tmp_path / "armed").touch()
    with pytest.raises(OSError, match="failpoint"):
        armed["a"]()
    (tmp_path / "armed").unlink()
    armed["a"]()
    failpoints.hit("b")
