"""What metrics cost a capture: CPU of a scrape, and of a push, against CPU of what it captures.

Two runs over the same work would differ by less than the machine's noise. So a capture of many
tables is asked again and again, back to back and with nothing remembered from one to the next, and
what one question costs is held against the CPU that capture uses at a small, steady rate of
changes: who captures more uses more, for the same questions.

``scrape``  `/metrics`, by HTTP
``push``    by OpenTelemetry

    python -m benchmarks.bench_metrics scrape push [--tables N] [--per-second N] [--quick]
"""

from __future__ import annotations

import argparse
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import psycopg

from benchmarks.bench_capture import Bench, bench, single_row_workload
from benchmarks.table import Row, show

EVERY_S = 15.0
TOKEN = "a-token-for-metrics"
GOAL = "≤ 1 %"


def cpu_s(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


class Collector(ThreadingHTTPServer):
    """Takes what is pushed, and throws it away."""

    def __init__(self) -> None:
        self.taken = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                collector.taken += 1
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


@contextmanager
def configured(here: Bench, control: str, tables: int) -> Iterator[None]:
    """Many tables, which status and metrics are made of, and an interface to them."""
    here.fill(100_000, 10_000)
    with psycopg.connect(here.dsn, autocommit=True) as connection:
        for number in range(tables):
            connection.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)".encode())
    plain = here.config_file.read_text()
    here.config_file.write_text(f"{plain}control: {control}\n")
    yield
    here.config_file.write_text(plain)


def steady_cpu(pid: int, seconds: float) -> float:
    """CPU seconds a second, of a process that is asked nothing."""
    before, began = cpu_s(pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.perf_counter() - began)


def scrape(per_second: int, tables: int, quick: bool) -> list[Row]:
    seconds, asked = (3.0, 20) if quick else (30.0, 500)
    with (
        bench() as here,
        configured(here, f"{{rest: {{port: 0, token: {TOKEN}}}}}", tables),
        here.capture(0, "--eager-metrics") as process,
        single_row_workload(here, per_second, 600),
    ):
        time.sleep(3)
        before = steady_cpu(process.pid, seconds)
        url = _address(process.pid)
        used, began = cpu_s(process.pid), time.perf_counter()
        for _ in range(asked):
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                size = len(answer.read())
        took, used = time.perf_counter() - began, cpu_s(process.pid) - used
        after = steady_cpu(process.pid, seconds)
    alone = (before + after) / 2
    what = f"a scrape of /metrics ({size:,} bytes, {tables:,} tables)"
    return [_row(what, (used - alone * took) / asked, alone, per_second)]


def push(per_second: int, tables: int, quick: bool) -> list[Row]:
    seconds = 3.0 if quick else 30.0
    collector = Collector()
    url = f"http://127.0.0.1:{collector.server_address[1]}/v1/metrics"
    with (
        bench() as here,
        configured(here, f"{{otlp: {{endpoint: '{url}'}}}}", tables),
        here.capture(0, "--eager-metrics") as process,
        single_row_workload(here, per_second, 600),
    ):
        time.sleep(3)
        taken, used, began = collector.taken, cpu_s(process.pid), time.perf_counter()
        time.sleep(seconds)
        pushes = max(1, collector.taken - taken)
        took, used = time.perf_counter() - began, cpu_s(process.pid) - used
        process.terminate()
        process.wait(60)
        unpushed = here.config_file.read_text().partition("control:")[0]
        here.config_file.write_text(unpushed)
        with here.capture() as process:
            time.sleep(3)
            alone = steady_cpu(process.pid, seconds)
    collector.shutdown()
    what = f"a push by OpenTelemetry ({tables:,} tables)"
    return [_row(what, (used - alone * took) / pushes, alone, per_second)]


def _row(what: str, each_s: float, alone: float, per_second: int) -> Row:
    return Row(
        what,
        f"{each_s * 1000:.1f} ms of CPU",
        f"{alone * 1000:.0f} ms of CPU a second ({per_second:,} transactions a second)",
        f"{each_s / EVERY_S / alone:.2%}, every {EVERY_S:.0f} s",
        GOAL,
    )


def _address(pid: int) -> str:
    """Where it listens."""
    for connection in psutil.Process(pid).net_connections(kind="tcp4"):
        if connection.status == psutil.CONN_LISTEN:
            return f"http://127.0.0.1:{connection.laddr.port}/metrics"
    raise RuntimeError("capture does not listen")


PARTS = {"scrape": scrape, "push": push}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("parts", nargs="*", default=list(PARTS))
    arguments.add_argument("--tables", type=int, default=200)
    arguments.add_argument("--per-second", type=int, default=500)
    arguments.add_argument("--quick", action="store_true")
    options = arguments.parse_args()
    for part in options.parts:
        show(PARTS[part](options.per_second, options.tables, options.quick))


if __name__ == "__main__":
    main()
