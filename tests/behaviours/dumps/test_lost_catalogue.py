"""The catalogue's connection breaks when a dump looks a table up: the log goes on, and the dump."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Make
from tests.behaviours.dumps.ways import Way, ways

from tidelog.ports import TableShape
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue


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
