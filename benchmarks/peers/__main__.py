"""PostgreSQL → a lake, by Tidelog and by others: CPU, memory, and whether the copy is equal.

python -m benchmarks.peers [--rows 1000000] [--changes 500000] [--quick] [PEER]...

All peers copy one table of one server. Each is run three times, one after the other: until it has
copied the table; until it shows one change that was made while it was down, which is the cost of a
start; and, cold again, until it shows ``--changes`` changes that were made while it was down. Jars
are fetched once from Maven Central and kept; Java 17 with its compiler is needed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.debezium_spark import DebeziumSpark
from benchmarks.peers.flink_paimon import FlinkPaimon
from benchmarks.peers.peer import Peer
from benchmarks.peers.source import Digest, Mark, Source, digest, source
from benchmarks.peers.spent import Spent, run_until
from benchmarks.peers.tidelog_delta import TidelogDelta

PEERS = {"tidelog": TidelogDelta, "flink": FlinkPaimon, "debezium": DebeziumSpark}
HEADER = (
    "| way | first copy, µs CPU a row | a start, s CPU | µs CPU a change | net of start | "
    "peak memory | seconds | copy equal |\n|---|---|---|---|---|---|---|---|\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("peers", nargs="*", help=f"default: all of {', '.join(PEERS)}")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=500_000)
    parser.add_argument("--timeout", type=float, default=1_800, help="seconds, of each run")
    parser.add_argument("--dir", type=Path, help="keep logs and copies there")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.rows, given.changes = 20_000, 5_000
    with tempfile.TemporaryDirectory() as scratch, source(given.rows) as database:
        peers = {}
        for name in given.peers or PEERS:
            directory = (given.dir or Path(scratch)).absolute() / name
            directory.mkdir(parents=True)
            peers[name] = PEERS[name](database, directory)
        spent: dict[str, list[Spent]] = {name: [] for name in peers}
        for step in ("copy", "start", "changes"):
            if step == "changes":
                database.change(given.changes)
            for name, peer in peers.items():
                spent[name].append(_run(peer, database, given.timeout))
                print(f"{name}, {step}: {spent[name][-1]}", flush=True)
        wanted = database.digest()
        sys.stdout.write(HEADER)
        for name, peer in peers.items():
            sys.stdout.write(_row(peer, spent[name], given, wanted))
            sys.stdout.flush()


def _run(peer: Peer, database: Source, timeout_s: float) -> Spent:
    mark: Mark | None = None

    def reached() -> bool:
        nonlocal mark
        if mark is None and database.has_slot(peer.slot):
            mark = database.mark()
        return mark is not None and peer.reached(mark)

    with _marks(database):
        spent = run_until(peer.commands(), peer.directory, reached, timeout_s)
    database.wait_until_free(peer.slot)
    return spent


@contextmanager
def _marks(database: Source) -> Iterator[None]:
    """One a second: a peer that confirms what it has read shows that it has read the last mark."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(1):
            database.mark()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _row(peer: Peer, spent: list[Spent], given: argparse.Namespace, wanted: Digest) -> str:
    copy, start, changes = spent
    found = digest(peer.lines())
    whole = changes.cpu_s / given.changes * 1e6
    net = (changes.cpu_s - start.cpu_s) / given.changes * 1e6
    peak = max(each.peak_bytes for each in spent)
    equal = f"yes, {found.rows:,} rows" if found == wanted else f"NO: {found}, not {wanted}"
    return (
        f"| {peer.title} | {copy.cpu_s / given.rows * 1e6:.1f} | {start.cpu_s:.1f} | {whole:.1f} | "
        f"{net:.1f} | {changes.peak_bytes / 1e9:.2f} GB, {peak / 1e9:.2f} GB of all three runs | "
        f"{changes.seconds:.0f} | {equal} |\n"
    )


if __name__ == "__main__":
    main()
