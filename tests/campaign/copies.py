"""What the pipelines of a campaign deliver, and what it has to be."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psycopg
from tests.support.oracle.history import HistoryError
from tests.support.oracle.source import OracleSource
from tests.support.oracle.values import Change
from tests.support.oracle.workload import Mix

from tidelog.demo.servers.postgres import PostgresServer

NAME: Final = "campaign"
TABLES: Final = ("app.ints", "app.pairs", "app.wide")
EVENTS: Final = ("I", "U", "D", "T", "r", "a")
"""Records that are events; of a key that a dump did not find the event is a delete."""
MIX: Final = Mix(TABLES, bulk=False, ddl=False)


class Copies:
    """A copy of the tables in PostgreSQL, and an activity log of their changes in files."""

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        self._url = server.create_database(f"copy_{secrets.token_hex(4)}")
        self.port = server.port
        """Of the server."""
        self._activity = directory / "activity"
        self.rows = self.events = 0
        """That were compared."""

    def sections(self, host: Path, address: str) -> str:
        """Of the configuration of a host with this directory. The address has the server's port:
        a pipeline wants its output under one URL, wherever it runs.
        """
        url = self._url.replace(f"127.0.0.1:{self.port}/", f"{address}:{self.port}/")
        outputs = [
            {"kind": "postgres", "url": url, "tables": TABLES},
            {"kind": "files", "path": str(self._activity), "format": "json", "tables": TABLES},
        ]
        conf = {
            "spark.sql.shuffle.partitions": 2,
            "spark.ui.enabled": False,
            "spark.driver.memory": "700m",
            "spark.driver.host": "127.0.0.1",  # the machine's own address is not in a namespace
            "spark.driver.bindAddress": "127.0.0.1",
        }
        pipeline = {
            "name": NAME,
            "trigger_ms": 100,
            "master": "local[2]",
            "checkpoint": str(host / "checkpoint"),
            "conf": conf,
        }
        return f"pipeline: {json.dumps(pipeline)}\noutputs: {json.dumps(outputs)}\n"

    def begun(self) -> bool:
        """Has an output anything yet?"""
        return any(self._activity.rglob("[!_.]*.json"))

    def lacking(self, source: OracleSource, records: Iterable[Change]) -> str:
        """How the outputs differ from what they have to be; nothing: they don't.

        Raises HistoryError if an event came twice, or one that the event log does not hold.
        """
        return self._copy_lacks(source) or self._activity_lacks(records)

    def _copy_lacks(self, source: OracleSource) -> str:
        """Rows by their keys, and the number that every write of a key raises."""
        self.rows = 0
        with psycopg.connect(self._url) as connection:
            for name in TABLES:
                table = source.tables[name]
                columns = ", ".join(f'"{column}"::text' for column in (*table.key, "seq"))
                try:
                    found = connection.execute(f"SELECT {columns} FROM {name}".encode()).fetchall()
                except psycopg.errors.UndefinedTable:
                    return f"there is no copy of {name}"
                copied = {row[:-1]: row[-1] for row in found}
                rows = {key: row["seq"] for key, row in source.rows(table).items()}
                if copied != rows:
                    differing = copied.items() ^ rows.items()
                    return f"{name} differs from its copy in {sorted(map(str, differing))[:6]}"
                self.rows += len(rows)
        return ""

    def _activity_lacks(self, records: Iterable[Change]) -> str:
        """Each event once, by its version."""
        wanted = {
            (record.table, record.offset)
            for record in records
            if record.table in TABLES and record.op in EVENTS
        }
        found: Counter[tuple[str, int, str]] = Counter()
        for file in self._activity.rglob("[!_.]*.json"):
            if "_tidelog" in file.parts:
                continue
            table = next(p for p in file.parts if p.startswith("table=")).removeprefix("table=")
            for line in file.read_text().splitlines():
                event = json.loads(line)
                found[table, event["version"], event["op"]] += 1
        twice = [event for event, times in found.items() if times > 1]
        if twice:
            raise HistoryError(f"{len(twice)} events are in the files twice, as {twice[:5]}")
        events = {(table, version) for table, version, _ in found}
        if events - wanted:
            unknown = sorted(events - wanted)[:5]
            raise HistoryError(f"the files hold events that the event log does not, as {unknown}")
        if wanted - events:
            lost = sorted(wanted - events)
            return f"the files lack {len(lost)} of {len(wanted)} events, the first is {lost[0]}"
        self.events = len(events)
        return ""
