"""`tidelog capture` over a primary that dies and a standby that is promoted in its place."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.faults.capture_fixture import Source
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import log_reader
from tests.support.standby import PostgresStandby

from tidelog import app
from tidelog.errors import ConnectionLostError, PreflightError
from tidelog.ports import NullRegistry
from tidelog.sources.postgres.connect import connect, connect_replication

VERSIONS = [18, *(pytest.param(one, marks=pytest.mark.thorough) for one in (14, 15, 16, 17))]
pytestmark = pytest.mark.integration


class Pair:
    """A primary, its standby, and a capture that knows both."""

    def __init__(self, primary: PostgresServer, standby: PostgresStandby, directory: Path) -> None:
        self.primary = primary
        self.standby = standby
        self.source = Source(primary.create_database("shop"), directory)
        self.configure()

    @property
    def url(self) -> str:
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql://postgres@{hosts}/shop?target_session_attrs=read-write"

    def configure(self, snapshot: str = "initial") -> None:
        self.source.write_config(self.url, self.source.directory / "log")
        file = self.source.config_file
        file.write_text(file.read_text().replace("url: ", f"snapshot: {snapshot}, url: ", 1))

    def synchronised(self) -> None:
        """Return once the standby has a copy of the slot that outlives a promotion."""
        self.source.wait_for(
            lambda: self.standby.execute(
                "SELECT 1 FROM pg_replication_slots WHERE synced AND NOT temporary"
            )
        )

    def promote(self) -> None:
        self.primary.kill()
        self.standby.promote()
        self.source.sql = psycopg.connect(self.standby.dsn("shop"), autocommit=True)

    def ids(self) -> list[int]:
        """What the source holds now."""
        return [i for (i,) in self.source.sql.execute("SELECT id FROM app.t ORDER BY id")]


@contextlib.contextmanager
def pair_of(version: int, directory: Path, *, slots: str = "on") -> Iterator[Pair]:
    settings = {"sync_replication_slots": slots} if version >= 17 else {}
    with (
        PostgresServer(version) as primary,
        PostgresStandby(primary, settings) as standby,
    ):
        standby.start()
        pair = Pair(primary, standby, directory)
        try:
            yield pair
        finally:
            pair.source.close()


def writing(pair: Pair, first: int, stop: threading.Event) -> None:
    """One row after the other, on whichever server takes writes."""
    number = first
    while not stop.is_set():
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(pair.url, autocommit=True, connect_timeout=2) as sql,
        ):
            while not stop.is_set():
                number += 1  # a row whose commit was not confirmed is not tried again
                sql.execute("INSERT INTO app.t VALUES (%s, '')", (number,))
        time.sleep(0.05)


@pytest.mark.parametrize("version", [pytest.param(17, marks=pytest.mark.thorough), 18])
def test_capture_continues_where_the_slot_was_synchronised(version: int, tmp_path: Path) -> None:
    """The standby is behind when the primary dies: nothing is captured that it does not have."""
    with pair_of(version, tmp_path) as pair:
        pair.primary.execute(f"ALTER SYSTEM SET synchronized_standby_slots = {pair.standby.slot}")
        pair.primary.execute("SELECT pg_reload_conf()")
        source = pair.source
        capture = source.start()
        source.wait_led()
        stop = threading.Event()
        writer = threading.Thread(target=writing, args=(pair, 0, stop))
        writer.start()
        try:
            source.wait_for(lambda: len(source.inserted()) > 200)
            pair.synchronised()
            pair.standby.cut_off()
            time.sleep(1.0)
            captured = len(source.inserted())
            pair.promote()
            source.wait_for(lambda: len(source.inserted()) > captured + 200)
        finally:
            stop.set()
            writer.join(60)
        source.wait_for(lambda: source.inserted() == pair.ids())
        assert not capture.died
        assert capture.stop() == 0
        again = source.start()  # the next process finds the new timeline as the log has it
        source.write(1_000_000, 1_000_010)
        source.wait_for(lambda: again.died or source.inserted() == pair.ids())
        assert again.stop() == 0


@pytest.mark.thorough
def test_what_the_promoted_standby_lacks_is_reported(tmp_path: Path) -> None:
    with pair_of(18, tmp_path) as pair:
        source = pair.source
        capture = source.start()
        source.wait_led()
        source.write(1, 10)
        source.wait_for(lambda: len(source.inserted()) == 10)
        pair.synchronised()
        pair.standby.replayed()
        pair.standby.cut_off()
        source.write(11, 20)
        source.wait_for(lambda: len(source.inserted()) == 20)
        pair.promote()
        source.write(31, 40)
        assert pair.ids() == [*range(1, 11), *range(31, 41)]
        assert capture.wait(60) == 1
        said = capture.log_file.read_text()
        assert "had not received all that was captured" in said, said
        # Once it has written past the event log's end all the more.
        source.sql.execute("CREATE TABLE aside AS SELECT generate_series(1, 100000)")
        again = source.start()
        assert again.wait(60) == 1
        assert source.inserted() == list(range(1, 21)), "nothing was appended"


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_copy_of_the_slot_it_is_a_gap(version: int, tmp_path: Path) -> None:
    """Before 17 no slot is copied."""
    with pair_of(version, tmp_path, slots="off") as pair:
        source = pair.source
        capture = source.start()
        source.wait_led()
        source.write(1, 10)
        source.wait_for(lambda: len(source.inserted()) == 10)
        pair.standby.replayed()
        slow = log_reader(pair.url, NullRegistry(), slot="another")
        assert slow.identify().timeline == 1
        pair.promote()
        source.write(11, 20)
        with pytest.raises(ConnectionLostError, match="from timeline 1 to 2 while capture started"):
            slow.start(None)
        slow.close()
        assert capture.wait(60) == 1
        said = capture.log_file.read_text()
        assert "on the server that was promoted: it was not copied there" in said, said
        pair.configure("when_needed")
        again = source.start()
        source.wait_for(
            lambda: (
                again.died
                or [d["status"] for d in app.status(source.config).document["dumps"]]
                == ["completed"] * 2
            )
        )
        source.write(21, 30)
        source.wait_for(lambda: again.died or len(source.inserted()) == 20)
        assert not again.died, again.log_file.read_text()
        assert source.inserted() == [*range(1, 11), *range(21, 31)]
        dumped = {int(r.new["id"] or 0) for r in source.records() if r.op == "r" and r.new}
        assert dumped >= set(range(1, 21))


@pytest.mark.thorough
def test_a_former_primary_and_a_copied_slot_are_refused(tmp_path: Path) -> None:
    with pair_of(18, tmp_path) as pair:
        source = pair.source
        capture = source.start()
        source.wait_led()
        pair.synchronised()
        pair.standby.replayed()
        on_standby = pair.standby.dsn("shop")
        slot = source.config.source.slot
        assert slot is not None
        reader = log_reader(on_standby, NullRegistry(), slot=slot, strategy="snapshot")
        with pytest.raises(PreflightError, match="is the standby's copy of its primary's"):
            reader.start(None)
        reader.close()
        pair.promote()
        source.write(1, 10)
        source.wait_for(lambda: capture.died or len(source.inserted()) == 10)
        pair.primary.restart()  # nobody rewound it, and it is the first of the list
        # Who runs already stays with the new primary, in all that it does.
        source.sql.execute("CREATE TABLE app.late (id int PRIMARY KEY)")
        source.sql.execute("INSERT INTO app.late VALUES (1)")
        published = "SELECT 1 FROM pg_publication_tables WHERE tablename = 'late'"
        source.wait_for(lambda: capture.died or source.sql.execute(published).fetchone())
        source.sql.execute("INSERT INTO app.late VALUES (2)")
        source.wait_for(
            lambda: (
                capture.died
                or {r.op for r in source.records() if r.table.endswith(".late")} >= {"r", "I"}
            )
        )
        assert capture.stop() == 0
        again = source.start()
        assert again.wait(60) == 1
        assert "leads to a former primary" in again.log_file.read_text()


def test_a_host_that_does_not_answer_is_passed_over(postgres: PostgresServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{postgres.port}"
        url = f"postgresql://postgres@{hosts}/postgres?connect_timeout=2"
        connect_replication(url, purpose="test").finish()
        connect(url, purpose="test").close()


def test_of_several_hosts_all_are_reported(postgres: PostgresServer) -> None:
    url = f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{postgres.port}/missing"
    for make in (connect, connect_replication):
        # The one that is down may be the one that has the database.
        with pytest.raises(ConnectionLostError, match=r":1, .*nothing answers.*no such database"):
            make(url, purpose="test")
