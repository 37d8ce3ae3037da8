"""Dumps of one table with the state in each store: SQLite, three ZooKeepers, beside the log.

    python -m benchmarks.bench_state_stores [zookeeper log] [--rows N] [--rounds N]
                                            [--chunk-rows N] [--quick]

Where the state is beside the log (``log:``), both are on S3Proxy; it is held against SQLite with
the log on the same S3Proxy. The dumps take turns, every other round in the opposite order; the
ratio is the median of the rounds' own. Each capture runs for one dump alone, and has a slot of its
own; the source is idle. A dump's line also tells what capture and the three ZooKeepers took of the
CPU meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from tests.support.s3 import S3Server
from tests.support.zookeeper_ensemble import Member, ensemble

from benchmarks.bench_capture import Bench, bench, result
from benchmarks.bench_dumps import Dumps, seconds_of
from benchmarks.table import Row, show

PARALLELISM = 4
GOALS = {"zookeeper": ("sqlite", 0.95), "log": ("sqlite, log on S3Proxy", 0.9)}
TITLES = {"zookeeper": "three ZooKeepers", "log": "`log:` on S3Proxy"}


@dataclass(frozen=True, slots=True)
class Case:
    """Where the log is, and where the state is: sections of a configuration."""

    log: str
    state: str


class Placed(Bench):
    """A capture of the server of ``here``, with its log and state elsewhere."""

    def __init__(self, here: Bench, name: str, case: Case) -> None:
        self.server, self.dsn = here.server, here.dsn
        slot = "".join(letter for letter in name.lower() if letter.isalnum())
        self.directory = here.directory / slot
        self.directory.mkdir()
        self.config_file = self.directory / "tidelog.yaml"
        self.config_file.write_text(
            f"source: {{kind: postgres, url: '{self.dsn}', tables: ['public.*'], "
            f"snapshot: no_data, slot: bench_{slot}}}\nlog: {case.log}\nstate: {case.state}\n"
        )


def cases(members: list[Member], opened: ExitStack, directory: Path) -> dict[str, Case]:
    s3 = opened.enter_context(S3Server())
    hosts = ",".join(f"127.0.0.1:{member.port}" for member in members)

    def on_s3(name: str) -> str:
        return json.dumps({"path": s3.url(name), "storage_options": s3.options})

    def on_disk(name: str) -> str:
        return json.dumps({"path": str(directory / name)})

    def url(text: str) -> str:
        return json.dumps({"url": text})

    return {
        "sqlite": Case(on_disk("a"), url(f"sqlite:///{directory}/a.db")),
        "zookeeper": Case(on_disk("b"), url(f"zookeeper://{hosts}/tidelog/bench")),
        "sqlite, log on S3Proxy": Case(on_s3("c"), url(f"sqlite:///{directory}/c.db")),
        "log": Case(on_s3("d"), url("log:")),
    }


def cpu_s(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)


def took_s(dumps: Dumps, placed: Placed, chunk_rows: int, members: list[Member]) -> float:
    dumps.here = placed
    servers = [member.pid for member in members]
    with placed.capture() as process:
        dumps.options(parallelism=PARALLELISM, chunk_rows=chunk_rows, rows_per_second=0)
        capture, kept = cpu_s([process.pid]), cpu_s(servers)
        report = dumps.wait(dumps.begin())
        capture, kept = cpu_s([process.pid]) - capture, cpu_s(servers) - kept
        process.terminate()
        result(process)
    seconds = seconds_of(report)
    print(
        f"{placed.directory.name} {seconds:.2f} s, CPU {capture:.2f} s of capture and {kept:.2f} s "
        f"of ZooKeepers, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return seconds


def measure(
    stores: Sequence[str], rows: int, chunk_rows: int, rounds: int, quick: bool
) -> list[Row]:
    goals = {name: GOALS[name] for name in stores}
    wanted = {*goals, *(floor for floor, _ in goals.values())}
    with ExitStack() as opened:
        here = opened.enter_context(bench())
        dumps = Dumps(here, rows, quick)
        members = opened.enter_context(ensemble())
        made = {
            name: Placed(here, name, case)
            for name, case in cases(members, opened, here.directory).items()
            if name in wanted
        }
        found: dict[str, list[float]] = {name: [] for name in made}
        for number in range(rounds):
            for name in list(made)[:: -1 if number % 2 else 1]:
                found[name].append(took_s(dumps, made[name], chunk_rows, members))
    medians = {name: float(np.median(values)) for name, values in found.items()}
    ratios = {
        name: float(np.median(np.array(found[floor]) / np.array(found[name])))
        for name, (floor, _) in goals.items()
    }
    what = f"dump of {rows:,} rows, chunks of {chunk_rows:,}, parallelism {PARALLELISM}"
    return [
        Row(
            f"{what}, state in {TITLES[name]}",
            f"{rows / medians[name]:,.0f} rows/s",
            f"{rows / medians[floor]:,.0f} rows/s ({floor.replace('sqlite', 'SQLite')})",
            f"{ratios[name]:.2f} ×",
            f"≥ {goal:g} ×",
        )
        for name, (floor, goal) in goals.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", help="zookeeper, log; default: both")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--chunk-rows", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    rows, rounds = (20_000, 1) if given.quick else (given.rows, given.rounds)
    stores = given.stores or list(GOALS)
    show(measure(stores, rows, given.chunk_rows, rounds, given.quick))


if __name__ == "__main__":
    main()
