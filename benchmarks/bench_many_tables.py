"""Many captured tables from PostgreSQL into Delta and files, by the commands that a user runs:
what ends, how long it takes, and what it costs in memory and files.

A dump of all tables, then changes in some of them, one round after the other. At the end `tidelog
verify` compares every table; the exit code tells whether all are equal.

    python -m benchmarks.bench_many_tables [--tables 500] [--changed 20] [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
from tests.support.postgres import PostgresServer

from benchmarks.command_line import Service, command, configure, megabytes
from benchmarks.table import Row, show
from tidelog import app
from tidelog.config import load_config
from tidelog.errors import TidelogError

_COLUMNS = (
    "id int PRIMARY KEY, a int, b text, c numeric(10, 2), d timestamptz, e text, f bigint, "
    "g bool, h date, i text"
)
_ROWS = 100
_TIMEOUT_S = 3600.0
_OUTPUTS = ("delta", "files")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--changed", type=int, default=20, help="tables that change in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", default="2g", help="spark.driver.memory")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.tables, given.changed, given.rounds = 6, 2, 1
    with PostgresServer(16) as server, tempfile.TemporaryDirectory() as scratch:
        dsn = server.create_database("many")
        with psycopg.connect(dsn, autocommit=True) as sql:
            for number in range(given.tables):
                sql.execute(create_table(number).encode())
            sys.exit(measure(sql, dsn, Path(scratch), given))


def create_table(number: int) -> str:
    return (
        f"CREATE TABLE t{number} ({_COLUMNS}); INSERT INTO t{number} SELECT n, n, 'b' || n, n, "
        f"now(), 'e', n, true, now(), 'i' FROM generate_series(1, {_ROWS}) n"
    )


def measure(
    sql: psycopg.Connection[Any], dsn: str, directory: Path, given: argparse.Namespace
) -> int:
    file = configure(
        directory, dsn, given.memory, "{kind: delta, path: lake}, {kind: files, path: files}"
    )
    config = load_config(file)
    count, rows = f"{given.tables:,} tables", []
    rows += _timed(directory, count, ("check", "plan"))
    outputs, changed = Outputs(config), []
    with Service(directory, "run") as service:
        dumped = service.wait_for(lambda: _dumped(config), _TIMEOUT_S, 1.0)
        wanted = given.tables * _ROWS
        brought = dumped + service.wait_for(lambda: outputs.have(wanted), _TIMEOUT_S, 0.5)
        wanted = max(each["all_records"] for each in outputs.look())
        print(f"dumped in {dumped:.0f} s, there in {brought:.0f} s", file=sys.stderr, flush=True)
        for turn in range(given.rounds):
            for number in range(given.changed):
                at = number * (given.tables // given.changed)
                sql.execute(f"UPDATE t{at} SET a = {turn} WHERE id <= 10".encode())
            wanted += 10 * given.changed
            changed.append(
                service.wait_for(lambda all_=wanted: outputs.have(all_), _TIMEOUT_S, 0.2)
            )
        rows += _timed(directory, count, ("status", "check"))
        verified = command(directory, "verify")
    for output, seconds in outputs.seconds.items():
        found = [seconds[number] for number in sorted(seconds)]
        print(f"{output}: batches of {[round(each, 1) for each in found]} s", file=sys.stderr)
        small = sorted(found[-given.rounds :])
        what = f"a batch of {given.changed} of {count} → {output}"
        rows.append(Row(what, f"{small[len(small) // 2]:.1f} s", "", "", ""))
    rows += [
        Row(f"a dump of {count} of {_ROWS} rows → event log", f"{dumped:.0f} s", "", "", ""),
        Row("the same → Delta and files", f"{brought:.0f} s", "", "", ""),
        Row(
            f"changes in {given.changed} of them → Delta and files",
            f"{min(changed):.1f} to {max(changed):.1f} s", "", "", "",
        ),
        Row("peak resident memory", megabytes(service.peaks), "", "", ""),
        Row("files", _files(directory), "", "", ""),
        Row("verify", f"{verified.seconds:.0f} s", "", "", ""),
    ]  # fmt: skip
    show(rows)
    report = verified.last
    equal = report["equal"] and len(report["tables"]) == given.tables
    print("all equal" if equal else f"NOT EQUAL: {verified.said}", file=sys.stderr)
    return 0 if equal else 1


def _timed(directory: Path, count: str, names: Iterable[str]) -> list[Row]:
    rows = []
    for name in names:
        done = command(directory, name)
        what = f"tidelog {name}, {count}"
        print(f"{what}: exit {done.code}, {done.seconds:.1f} s", file=sys.stderr)
        said = f"{done.seconds:.1f} s, {len(done.said.encode()):,} bytes"
        rows.append(Row(what, said, "", "", ""))
    return rows


def _dumped(config: Any) -> bool:
    try:
        dumps = app.status(config).document.get("dumps", ())
    except TidelogError:
        return False  # it has not begun
    return bool(dumps) and all(each["status"] == "completed" for each in dumps)


class Outputs:
    """What `tidelog status` tells of them; ``seconds``: of each one's batches that were seen."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self.seconds: dict[str, dict[int, float]] = {name: {} for name in _OUTPUTS}

    def look(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = app.status(self._config).document.get("outputs") or []
        for each in found:
            if "batches" in each:
                self.seconds[each["output"]][each["batches"]] = each["batch_s"]
        return found

    def have(self, records: int) -> bool:
        """Each has this many, and lacks none."""
        return [
            each["output"]
            for each in self.look()
            if each.get("all_records", 0) >= records and not each["behind_records"]
        ] == [*_OUTPUTS]


def _files(directory: Path) -> str:
    found = {
        place: sum(1 for file in (directory / place).rglob("*") if file.is_file())
        for place in ("log", "checkpoint", "lake", "files")
    }
    return ", ".join(f"{place} {number:,}" for place, number in found.items())


if __name__ == "__main__":
    main()
