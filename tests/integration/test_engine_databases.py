"""Several databases of one PostgreSQL: a slot, an event log, a state and an offset of each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.engines import committed, no_threads_left, until, versions
from tests.support.make_engine import MakeEngine
from tests.support.postgres import PostgresServer

from tidelog import app
from tidelog.app.base.log_location import event_log_path
from tidelog.config.loading import config_by_database
from tidelog.control.commands import StartDump
from tidelog.engine.events import Event
from tidelog.engine.ports import ConnectorEvent
from tidelog.errors import ConfigError, TidelogError

pytestmark = pytest.mark.integration
NAMES = ("several_a", "several_b", "several_c")


@pytest.fixture
def databases(postgres: PostgresServer) -> Iterator[str]:
    """Three, each with one row; the dsn of the first."""
    for number, name in enumerate(NAMES):
        dsn = postgres.create_database(name)
        postgres.execute(
            f"CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES ({number})", name
        )
    yield dsn
    for name in NAMES:
        postgres.drop_database(name)


def over(dsn: str, *names: str) -> dict[str, Any]:
    """Of a configuration, the source."""
    return {"kind": "postgres", "url": dsn, "slot": "tide", "databases": list(names)}


def in_use(postgres: PostgresServer) -> int:
    """Sessions and active slots of ours."""
    [(count,)] = postgres.execute(
        "SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname LIKE 'several_%' AND "
        "backend_type IN ('client backend', 'walsender')) + "
        "(SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'tide_several_%' "
        "AND active)"
    )
    return int(count)


def test_events_of_all_come_and_each_continues_by_itself(
    postgres: PostgresServer, databases: str, make_engine: MakeEngine
) -> None:
    seen: list[tuple[str, str, int]] = []

    def take(event: Event) -> None:
        assert event.after is not None
        seen.append((event.source.database, event.op, event.after["id"]))

    engine = make_engine.of(**over(databases, *NAMES))(consumer=take)
    with engine:
        until(lambda: len(seen) == 3, "the dumps")
        postgres.execute("INSERT INTO t VALUES (10)", NAMES[1])
        until(lambda: len(seen) == 4, "the change")
        engine.send(StartDump(dump_id="again", tables=("public.t",)), database=NAMES[2])
        until(lambda: len(seen) == 5, "the dump of one database")
        with pytest.raises(ConfigError, match="it has several_a, several_b, several_c"):
            engine.send(StartDump(dump_id="lost"))
    assert sorted(seen[:3]) == [(name, "r", number) for number, name in enumerate(NAMES)]
    assert seen[3:] == [(NAMES[1], "c", 10), (NAMES[2], "r", 2)]
    assert in_use(postgres) == 0
    assert no_threads_left()
    slots = postgres.execute("SELECT slot_name, database FROM pg_replication_slots ORDER BY 1")
    assert [row for row in slots if row[1] in NAMES] == [(f"tide_{n}", n) for n in NAMES]
    for name, own in config_by_database(engine.config).items():
        place = event_log_path(own)
        assert (committed(place, f"engine-{name}") or 0) > versions(place)[-1]

    # The same configuration on the command line writes the same logs on.
    postgres.execute("INSERT INTO t VALUES (11)", NAMES[0])
    stop, ended = threading.Event(), threading.Event()
    shown: list[str] = []

    def capture() -> None:
        try:
            app.capture_databases(engine.config, on_status=shown.extend, stop_event=stop)
        finally:
            ended.set()

    thread = threading.Thread(target=capture)
    thread.start()
    place = event_log_path(config_by_database(engine.config)[NAMES[0]])
    before = len(versions(place))
    until(lambda: len(versions(place)) > before or ended.is_set(), "what capture wrote")
    stop.set()
    thread.join(60)
    assert len(versions(place)) == before + 1
    assert set(shown) <= set(NAMES)


def test_one_that_is_not_there_keeps_all_from_polling(
    postgres: PostgresServer, databases: str, make_engine: MakeEngine
) -> None:
    seen: list[Event] = []
    told: list[ConnectorEvent] = []
    make_engine.of(**over(databases, NAMES[0], "there_is_none", NAMES[1]))
    engine = make_engine(consumer=seen.append, on_connector=told.append)
    with pytest.raises(TidelogError, match="there_is_none"), engine:
        pytest.fail("it polls")
    assert seen == []
    assert ConnectorEvent("started", "engine-there_is_none") not in told
    assert in_use(postgres) == 0
    assert no_threads_left()
    with pytest.raises(TidelogError, match="there_is_none"):
        app.capture_databases(engine.config, stop_event=threading.Event())
    assert in_use(postgres) == 0
