"""What the pipelines of a campaign deliver, and what it has to be."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
from tests.support.oracle.history import HistoryError
from tests.support.oracle.source import OracleSource
from tests.support.oracle.values import Change, Row, Value
from tests.support.oracle.workload import Mix
from tests.support.postgres import PostgresServer

Connection = psycopg.Connection[tuple[Any, ...]]
NAME: Final = "campaign"
TABLES: Final = ("app.ints", "app.pairs", "app.wide")
EVENTS: Final = ("I", "U", "D", "T", "r", "a")
"""Records that are events; of a key that a dump did not find the event is a delete."""
MIX: Final = Mix(TABLES, bulk=False, ddl=False, truncates=0.001)
STEPPED: Final = "stepped"
"""The schema of the copy that steps make."""
_WIDE, _INTS, _PAIRS = (["app.wide"], ["app.ints"], ["app.pairs"])
STEPS: Final[list[dict[str, Any]]] = [
    {"tables": _WIDE, "filter": "seq % 3 <> 0"},  # an update may bring a row in that lacks v
    {"tables": _WIDE, "compute": {"size": "length(v)", "start": "left(v, 3)"}},
    {"tables": _INTS, "compute": {"v": "concat(v, '-', seq)"}},
    {"tables": _INTS, "rename": {"v": "seq", "seq": "v"}},
    {"tables": _INTS, "cast": {"id": "string"}},
    {"tables": _PAIRS, "hash": ["v"]},
    {"tables": _PAIRS, "compute": {"half": "seq div 2"}},
    {"tables": _PAIRS, "drop": ["seq"]},
    {"tables": _PAIRS, "rename": {"b": "number"}},
]


def stepped(table: str, row: Row) -> Row | None:
    """What the steps make of a row of the source; None: they leave it out."""
    text, sequence = str(row["v"]), int(row["seq"] or 0)
    if table == "app.wide":
        made = {**row, "size": str(len(text)), "start": text[:3]}
        return made if sequence % 3 else None
    if table == "app.ints":
        return {"id": row["id"], "seq": f"{text}-{sequence}", "v": str(sequence)}
    hashed = hashlib.sha256(text.encode()).hexdigest()
    return {"a": row["a"], "number": row["b"], "v": hashed, "half": str(sequence // 2)}


class Copies:
    """A copy of the tables in PostgreSQL, another that is made by steps, and an activity log of
    their changes in files.
    """

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
            {
                "kind": "postgres",
                "name": STEPPED,
                "url": url,
                "schema": STEPPED,
                "tables": TABLES,
                "steps": STEPS,
            },
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
            "small_batch_bytes": secrets.choice([0, 2 << 20]),
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
        self.rows = 0
        with psycopg.connect(self._url) as connection:
            wrong = self._copy_lacks(source, connection) or self._stepped_lacks(source, connection)
        return wrong or self._activity_lacks(records)

    def _copy_lacks(self, source: OracleSource, connection: Connection) -> str:
        """Rows by their keys, and the number that every write of a key raises."""
        for name in TABLES:
            table = source.tables[name]
            columns = (*table.key, "seq")
            rows = {tuple(row[column] for column in columns) for row in source.rows(table).values()}
            if wrong := self._differs(connection, name, columns, rows):
                return wrong
        return ""

    def _stepped_lacks(self, source: OracleSource, connection: Connection) -> str:
        """Whole rows."""
        for name in TABLES:
            made = [stepped(name, row) for row in source.rows(source.tables[name]).values()]
            kept = [row for row in made if row is not None]
            columns = tuple(kept[0]) if kept else ("v",)
            rows = {tuple(row[column] for column in columns) for row in kept}
            copy = name.replace("app.", f"{STEPPED}.")
            if wrong := self._differs(connection, copy, columns, rows):
                return wrong
        return ""

    def _differs(
        self,
        connection: Connection,
        copy: str,
        columns: Sequence[str],
        rows: set[tuple[Value, ...]],
    ) -> str:
        texts = ", ".join(f'"{column}"::text' for column in columns)
        try:
            found = connection.execute(f"SELECT {texts} FROM {copy}".encode()).fetchall()
        except psycopg.errors.UndefinedTable:
            return f"there is no copy {copy}"
        if len(found) != len(rows) or set(found) != rows:
            differing = sorted(str(row)[:200] for row in set(found) ^ rows)
            return f"{copy} is not what is to be there: {len(found)} rows, of {differing[:6]}"
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
