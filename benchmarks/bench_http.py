"""Event log → an API that takes all, against typed Arrow columns that one call of Arrow formats and
httpx posts. Tasks and floor run in this process, by turns; the API is a process of its own.

python -m benchmarks.bench_http [--changes 200000]
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.compute as pc
from tests.support.http_receiver import HttpReceiver
from tests.support.output_options import body as request_body
from tests.support.output_options import endpoint as request_endpoint

from benchmarks.spark_workload import TasksHere, build_tables, delivered_s, typed_rows
from benchmarks.table import Row, show
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.formatters import formatter
from tidelog.outputs.http.writer import HttpOutput
from tidelog.spark import spark_session
from tidelog.state.sqlite import SqliteState

_LANES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=200_000)
    parser.add_argument("--tables", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.changes = 4_000
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as scratch:
        _run(given, Path(scratch))


def _run(given: argparse.Namespace, scratch: Path) -> None:
    log = scratch / "log"
    build_tables(log, given.changes, given.tables)
    spark = spark_session("local[2]", delta=False)
    api = HttpReceiver(scratch / "received.db")
    api.start()

    def bring(name: str) -> float:
        output = HttpOutput(
            spark, str(log), SqliteState(f"sqlite:///{scratch / 'state.db'}"),
            Delivery(name, keyed=False, formatter=formatter("flat", tombstones=False)),
            endpoint=request_endpoint(f"{api.url}/events/{{table}}"),
            body=request_body(), lanes=_LANES,
        )  # fmt: skip
        return delivered_s(spark, log, output, name)

    try:
        bring("stored")
        events, size = len(api.events()), len(api.requests())
        api.fail(discard=True)

        rows, url = typed_rows(events), f"{api.url}/events/floor"
        tasks, numbers = TasksHere(), count()
        bring("here")
        (ours, _), (floor, _) = tasks.by_turns(
            "µs CPU an event, seconds",
            events,
            lambda: bring(f"run{next(numbers)}"),
            lambda: _floor(url, rows, _LANES),
            1 if given.quick else 5,
        )
    finally:
        api.kill()
    show(
        [
            Row(
                f"event log → HTTP (flat, {given.tables} tables, {events:,} events, "
                f"{size:,} requests)",
                f"{ours:.1f} µs CPU an event",
                f"{floor:.1f} µs (one call of Arrow formats, httpx posts)",
                f"{floor / ours:.2f} ×",
                "≥ 0.4 ×",
            )
        ]
    )
    spark.stop()


def _floor(url: str, rows: pa.Table, threads: int) -> None:
    """Format as many rows and post them, in requests of the output's size."""
    with httpx.Client() as client, ThreadPoolExecutor(threads) as pool:
        headers = {"Content-Type": "application/json", "Idempotency-Key": "floor"}

        def post(body: bytes) -> None:
            client.post(url, content=body, headers=headers).raise_for_status()

        sent = []
        for batch in rows.to_batches(request_body().rows):
            pieces = [p for column in batch.columns for p in (column.cast(pa.string()), ',"name":')]
            texts = pc.binary_join_element_wise(*pieces, "x" * 60, "")
            lists = pa.ListArray.from_arrays([0, len(texts)], texts)
            sent.append(pool.submit(post, pc.binary_join(lists, ",")[0].as_py().encode()))
        for each in sent:
            each.result()


if __name__ == "__main__":
    main()
