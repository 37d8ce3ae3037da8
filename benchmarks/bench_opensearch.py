"""Event log → OpenSearch, against the same documents sent by hand, ready-made, ``local[2]``.

python -m benchmarks.bench_opensearch [--rows 300000] [--tables 2]
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tests.support.build_log import BuiltLog
from tests.support.opensearch import OpenSearchServer

from benchmarks.spark_workload import COLUMNS, Meter, append, delivered_s, drawn, report
from benchmarks.table import Row, show
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.opensearch.client import ClusterOptions
from tidelog.outputs.opensearch.output import OpenSearchOutput
from tidelog.spark import spark_session
from tidelog.state.sqlite import SqliteState

_JVM = ["-Xms2g", "-Xmx2g", "-XX:+UseSerialGC"]
_SETTINGS = {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "30s"}
_BY_HAND_BYTES = (1 << 20, 4 << 20)  # of requests; the best counts
_BY_HAND_AT_ONCE = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--tables", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.rows = 4_000
    with (
        OpenSearchServer(jvm=_JVM) as server,
        tempfile.TemporaryDirectory(prefix="tidelog-bench-") as scratch,
    ):
        _run(given, server, Path(scratch))


def _run(given: argparse.Namespace, server: OpenSearchServer, scratch: Path) -> None:
    names = _build(scratch / "log", given)
    spark = spark_session("local[2]", delta=False)

    def bring(prefix: str) -> float:
        output = OpenSearchOutput(
            spark, str(scratch / "log"), SqliteState(f"sqlite:///{scratch / 'state.db'}"),
            Delivery(prefix), cluster=ClusterOptions((server.url,)), index=prefix + "-{name}",
            create_indices=True, tombstone_retention_s=86_400.0, bulk_bytes=4 << 20,
            settings=_SETTINGS,
        )  # fmt: skip
        return delivered_s(spark, scratch / "log", output, prefix)

    bring("first")  # workers, compiled kernels, the node's own code
    _drop(server, "first", names)
    documents = {name: _documents(given, name, number) for number, name in enumerate(names)}
    by_hand, ours, rows = [], [], 0
    # In turns: the node's code gets faster for minutes.
    for attempt, size in enumerate(_BY_HAND_BYTES):
        by_hand.append(_by_hand(server, documents, 2 * attempt, size))
        node = _node_cpu(server)
        with Meter() as meter:
            ours.append(bring(f"tidelog{attempt}"))
        node = _node_cpu(server) - node
        rows = _count(server, [f"tidelog{attempt}-{name}" for name in names])
        report("event log → OpenSearch, with the query's start", rows, meter.reading)
        print(f"  of which the node {node / rows * 1e6:.1f} µs CPU a row", flush=True)
        _drop(server, f"tidelog{attempt}", names)
        by_hand.append(_by_hand(server, documents, 2 * attempt + 1, size))
    seconds = min(ours)
    floor = min(by_hand)
    size = sum(map(len, documents[names[0]])) // len(documents[names[0]])
    show(
        [
            Row(
                f"event log → OpenSearch ({given.tables} tables, {rows:,} rows of {size} bytes)",
                f"{rows / seconds:,.0f} rows/s",
                f"{rows / floor:,.0f} rows/s (ready-made bulk requests, two at once)",
                f"{floor / seconds:.2f} ×",
                "≥ 0.7 ×",
            )
        ]
    )
    spark.stop()


def _build(path: Path, given: argparse.Namespace) -> list[str]:
    built = BuiltLog(path)
    names = [f"orders{number}" for number in range(given.tables)]
    for number, name in enumerate(names):
        schema = built.table(f"bench.{name}", COLUMNS)
        count = given.rows // given.tables
        random, notes = drawn(number)
        append(built, schema, np.arange(count), np.zeros(count, np.int64), notes, random, "I")
    return names


def _documents(given: argparse.Namespace, name: str, number: int) -> list[bytes]:
    """Of each row what a bulk request holds: action and document."""
    _, notes = drawn(number)
    lines = []
    for i in range(given.rows // given.tables):
        row = {
            "id": i,
            "customer_id": i % 50_000,
            "status": ("new", "paid", "shipped", "returned")[i % 4],
            "amount": f"{i % 10_000}.{i % 100:02d}",
            "quantity": i % 100,
            "price": i % 1000 + 0.25,
            "created_at": f"2026-07-{i % 28 + 1:02d}T12:{i % 60:02d}:{i % 60:02d}.{i:06d}Z",
            "shipped": bool(i % 3),
            "note": notes[i % 4096].decode(),
            "code": f"C-{i:08d}",
            "_tidelog": {"version": i},
        }
        text = json.dumps(row, separators=(",", ":"))
        lines.append(f'{{"index":{{"_id":"{i}"}}}}\n{text}\n'.encode())
    return lines


def _by_hand(
    server: OpenSearchServer, documents: dict[str, list[bytes]], attempt: int, size: int
) -> float:
    """Seconds for requests that were made before, into indices of the same mapping."""
    requests: list[tuple[str, bytes]] = []
    for name, lines in documents.items():
        found = _ask(server, "GET", f"/mapping-{name}/_mapping")
        mappings = next(iter(found.values()))["mappings"]
        body = {"settings": _SETTINGS, "mappings": mappings}
        _ask(server, "PUT", f"/hand{attempt}-{name}", body)
        per_request = max(1, size * len(lines) // sum(map(len, lines)))
        for start in range(0, len(lines), per_request):
            requests.append(
                (f"/hand{attempt}-{name}", b"".join(lines[start : start + per_request]))
            )
    node, started = _node_cpu(server), time.perf_counter()
    with Meter() as meter, ThreadPoolExecutor(_BY_HAND_AT_ONCE) as pool:
        list(
            pool.map(
                lambda share: _send(server, share),
                [requests[i::_BY_HAND_AT_ONCE] for i in range(_BY_HAND_AT_ONCE)],
            )
        )
    seconds = time.perf_counter() - started
    rows = sum(map(len, documents.values()))
    report(f"by hand, requests of {size >> 20} MiB", rows, meter.reading)
    node = _node_cpu(server) - node
    print(f"  of which the node {node / rows * 1e6:.1f} µs CPU a row", flush=True)
    for name in documents:
        _ask(server, "DELETE", f"/hand{attempt}-{name}")
    return seconds


def _send(server: OpenSearchServer, requests: list[tuple[str, bytes]]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    for index, body in requests:
        connection.request(
            "POST", f"{index}/_bulk?filter_path=errors", body,
            {"Content-Type": "application/x-ndjson"},
        )  # fmt: skip
        answer = connection.getresponse().read()
        assert answer == b'{"errors":false}', answer[:200]
    connection.close()


def _node_cpu(server: OpenSearchServer) -> float:
    times = psutil.Process(server.pid).cpu_times()
    return times.user + times.system


def _drop(server: OpenSearchServer, prefix: str, names: list[str]) -> None:
    """The indices; keeps one empty index a table, for its mapping."""
    for name in names:
        index = f"{prefix}-{name}-000001"
        if prefix == "first":
            mappings = _ask(server, "GET", f"/{index}/_mapping")[index]["mappings"]
            body = {"settings": _SETTINGS, "mappings": mappings}
            _ask(server, "PUT", f"/mapping-{name}", body)
        _ask(server, "DELETE", f"/{index}")


def _count(server: OpenSearchServer, names: list[str]) -> int:
    found = 0
    for name in names:
        _ask(server, "POST", f"/{name}/_refresh")
        found += _ask(server, "GET", f"/{name}/_count")["count"]
    return found


def _ask(server: OpenSearchServer, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        server.url + path, data, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    main()
