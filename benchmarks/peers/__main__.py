"""PostgreSQL → a lake, by Tidelog and by others: CPU, memory, and whether the copy is equal.

python -m benchmarks.peers [--rows 1000000] [--changes 500000] [--quick] [PEER]...

All peers copy one table of one server. Each is run three times, one after the other: until it has
copied the table; until it shows one change made at its start, which is the cost of a start; and,
cold again, until it shows ``--changes`` changes that were made while it was down. The table that
is printed is Markdown. Jars are fetched once from Maven Central and kept; the compiler of a JDK 17
is needed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

from tests.support.repeatedly import repeatedly

from benchmarks.peers.debezium_spark import DebeziumSpark
from benchmarks.peers.flink import ICEBERG, PAIMON, FlinkJob
from benchmarks.peers.peer import Peer
from benchmarks.peers.source import TRANSACTION_ROWS, Mark, Source, digest, source
from benchmarks.peers.spent import Spent, run_until
from benchmarks.peers.tidelog_lakes import TidelogDelta, TidelogIceberg

PEERS: dict[str, Callable[[Source, Path], Peer]] = {
    "tidelog": TidelogDelta,
    "flink": partial(FlinkJob, PAIMON),
    "debezium": DebeziumSpark,
    "tidelog-iceberg": TidelogIceberg,
    "flink-iceberg": partial(FlinkJob, ICEBERG),
}
OURS = ("tidelog", "tidelog-iceberg")
HEADER = (
    "| way | run | CPU | µs CPU a row or change | net of a start | seconds | peak memory |\n"
    "|---|---|---|---|---|---|---|\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("peers", nargs="*", help=f"default: all of {', '.join(PEERS)}")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=500_000)
    parser.add_argument("--timeout", type=float, default=1_800, help="seconds, of each run")
    parser.add_argument("--dir", type=Path, help="a new directory that keeps logs and copies")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.rows, given.changes = 20_000, 5_000
    if given.changes % TRANSACTION_ROWS or not 0 < given.changes <= given.rows:
        parser.error(f"--changes is a multiple of {TRANSACTION_ROWS:,}, and at most --rows")
    directory = given.dir or Path(tempfile.mkdtemp(prefix="tidelog-peers-"))
    _measure(given, directory.absolute())
    if given.dir is None:
        shutil.rmtree(directory)


def _measure(given: argparse.Namespace, directory: Path) -> None:
    with source(given.rows) as database:
        peers: dict[str, Peer] = {}
        for name in given.peers or PEERS:
            (directory / name).mkdir(parents=True)
            peers[name] = PEERS[name](database, directory / name)
        spent: dict[str, dict[str, Spent]] = {name: {} for name in peers}
        for step in ("copy", "start", "changes"):
            if step == "changes":
                database.change(given.changes)
            for name, peer in peers.items():
                spent[name][step] = _run(peer, database, given.timeout)
                print(f"{name}, {step}: {spent[name][step]}", flush=True)
        wanted = database.digest()
        for name, peer in peers.items():
            found = digest(peer.lines())
            if found != wanted:
                sys.exit(
                    f"{name}: no result, its copy is not the source's table: it has {found}, "
                    f"the source {wanted}; its logs are in {peer.directory}"
                )
            print(f"{name}: its copy of {found.rows:,} rows is equal", flush=True)
    _show(peers, spent, given.rows, given.changes)


def _run(peer: Peer, database: Source, timeout_s: float) -> Spent:
    mark: Mark | None = None

    def reached() -> bool:
        nonlocal mark
        if mark is None and database.has_slot(peer.slot):
            mark = database.mark()
        return mark is not None and peer.reached(mark)

    # A peer that confirms what it has read shows thereby that it has read the last mark.
    with repeatedly(database.mark, 1):
        spent = run_until(peer.commands(), peer.directory, reached, timeout_s)
    database.wait_until_free(peer.slot)
    return spent


def _show(
    peers: dict[str, Peer], spent: dict[str, dict[str, Spent]], rows: int, changes: int
) -> None:
    sys.stdout.write(f"\n{HEADER}")
    a_change: dict[str, tuple[float, float]] = {}
    for name, peer in peers.items():
        start = spent[name]["start"].cpu_s
        for step, what, number in (
            ("copy", f"copy of {rows:,} rows", rows),
            ("start", "start", 0),
            ("changes", f"{changes:,} changes", changes),
        ):
            each = spent[name][step]
            a_row = " | "
            if number:
                total, net = each.cpu_s / number * 1e6, (each.cpu_s - start) / number * 1e6
                a_row = f"{total:.1f} | {net:.1f}"
                a_change[name] = total, net
            print(
                f"| {peer.title} | {what} | {each.cpu_s:.1f} s | {a_row} | "
                f"{each.seconds:.0f} | {each.peak_bytes / 1e9:.2f} GB |"
            )
    print()
    ours = {name: a_change.pop(name) for name in OURS if name in a_change}
    for (own, of_own), (name, other) in product(ours.items(), a_change.items()):
        for what, mine, its in zip(("start and all", "net of a start"), of_own, other, strict=True):
            ratio = f"{mine / its:.2f} ×" if min(mine, its) > 0 else "too few changes to tell"
            print(f"CPU a change, {own}'s beside {name}'s, {what}: {ratio}")


if __name__ == "__main__":
    main()
