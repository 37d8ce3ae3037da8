"""PostgreSQL's own regression SQL beside a running capture; every table with a key is then compared
with its replay from the event log.

    python -m tests.e2e.regress_sql SQL_DIR [--version 16] [--version 18] [--full] [--keep] [FILE …]

``SQL_DIR`` is ``src/test/regress/sql`` of a checkout of PostgreSQL; where ``../data`` is there,
tests read it, else the tables that are loaded from it stay empty. No part of it comes with Tidelog.
Capture is killed half-way, and started again. ``--full``: FOR ALL TABLES of the database identity
FULL is set as far as tables let it, before each file. ``--keep``: DROP TABLE and DROP SCHEMA are
left out, so that there is more to compare.

It prints a line for each table that is not as its replay, or that has none, and why; the exit code
is 1 if any differs. It takes a quarter of an hour a version.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from tests.integration.windows.live import Event, Key, Row, _event, replay
from tests.support.postgres import PostgresServer

from tidelog.capture.dumps.refetch_queue import REFETCH_KEY
from tidelog.config import Config, load_config
from tidelog.errors import TidelogError
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName, double_quoted
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue
from tidelog.sources.postgres.connect import connect
from tidelog.state.sqlite import SqliteState

DATABASE = "regression"
FIRST = ("test_setup",)
LAST = ("drop_if_exists", "event_trigger")
"""An event trigger that is left behind may refuse what follows."""
FILE_S = 120.0
SETTLED_S = 300.0
SETTINGS = {"max_prepared_transactions": 10, "max_wal_size": "4GB"}
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
DROPS = re.compile(r"^DROP (TABLE|SCHEMA)\b[^;]*;", re.MULTILINE)
ALL_FULL = """
DO $$ DECLARE t regclass; BEGIN
  FOR t IN SELECT oid FROM pg_class WHERE relkind IN ('r', 'p') AND relreplident <> 'f'
      AND relnamespace::regnamespace::text !~ '^(pg_|information_schema|tidelog)' LOOP
    BEGIN EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', t);
    EXCEPTION WHEN OTHERS THEN NULL; END;
  END LOOP;
END $$
"""


class Regression:
    """One server, its capture, and what it has come to."""

    def __init__(self, server: PostgresServer, sql: Path, directory: Path, *, keep: bool) -> None:
        self.server, self.sql, self.directory, self.keep = server, sql, directory, keep
        self.dsn = server.create_database(DATABASE)
        self.config_file = directory / "tidelog.yaml"
        self.config_file.write_text(
            f'source: {{kind: postgres, url: "{self.dsn}", tables: ["*.*"]}}\n'
            f"log: {{path: {directory}/log}}\nstate: {{url: 'sqlite:///{directory}/state.db'}}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.said = (directory / "capture.log").open("ab")
        self.refused: dict[str, str] = {}

    @property
    def config(self) -> Config:
        return load_config(self.config_file)

    def start(self) -> None:
        command = [sys.executable, "-m", "tidelog", "capture", str(self.config_file)]
        self.process = subprocess.Popen(command, stdout=self.said, stderr=self.said)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)

    def run(self, file: Path) -> None:
        if self.keep:
            kept = DROPS.sub("", file.read_text(errors="surrogateescape"))
            file = self.directory / file.name
            file.write_text(kept, errors="surrogateescape")
        environment = os.environ | {
            "PG_ABS_SRCDIR": str(self.sql.parent),
            "PG_ABS_BUILDDIR": str(self.directory),
            "PG_LIBDIR": str(self.server.binary("psql").parent),
            "PG_DLSUFFIX": ".so",
            "PGOPTIONS": "-c statement_timeout=60s -c intervalstyle=postgres_verbose",
        }
        command = [str(self.server.binary("psql")), "-X", "-q", "-d", self.dsn, "-f", str(file)]
        try:
            subprocess.run(
                command, env=environment, cwd=self.directory, capture_output=True, timeout=FILE_S
            )
        except subprocess.TimeoutExpired:
            print(f"  {file.stem}: not within {FILE_S:.0f} s", flush=True)
        self.note_refusals()
        if self.process is not None and self.process.poll() is not None:
            raise RuntimeError(f"capture ended while {file.stem} ran: {self.last_words()}")

    def last_words(self) -> str:
        return (self.directory / "capture.log").read_text(errors="replace")[-2000:]

    def settle(self) -> list[str]:
        """Wait until all is captured and dumped; what still waits if nothing moves for a while."""
        with psycopg.connect(self.dsn, autocommit=True) as sql:
            sql.execute("CREATE TABLE public.tidelog_tick (id int PRIMARY KEY)")
            time.sleep(6)  # the next look at the catalogue has been
            sql.execute("INSERT INTO public.tidelog_tick VALUES (1)")
            end = sql.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
        assert end is not None
        deadline = time.monotonic() + SETTLED_S
        calm = 0
        waits: list[str] = []
        before: list[str] = []
        state = SqliteState(self.config.state.url)
        try:
            while calm < 8 and time.monotonic() < deadline:
                time.sleep(1)
                dumps = [state.get(name) for name in state.keys("dump/")]
                waits = [
                    f"{d.value['dump_id']}: {[t['table'] for t in d.value['tables']]}"
                    for d in dumps
                    if d is not None and d.value["status"] not in ("completed", "aborted")
                ]
                told = [t["table"] for d in dumps if d for t in d.value["tables"]]
                if "public.tidelog_tick" not in told:
                    waits.append("the newest table was not looked at yet")
                status = state.get("status")
                covered = 0 if status is None else status.value["capture"]["covered"]
                if covered < end[0]:
                    waits.append(f"the log is at {covered} of {end[0]}")
                waits += state.keys(REFETCH_KEY)
                self.note_refusals()
                calm = 0 if waits else calm + 1
                if waits != before:
                    before, deadline = waits, time.monotonic() + SETTLED_S
        finally:
            state.close()
        return waits

    def note_refusals(self) -> None:
        """Why tables could not be dumped. Dumps of long ago are forgotten, so ask in time."""
        state = SqliteState(self.config.state.url)
        try:
            for name in state.keys("dump/"):
                document = state.get(name)
                for table in () if document is None else document.value["tables"]:
                    if table["reason"]:
                        self.refused[table["table"]] = table["reason"]
        finally:
            state.close()

    def compare(self) -> Iterator[tuple[str, str]]:
        """Each keyed table, and how it differs from its replay; empty: it does not."""
        catalogue = PostgresCatalogue(self.dsn)
        try:
            shapes = [
                shape
                for table in catalogue.tables(["*.*"])
                if (shape := catalogue.shape(table)) is not None and shape.schema.match_key
            ]
        finally:
            catalogue.close()
        names = {str(shape.schema.table) for shape in shapes}
        events: dict[str, list[Event]] = defaultdict(list)
        log = EventLog.open(self.directory / "log")
        for ref in log.segments(log.head_offset):
            for batch in log.batches(ref):
                for record in batch.to_pylist():
                    if record["kind"] == ord("M"):
                        continue
                    event = _event(record, log.schemas.get)
                    table = event.table or (event.control or {}).get("table")
                    if table in names:
                        events[str(table)].append(event)
        self.note_refusals()
        for shape in shapes:
            name, key = str(shape.schema.table), shape.schema.match_key
            done = [
                e.control["first_offset"]
                for e in events[name]
                if e.control
                and e.control["type"] == "dump-completed"
                and e.control["delete_absent"]
            ]
            if not done:
                yield name, f"not dumped: {self.refused.get(name, 'and nobody says why')}"
                continue
            columns = [c.name for c in shape.schema.columns]
            with connect(self.dsn, purpose="test", settings={"row_security": "off"}) as sql:
                source = rows_of(sql, shape.schema.table, columns, key)
            everything = replay([e for e in events[name] if e.offset >= done[-1]])
            found = {
                tuple(row.get(c) for c in key): {c: row.get(c) for c in columns}
                for row in everything.values()
            }
            yield name, differences(source, found)


def differences(source: dict[Key, Row], found: dict[Key, Row]) -> str:
    """In words, without values."""
    said = []
    if missing := source.keys() - found.keys():
        said.append(f"{len(missing)} rows are missing")
    if extra := found.keys() - source.keys():
        said.append(f"{len(extra)} rows too many")
    unlike = [key for key in source.keys() & found.keys() if source[key] != found[key]]
    if unlike:
        columns = {c for k in unlike for c in source[k] if source[k][c] != found[k].get(c)}
        said.append(f"{len(unlike)} rows differ in {', '.join(sorted(columns))}")
    return "; ".join(said)


def rows_of(
    sql: psycopg.Connection[Any], table: TableName, columns: Sequence[str], key: Sequence[str]
) -> dict[Key, Row]:
    """The table's rows as its types write them."""
    listed = ", ".join(double_quoted(name) for name in columns)
    row = sql.execute(
        "SELECT relkind FROM pg_catalog.pg_class WHERE oid = %s::pg_catalog.regclass",
        (double_quoted(table.namespace, table.name),),
    ).fetchone()
    only = "" if row == ("p",) else "ONLY "
    name = double_quoted(table.namespace, table.name)
    found: dict[Key, Row] = {}
    query = f"COPY (SELECT {listed} FROM {only}{name}) TO STDOUT"
    try:
        data = copied(sql, query)
    except psycopg.errors.UndefinedFunction:  # one of an index relies on the search_path
        sql.execute(f"SET search_path = {double_quoted(table.namespace)}, public".encode())
        data = copied(sql, query)
    for line in data.decode("utf-8", "surrogateescape").split("\n")[:-1]:
        texts = [None if field == r"\N" else unescaped(field) for field in line.split("\t")]
        values = dict(zip(columns, texts, strict=True))
        found[tuple(values[name] for name in key)] = values
    return found


def copied(sql: psycopg.Connection[Any], query: str) -> bytes:
    with sql.cursor() as cursor, cursor.copy(query.encode()) as copy:
        return b"".join(bytes(part) for part in copy)


def unescaped(field: str) -> str:
    return re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), field, flags=re.DOTALL)


def in_order(sql: Path, chosen: Sequence[str]) -> list[Path]:
    files = {path.stem: path for path in sql.glob("*.sql")}
    if chosen:
        return [files[name] for name in chosen]
    middle = sorted(files.keys() - {*FIRST, *LAST})
    return [files[name] for name in (*FIRST, *middle, *LAST) if name in files]


def regress(version: int, sql: Path, chosen: Sequence[str], *, full: bool, keep: bool) -> bool:
    """Run and compare; is every table as its replay?"""
    files = in_order(sql, chosen)
    with (
        tempfile.TemporaryDirectory() as directory,
        PostgresServer(version, SETTINGS) as server,
    ):
        run = Regression(server, sql, Path(directory), keep=keep)
        run.start()
        try:
            for number, file in enumerate(files):
                if number == len(files) // 2:
                    run.kill()
                    run.start()
                if full:
                    server.execute(ALL_FULL, DATABASE)
                run.run(file)
            waits = run.settle()
            outcome = dict(run.compare())
            run.stop()
        except (TidelogError, RuntimeError, subprocess.TimeoutExpired):
            print(run.last_words(), file=sys.stderr)
            raise
        finally:
            if run.process is not None and run.process.poll() is None:
                run.kill()
    refused = {name: said for name, said in outcome.items() if said.startswith("not dumped")}
    unlike = {name: said for name, said in outcome.items() if said and name not in refused}
    for name, said in {**refused, **unlike}.items():
        print(f"  {name}: {said}")
    for wait in waits:
        print(f"  waits still: {wait}")
    print(
        f"PostgreSQL {version}: {len(files)} files, {len(outcome)} tables with a key, "
        f"{len(outcome) - len(refused) - len(unlike)} equal, {len(refused)} refused, "
        f"{len(unlike)} differ",
        flush=True,
    )
    silent = [said for said in refused.values() if "nobody says why" in said]
    return not (unlike or waits or silent)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("sql", type=Path)
    arguments.add_argument("files", nargs="*", help="names without .sql; default: all")
    arguments.add_argument("--version", type=int, action="append")
    arguments.add_argument("--full", action="store_true")
    arguments.add_argument("--keep", action="store_true")
    options = arguments.parse_intermixed_args()
    good = [
        regress(version, options.sql.resolve(), options.files, full=options.full, keep=options.keep)
        for version in options.version or (16, 18)
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
