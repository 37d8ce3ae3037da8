"""An engine over a real PostgreSQL: capture beside it, change events in the program's hands."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import yaml
from tests.support.engines import committed, no_threads_left, until, versions
from tests.support.make_engine import MakeEngine
from tests.support.postgres import PostgresServer
from tests.support.undumpable import KEYS, undumpable

from tidelog.control.commands import StartDump
from tidelog.engine.core import EngineState
from tidelog.engine.events import Event, Events
from tidelog.engine.ports import Committer, Message
from tidelog.errors import ConfigError, EngineStateError, IncompleteDumpError, TidelogError
from tidelog.testing import TestingEngine

pytestmark = pytest.mark.integration


@pytest.fixture
def make_engine(postgres: PostgresServer, database: str, make_engine: MakeEngine) -> MakeEngine:
    """Over a table of two rows."""
    name = database.rsplit("/", 1)[1]
    postgres.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text);"
        "INSERT INTO orders VALUES (1, 'one'), (2, 'two')",
        name,
    )
    return make_engine.of(kind="postgres", url=database, slot=name)


def nothing_is_left(postgres: PostgresServer, dsn: str) -> bool:
    """No session of ours, no slot that is in use, no thread."""
    name = dsn.rsplit("/", 1)[1]
    [(sessions,)] = postgres.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        f"AND datname = '{name}' AND backend_type IN ('client backend', 'walsender')"
    )
    [(slots,)] = postgres.execute(
        f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{name}' AND active"
    )
    return not sessions and not slots and no_threads_left()


def test_rows_of_a_dump_and_changes_come_once_and_continue_after_a_restart(
    postgres: PostgresServer, database: str, make_engine: MakeEngine
) -> None:
    name = database.rsplit("/", 1)[1]
    seen: list[Event] = []
    told: list[Any] = []
    engine = make_engine(
        consumer=seen.append,
        on_connector=lambda happened: told.append((happened.what, happened.task)),
        on_completion=lambda *completion: told.append(completion),
    )
    with engine:
        assert engine.state is EngineState.POLLING_TASKS
        until(lambda: len(seen) == 2, "the dump")
        postgres.execute("UPDATE orders SET note = 'ONE' WHERE id = 1", name)
        postgres.execute("DELETE FROM orders WHERE id = 2", name)
        until(lambda: len(seen) == 4, "the changes")
        outcome = engine.send(StartDump(dump_id="again", tables=("public.orders",)))
        assert outcome is not None
        assert outcome.error is None
        until(lambda: len(seen) == 5, "the second dump")
        same = engine.send(StartDump(dump_id="again", tables=("public.ord*",)))
        assert same is not None
        assert same.error is None
        for other in ({"tables": ()}, {"where": "id > 1"}, {"mode": "blocking"}, {"keys": [["1"]]}):
            command = StartDump(**{"dump_id": "again", "tables": ("public.orders",), **other})
            refused = engine.send(command)
            assert refused is not None
            if other != {"tables": ()}:  # all tables are the one
                assert "an id of its own" in str(refused.error), other
        postgres.execute("CREATE TABLE ordinary (id int PRIMARY KEY)", name)
        empty = StartDump(dump_id="empty", tables=("public.ordinary",))
        until(lambda: (outcome := engine.send(empty)) and not outcome.error, "the new table")
        same = engine.send(StartDump(dump_id="again", tables=("public.ord*",)))
        assert same is not None
        assert same.error is None  # the pattern is the same, whatever it matches now
        refused = engine.send(StartDump(dump_id="again", tables=("public.ordinary",)))
        assert refused is not None
        assert "an id of its own" in str(refused.error)
    assert [(e.op, e.key, e.after) for e in seen] == [
        ("r", {"id": 1}, {"id": 1, "note": "one"}),
        ("r", {"id": 2}, {"id": 2, "note": "two"}),
        ("u", {"id": 1}, {"id": 1, "note": "ONE"}),
        ("d", {"id": 2}, None),
        ("r", {"id": 1}, {"id": 1, "note": "ONE"}),
    ]
    ours = "engine"
    assert told == [
        *[("started", None), ("started", ours), ("stopped", ours), ("stopped", None)],
        (True, "the engine was closed", None),
    ]
    assert (committed(make_engine.log) or 0) > seen[-1].version
    assert nothing_is_left(postgres, database)
    for call in (engine.run, engine.__enter__, lambda: asyncio.run(engine.arun())):
        with pytest.raises(EngineStateError):
            call()
    engine.close()
    engine.stop()
    with pytest.raises(EngineStateError, match="takes commands"):
        engine.send(StartDump(dump_id="late", tables=("public.orders",)), timeout_s=0)

    postgres.execute("INSERT INTO orders VALUES (3, 'three')", name)
    messages: list[Message] = []
    with make_engine(consumer=messages.append, format="debezium"):
        until(lambda: messages, "what was missed")
    assert [m.event.after for m in messages] == [{"id": 3, "note": "three"}]
    assert b'"op":"c"' in (messages[0].value or b"")
    assert nothing_is_left(postgres, database)


def test_a_batch_consumer_beside_coroutines_until_it_is_cancelled(
    postgres: PostgresServer, database: str, make_engine: MakeEngine
) -> None:
    rows: list[Any] = []

    def take(events: Events, committer: Committer) -> None:
        rows.extend(events.to_arrow().column("after").to_pylist())
        committer.mark_processed(events)
        committer.mark_batch_finished()

    async def program() -> None:
        engine = make_engine(change_consumer=take)
        running = asyncio.create_task(engine.arun())
        while len(rows) < 2:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert engine.state is EngineState.STOPPED

    asyncio.run(asyncio.wait_for(program(), 60))
    assert rows == [{"id": 1, "note": "one"}, {"id": 2, "note": "two"}]
    assert (committed(make_engine.log) or 0) > versions(make_engine.log)[-1]
    assert nothing_is_left(postgres, database)


def test_a_source_that_can_not_be_captured_ends_the_start(
    postgres: PostgresServer, database: str, make_engine: MakeEngine
) -> None:
    there_is_none = database.rsplit("/", 1)[0] + "/there_is_none"
    engine = make_engine.of(url=there_is_none)(consumer=print)
    with pytest.raises(TidelogError), engine:
        pytest.fail("it polls")
    assert engine.state is EngineState.STOPPED
    assert nothing_is_left(postgres, database)


def test_close_while_it_starts_leaves_nothing(
    postgres: PostgresServer, database: str, make_engine: MakeEngine
) -> None:
    for _ in range(3):
        engine = make_engine(consumer=print)
        thread = threading.Thread(target=engine.run)
        thread.start()
        until(lambda: engine.state is EngineState.STARTING_TASKS)  # noqa: B023
        engine.close()
        thread.join(30)
        assert engine.state is EngineState.STOPPED
        assert nothing_is_left(postgres, database)


def test_a_name_that_the_pipeline_has_is_refused(
    postgres: PostgresServer, database: str, make_engine: MakeEngine
) -> None:
    name = make_engine(consumer=print).config.pipeline.name
    with pytest.raises(ConfigError, match="give the engine another name"):
        make_engine(consumer=print, name=name)
    with pytest.raises(ConfigError, match="no option speed"):
        make_engine(consumer=print, speed=3)


def test_a_test_looks_into_a_task_that_runs(
    postgres: PostgresServer, database: str, make_engine: MakeEngine
) -> None:
    section = {"batch_size": 1, "errors_retry_delay_max_ms": "1s"}
    seen: list[Event] = []
    with make_engine(
        engine=section, consumer=seen.append, offset_commit_policy="periodic"
    ) as engine:
        testing = TestingEngine(engine)
        until(lambda: len(seen) == 2, "the dump")
        assert testing.run_with_task(lambda task: task.name) == "engine"
        policy = testing.run_with_task(lambda task: task.offset_commit_policy, task="engine")
        assert policy == "periodic"
        with pytest.raises(ValueError, match="has the tasks engine"):
            testing.run_with_task(print, task="other")
        assert engine.context.options.errors_retry_delay_max_ms == 1000
    assert (committed(make_engine.log) or 0) > seen[-1].version
    with pytest.raises(EngineStateError, match="has ended"):
        testing.run_with_task(print)
    with pytest.raises(ConfigError, match=r"engine\.batch_size"):
        make_engine(engine=section, consumer=print, batch_size=0)
    with pytest.raises(ConfigError, match=r"configuration:1: source\.kind"):
        make_engine.of(kind="none")(consumer=print)


def test_it_ends_when_an_initial_dump_that_is_all_is_delivered(
    postgres: PostgresServer, database: str, make_engine: MakeEngine
) -> None:
    make_engine.of(snapshot="initial_only")
    seen: list[Event] = []
    told: list[Any] = []
    for _ in range(2):  # the second finds the dump complete
        engine = make_engine(
            consumer=seen.append,
            transforms=[{"rename": {"note": "remark"}}],
            on_completion=lambda *completion: told.append(completion),
        )
        asyncio.run(asyncio.wait_for(engine.arun(), 60))
        assert engine.state is EngineState.STOPPED
    assert [(e.op, e.after) for e in seen] == [
        ("r", {"id": 1, "remark": "one"}),
        ("r", {"id": 2, "remark": "two"}),
    ]
    assert told == [(True, "all events were delivered", None)] * 2
    assert (committed(make_engine.log) or 0) > seen[-1].version
    assert nothing_is_left(postgres, database)


def test_a_dump_that_lacks_a_table_is_delivered_but_for_it(
    postgres: PostgresServer, database: str, make_engine: MakeEngine
) -> None:
    for statement in undumpable("unread").split("; "):
        postgres.execute(statement, database.rsplit("/", 1)[1])
    make_engine.of(snapshot="initial_only", keys=yaml.safe_load(KEYS))
    seen: list[int] = []
    for _ in range(2):  # the second finds nothing left to deliver
        engine = make_engine(consumer=lambda event: seen.append(event.after["id"]))
        with pytest.raises(IncompleteDumpError, match=r"lacks public\.unread"):
            asyncio.run(asyncio.wait_for(engine.arun(), 60))
        assert seen == [1, 2]
        assert (committed(make_engine.log) or 0) > versions(make_engine.log)[-1]
        assert nothing_is_left(postgres, database)
