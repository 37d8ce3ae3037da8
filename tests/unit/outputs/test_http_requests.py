"""What requests hold: the same for the same messages, however they come."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.support.certificates import write_certificates
from tests.support.output_options import body as request_body

from tidelog.outputs.http.requests import (
    Body,
    RequestMessages,
    build_messages,
    request_key,
    split_requests,
    trusted_authorities,
)


def rows(messages: list[tuple[int, int]]) -> pa.RecordBatch:
    """(version, length) of each."""
    return pa.RecordBatch.from_pydict(
        {
            "table": pa.repeat(pa.scalar("t"), len(messages)),
            "version": pa.array([version for version, _ in messages], pa.int64()),
            "value": pa.array([f'"{"x" * n}"'.encode() for _, n in messages], pa.binary()),
        }
    )


def requests(messages: list[tuple[int, int]], parts: list[int], body: Body) -> list[bytes]:
    """The requests if messages come ``parts`` at a time."""
    found: list[RequestMessages] = []
    waiting = rows([])
    at = 0
    for size in [*parts, len(messages)]:
        new = rows(messages[at : at + size])
        at += new.num_rows
        waiting = pa.concat_batches([waiting, new])
        full, rest = split_requests(build_messages(waiting, body), body, final=False)
        found += full
        waiting = waiting.slice(rest)
    full, rest = split_requests(build_messages(waiting, body), body, final=True)
    assert rest == waiting.num_rows
    return [each.body(body.kind) for each in [*found, *full]]


@st.composite
def some(draw: st.DrawFn) -> list[tuple[int, int]]:
    steps = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=40))
    version, found = 1, []
    for step, length in steps:
        version += step
        found.append((version, length))
    return found


@given(
    some(),
    st.lists(st.integers(0, 9), max_size=20),
    st.integers(1, 7),
    st.integers(1, 120),
    st.sampled_from(["array", "ndjson"]),
)
def test_requests_don_t_depend_on_how_messages_come(
    messages: list[tuple[int, int]], parts: list[int], size: int, size_bytes: int, kind: str
) -> None:
    body = Body(kind, size, size_bytes)
    found = requests(messages, parts, body)
    assert found == requests(messages, [], body)
    lines = [line for each in found for line in _parsed(each, kind)]
    assert lines == ["x" * length for _, length in messages]


@given(some(), st.integers(1, 7))
def test_no_two_requests_of_a_lane_have_one_key(messages: list[tuple[int, int]], size: int) -> None:
    body = Body("array", size, 100)
    full, _ = split_requests(build_messages(rows(messages), body), body, final=True)
    keys = [request_key("api", "g", "t", 0, each.span) for each in full]
    assert len(set(keys)) == len(keys)


@given(some(), st.integers(1, 200))
def test_requests_keep_within_their_limits_but_for_one_version(
    messages: list[tuple[int, int]], size_bytes: int
) -> None:
    body = Body("ndjson", 5, size_bytes)
    full, _ = split_requests(build_messages(rows(messages), body), body, final=True)
    for each in full:
        several = len(set(each.versions[each.start : each.end].tolist())) > 1
        last = int((each.versions[each.start : each.end] == each.span[1]).sum())
        assert not several or each.end - each.start - last < 5
        assert not several or each.bounds[each.end - last] - each.bounds[each.start] <= size_bytes


def test_halves_part_between_versions() -> None:
    body = request_body()
    whole = build_messages(rows([(1, 1), (2, 1), (2, 1), (2, 1)]), body)
    first, second = whole.halves() or (None, None)
    assert first is not None
    assert second is not None
    assert (first.span, second.span) == ((1, 1), (2, 2))
    assert second.halves() is None


def test_a_key_is_short_and_ascii() -> None:
    assert request_key("api", "g", "public.t", 2, (5, 9)) == "api/g/public.t/2/5-9"
    assert request_key("api", "g", "p.t\u00e9 x", 2, (5, 9)) == "api/g/p.t%C3%A9%20x/2/5-9"
    assert len(request_key("api", "g", "t" * 300, 2, (5, 9))) == 64


def _parsed(request: bytes, kind: str) -> list[str]:
    if kind == "array":
        return list(json.loads(request))
    return [json.loads(line) for line in request.splitlines()]


def test_authorities_are_read_again_when_their_file_changes(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    file = tmp_path / "ca.pem"
    first = trusted_authorities(str(file))
    assert trusted_authorities(str(file)) is first
    os.utime(file, ns=(1, 1))
    assert trusted_authorities(str(file)) is not first
    assert trusted_authorities(None) is trusted_authorities(None) is not first
