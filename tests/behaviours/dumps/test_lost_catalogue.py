"""The catalogue can't be asked when a dump looks a table up: the log goes on, and so do dumps."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Make
from tests.behaviours.dumps.ways import Way, ways

from tidelog.ports import TableShape
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue
from tidelog.sources.postgres.connect import translated


@ways([Way("table", 1)])
@pytest.mark.parametrize("mode", ["incremental", "blocking"])
def test_a_catalogue_that_is_lost_ends_no_capture(
    make: Make, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    dumped = make()
    dumped.table(rows=20)
    dumped.start()
    epoch = dumped.seen["epoch"]
    whole, cut = PostgresCatalogue.shape, set[str]()

    def shape(self: PostgresCatalogue, table: Any) -> TableShape | None:
        """Each thread's first look meets a connection whose backend was ended."""
        name = threading.current_thread().name
        if name not in cut:
            cut.add(name)
            dumped.sql.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'tidelog-catalogue'"
            )
        return whole(self, table)

    monkeypatch.setattr(PostgresCatalogue, "shape", shape)
    dump = dumped.dump(mode=mode)
    dumped.dumped(dump)

    assert len(cut) > 1, cut  # the command's thread, and the dump's
    assert dumped.seen["epoch"] == epoch
    dumped.check()


@ways([Way("table", 1)])
def test_a_catalogue_that_refuses_to_answer_ends_no_capture(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says that trying again would help: what was asked for fails, and says so."""
    dumped = make(control_lines="signal_file: signals")
    signals = dumped.directory / "signals"
    dumped.table(rows=20)
    dumped.start()
    epoch = dumped.seen["epoch"]
    whole, refused = PostgresCatalogue.shape, set[str]()

    def shape(self: PostgresCatalogue, table: Any) -> TableShape | None:
        """Each thread's first look meets an error of the server."""
        name = threading.current_thread().name
        if name not in refused:
            refused.add(name)
            with self._lock, translated(f"looking up {table}"):
                self._connected().execute("SELECT 1 / 0")
        return whole(self, table)

    def signal(dump: str) -> None:
        data = {"data-collections": ["public.t"], "type": "incremental"}
        with signals.open("a") as file:
            file.write(json.dumps({"id": dump, "type": "execute-snapshot", "data": data}) + "\n")

    monkeypatch.setattr(PostgresCatalogue, "shape", shape)
    signal("one")  # the thread of commands is refused
    dumped.wait_for(lambda: any(n.dump_id == "one" for n in dumped.notices), "that is told")
    assert "tidelog-commands" in refused
    signal("two")  # the thread of dumps is
    dumped.wait_for(lambda: dumped.progress("two")["status"] == "failed", "the table fails")
    assert "division by zero" in dumped.progress("two")["reason"]
    assert "tidelog-dumps" in refused
    signal("three")
    dumped.dumped("three")
    dumped.do("UPDATE t SET n = 7 WHERE id = 7")

    assert dumped.seen["epoch"] == epoch
    dumped.check()
