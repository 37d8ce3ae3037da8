"""Event log → an API that takes all, against bare httpx posting the same bodies, ``local[2]``.

python -m benchmarks.bench_http [--changes 200000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from tests.support.http_receiver import HttpReceiver
from tests.support.output_options import body as request_body
from tests.support.output_options import endpoint as request_endpoint

from benchmarks.spark_workload import Meter, build_tables, delivered_s, report
from benchmarks.table import Row, show
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.formatters import formatter
from tidelog.outputs.http.output import HttpOutput
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
        bodies = [request.body.encode() for request in api.requests()]
        events = len(api.events())
        api.fail(discard=True)
        with Meter() as meter:
            seconds = bring("discarded")
        floor = _floor(f"{api.url}/events/floor", bodies, _LANES * given.tables)
    finally:
        api.kill()
    report("event log → HTTP", events, meter.reading)
    show(
        [
            Row(
                f"event log → HTTP (flat, {given.tables} tables, {events:,} events, "
                f"{len(bodies):,} requests)",
                f"{events / seconds:,.0f} events/s",
                f"{events / floor:,.0f} events/s (bare httpx threads, the same bodies)",
                f"{floor / seconds:.2f} ×",
                "–",
            )
        ]
    )
    spark.stop()


def _floor(url: str, bodies: list[bytes], threads: int) -> float:
    """Seconds to post the bodies, made before."""
    with httpx.Client() as client, ThreadPoolExecutor(threads) as pool:
        headers = {"Content-Type": "application/json", "Idempotency-Key": "floor"}

        def post(body: bytes) -> None:
            client.post(url, content=body, headers=headers).raise_for_status()

        started = time.perf_counter()
        list(pool.map(post, bodies))
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
