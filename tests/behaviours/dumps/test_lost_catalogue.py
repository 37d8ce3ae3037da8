"""The catalogue does not answer when a dump looks a table up: the log and dumps continue."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Make
from tests.behaviours.dumps.ways import Way, ways

from tidelog.ports import TableShape
from tidelog.sources.mysql import errors as mysql_failures
from tidelog.sources.mysql.catalogue.tables import MySqlCatalogue
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue
from tidelog.sources.postgres.errors import translate_errors

EACH = [Way("table", 1), Way("gtid", 1, "mysql"), Way("table", 1, "mariadb")]
CATALOGUES: dict[str, Any] = {
    "postgres": PostgresCatalogue,
    "mysql": MySqlCatalogue,
    "mariadb": MySqlCatalogue,
}


@ways(EACH)
@pytest.mark.parametrize("mode", ["incremental", "blocking"])
def test_a_catalogue_that_is_lost_ends_no_capture(
    make: Make, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    dumped = make()
    dumped.table(rows=20)
    dumped.start()
    epoch = dumped.seen["epoch"]
    catalogue = CATALOGUES[dumped.on.kind]
    whole, cut = catalogue.shape, set[str]()

    def shape(self: Any, table: Any) -> TableShape | None:
        """Each thread's first look meets a connection whose backend was ended."""
        name = threading.current_thread().name
        if name not in cut:
            cut.add(name)
            if catalogue is PostgresCatalogue:
                dumped.sql.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name = 'tidelog-catalogue'"
                )
            else:
                with self._lock:
                    dumped.sql.execute(f"KILL {self._get_connection().connection_id}")
        return whole(self, table)

    monkeypatch.setattr(catalogue, "shape", shape)
    dump = dumped.dump(mode=mode)
    dumped.dumped(dump)

    assert len(cut) > 1, cut  # the command's thread, and the dump's
    assert dumped.seen["epoch"] == epoch
    dumped.check()


@ways(EACH)
def test_a_catalogue_that_refuses_to_answer_ends_no_capture(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says that trying again would help: what was asked for fails, and says so."""
    dumped = make(control_lines="signal_file: signals")
    signals = dumped.directory / "signals"
    dumped.table(rows=20)
    dumped.start()
    epoch = dumped.seen["epoch"]
    catalogue = CATALOGUES[dumped.on.kind]
    whole, refused = catalogue.shape, set[str]()
    is_postgres = catalogue is PostgresCatalogue
    statement = "SELECT 1 / 0" if is_postgres else "SELECT no_column FROM information_schema.TABLES"
    complaint = "division by zero" if is_postgres else "error 1054"

    def shape(self: Any, table: Any) -> TableShape | None:
        """Each thread's first look meets an error of the server."""
        name = threading.current_thread().name
        if name not in refused:
            refused.add(name)
            turned = translate_errors if is_postgres else mysql_failures.translate_errors
            with self._lock, turned(f"looking up {table}"):
                connection = self._get_connection()
                (connection.execute if is_postgres else connection.rows)(statement)
        return whole(self, table)

    def signal(dump: str) -> None:
        data = {"data-collections": ["public.t"], "type": "incremental"}
        with signals.open("a") as file:
            file.write(json.dumps({"id": dump, "type": "execute-snapshot", "data": data}) + "\n")

    monkeypatch.setattr(catalogue, "shape", shape)
    signal("one")  # the thread of commands is refused
    dumped.wait_for(lambda: any(n.dump_id == "one" for n in dumped.notices), "that is told")
    assert "tidelog-commands" in refused
    signal("two")  # the thread of dumps is
    dumped.wait_for(lambda: dumped.progress("two")["status"] == "failed", "the table fails")
    assert complaint in dumped.progress("two")["reason"]
    assert "tidelog-dumps" in refused
    signal("three")
    dumped.dumped("three")
    dumped.do("UPDATE t SET n = 7 WHERE id = 7")

    assert dumped.seen["epoch"] == epoch
    dumped.check()
