"""What a dump is asked for: lists of tables, expressions, conditions, keys."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make, gate
from tests.behaviours.dumps.sources import N, series
from tests.behaviours.dumps.ways import READERS, TWO, ways
from tests.integration.windows.live import PATIENCE_S

from tidelog import app
from tidelog.app.sources.keys import store_keys
from tidelog.capture.dumps import table_dump
from tidelog.capture.dumps.refetch_queue import KeySets, missing_set
from tidelog.control.commands import CancelDump, StartDump
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration

SIGNALS = "CREATE TABLE public.signals (id varchar(42) PRIMARY KEY, type varchar(32), data text)"


def signal(dumped: Dumped, signal_id: str, kind: str, **data: Any) -> None:
    dumped.sql.execute(
        "INSERT INTO signals VALUES (%s, %s, %s)", (signal_id, kind, json.dumps(data))
    )


def several(dumped: Dumped, *names: str) -> Dumped:
    for name in names:
        dumped.table(name, rows=7)
    return dumped


def three(make: Make, **options: Any) -> Dumped:
    return several(make(**options), "a1", "a2", "b1")


@ways(READERS)
def test_expressions_and_duplicates_in_the_list_of_tables(make: Make) -> None:
    """Debezium: snapshotWithRegexDataCollections, snapshotWithDuplicateDataCollections."""
    dumped = three(make)
    dumped.start()
    lists = ["public.a.*", "public.a1", "public.a1", "public.(a|c).*"]
    dump = dumped.dump(*lists, matching="regex")
    done = dumped.dumped(dump)
    assert [table["table"] for table in done["tables"]] == ["public.a1", "public.a2"]
    for table in ("public.a1", "public.a2"):
        assert len(dumped.rows_of(dump, table)) == 7
        dumped.check(table)
    assert not dumped.rows_of(dump, "public.b1")


@ways(READERS)
def test_bad_tables_in_the_list_hold_up_nothing(make: Make) -> None:
    """Debezium: invalidTablesInTheList."""
    dumped = three(make)
    dumped.sql.execute("CREATE TABLE keyless (n int)")
    dumped.start()
    outcome = dumped.send(
        StartDump(
            dump_id="d",
            tables=("public.nothing", "aside.ledger", "public.keyless", "public.a1", "public.b1"),
        )
    )
    reasons = {entry["table"]: entry["reason"] for entry in outcome["rejected"]}
    assert set(reasons) == {"public.nothing", "aside.ledger"}
    dumped.dumped("d")
    assert dumped.progress("d", "public.keyless")["status"] == "done"
    for table in ("public.a1", "public.b1"):
        assert len(dumped.rows_of("d", table)) == 7
        dumped.check(table)


def test_list_that_matches_nothing_is_refused_and_the_next_dump_goes_on(make: Make) -> None:
    """Debezium: snapshotWithRegexDataCollectionsNotExist."""
    dumped = three(make)
    dumped.start()
    command = StartDump(dump_id="none", tables=("public.zz.*",), matching="regex")
    outcome = app.send_command(dumped.config, command, timeout_s=PATIENCE_S).to_dict()
    assert "public.a1" in outcome["error"], "it says what there is"
    dumped.dumped(dumped.dump("public.a1"))
    dumped.check("public.a1")


@ways(TWO)
def test_names_that_must_be_quoted(make: Make) -> None:
    """Debezium: executeBlockingSnapshotWithEscapedCollectionName."""
    dumped = make()
    name = 'Odd.Na"me $1'
    table, column = dumped.on.quoted(name), dumped.on.quoted("I d")
    dumped.sql.execute(f"CREATE TABLE {table} ({column} int PRIMARY KEY, n int NOT NULL)".encode())
    dumped.sql.execute(f"INSERT INTO {table} {series(12)}".encode())
    dumped.start()
    for mode in ("incremental", "blocking"):
        dump = dumped.dump('public."Odd.Na""me $1"', matching="regex", mode=mode)
        dumped.dumped(dump)
        [[_, events]] = [[c, e] for c, e in dumped.chunks(f"public.{name}") if c.dump_id == dump][
            :1
        ] or [[None, []]]
        assert events, dumped.state(dump)
    assert len([e for e in dumped.events(f"public.{name}") if e.op == "r"]) == 24


@ways(READERS)
def test_conditions(make: Make) -> None:
    """Debezium: snapshotWithAdditionalCondition, snapshotWithNewAdditionalConditionsField. What
    no condition asks for is neither read nor deleted.
    """
    dumped = three(make)
    dumped.start()
    dump = dumped.dump(
        "public.a1", "public.b1", conditions={"public.a1": "id > 3 AND concat(n) <> '(;'"}
    )
    dumped.dumped(dump)
    assert set(dumped.rows_of(dump, "public.a1")) == {("4",), ("5",), ("6",), ("7",)}
    assert len(dumped.rows_of(dump, "public.b1")) == 7
    [done] = dumped.completions("public.a1")
    assert done.control is not None
    assert done.control["delete_absent"] is False
    dumped.check("public.a1")
    dumped.check("public.b1")


@ways(READERS)
def test_condition_that_is_no_sql_keeps_the_table_alone_out(make: Make) -> None:
    dumped = three(make)
    dumped.start()
    dump = dumped.dump("public.a1", "public.b1", conditions={"public.a1": "nonsense = 3"})
    dumped.dumped(dump)
    assert [table["table"] for table in dumped.state(dump)["tables"]] == ["public.b1"]
    assert dumped.progress(dump, "public.b1")["status"] == "done"
    dumped.check("public.b1")


@ways(READERS)
def test_conditions_are_kept_over_restarts(make: Make) -> None:
    """Debezium: snapshotWithAdditionalConditionWithRestart."""
    dumped = make(chunk_rows=3, dump_lines="delay_ms: 120")
    dumped.table(rows=40)
    dumped.start()
    dump = dumped.dump(where="id % 2 = 0")
    dumped.passed(dump, 2)
    dumped.restart()
    dumped.dumped(dump)
    assert set(dumped.rows_of(dump)) == {(str(i),) for i in range(2, 41, 2)}
    assert len(dumped.rows_of(dump)) == 20
    dumped.check()


@pytest.mark.parametrize("missing", ["delete", "list"])
@ways(TWO)
def test_given_keys_and_those_the_table_lacks(make: Make, missing: str) -> None:
    dumped = make(chunk_rows=3)
    dumped.table(rows=20)
    dumped.start()
    keys = [(str(i),) for i in (3, 5, 77, 9, 3, 12, 88, 20)]
    with gate("chunk.after_read", hit=1) as held:
        dump = dumped.dump(keys=keys, missing=missing)
        dumped.reach(held)
        dumped.do(f"INSERT INTO t VALUES (77, {N})", f"UPDATE t SET n = {N} WHERE id = 5")
        dumped.do("DELETE FROM t WHERE id = 12")
        held.open()
        done = dumped.dumped(dump)
    dumped.check()
    absent = [e.key for e in dumped.events("public.t") if e.op == "a"]
    state = SqliteState(dumped.config.state.url)
    listed = list(KeySets(state).all(missing_set(dump)))
    state.close()
    assert ("88",) in (absent if missing == "delete" else listed)
    assert not (listed if missing == "delete" else absent)
    assert set(absent) | set(listed) <= {("77",), ("88",), ("12",)}
    assert done["tables"][0]["keys_read"] == 7, "each once"


@ways(TWO)
def test_dumps_that_share_their_stored_keys(make: Make) -> None:
    dumped = make(chunk_rows=3)
    dumped.table(rows=20)
    dumped.start()
    keys, count = store_keys(dumped.config, [(str(i),) for i in range(1, 21)])
    with gate("chunk.after_low") as held:
        first, second = (dumped.dump(key_set=keys, key_columns=("id",)) for _ in range(2))
        dumped.reach(held)
        dumped.send(CancelDump(dump_id=first))
        held.open()
        done = dumped.dumped(second)
    assert done["tables"][0]["keys_read"] == count
    assert len(dumped.rows_of(second)) == count


@ways(READERS)
def test_keys_that_are_stored_no_more_fail_the_table(make: Make) -> None:
    dumped = make(chunk_rows=3)
    dumped.patch.setattr(table_dump, "KEYS_PER_DOCUMENT", 6)  # those that are read at once
    dumped.table(rows=20)
    dumped.start()
    keys, _count = store_keys(dumped.config, [(str(i),) for i in range(1, 21)])
    with gate("chunk.after_low") as held:
        dump = dumped.dump(key_set=keys, key_columns=("id",))
        dumped.reach(held)
        state = SqliteState(dumped.config.state.url)
        KeySets(state).delete(keys)
        state.close()
        held.open()
        done = dumped.dumped(dump, "aborted")
    assert "of its keys are not stored any more" in done["tables"][0]["reason"]
    assert ("TABLE_SCAN_COMPLETED", "public.t SQL_EXCEPTION") in dumped.notifications(dump)


@ways(READERS)
def test_table_that_capture_has_never_seen(make: Make) -> None:
    """Debezium: snapshotNewTableWithoutCapturedSchema, snapshotNewTableWithoutTableIncludeList. It
    has no record in the log yet, and is dumped as soon as it exists.
    """
    dumped = make()
    dumped.start()
    dumped.table("late", rows=12)
    dumped.wait_for(lambda: dumped.is_captured("public.late"), "it is published")
    dump = dumped.dump("public.late")
    dumped.dumped(dump)
    assert len(dumped.rows_of(dump, "public.late")) == 12
    dumped.do(f"UPDATE late SET n = {N} WHERE id = 3")
    dumped.ledgers.clear()  # what was done before it was published is in no log
    dumped.check("public.late")


@ways(READERS)
def test_signal_table_works_as_for_debezium(make: Make) -> None:
    """Debezium: signalLog, additional-conditions with an empty filter, unknown signals."""
    dumped = make(source_lines="signal_table: public.signals")
    dumped.sql.execute(SIGNALS)
    several(dumped, "a1", "a2")
    dumped.start()
    signal(dumped, "what", "no-such-signal")
    dumped.sql.execute("INSERT INTO signals VALUES ('broken', 'execute-snapshot', '{')")
    signal(
        dumped,
        "ad-hoc",
        "execute-snapshot",
        **{
            "type": "INCREMENTAL",
            "data-collections": ["public.a1", "public.a2"],
            "additional-conditions": [{"data-collection": "public.a1", "filter": "id < 3"}],
        },
    )
    dumped.dumped("ad-hoc")
    assert len(dumped.rows_of("ad-hoc", "public.a1")) == 2
    assert len(dumped.rows_of("ad-hoc", "public.a2")) == 7
    signal(
        dumped,
        "whole-row",
        "execute-snapshot",
        **{
            "data-collections": ["public.a1"],
            "additional-conditions": [{"data-collection": "public.a1", "filter": "a1 IS NULL"}],
        },
    )
    dumped.dumped("whole-row", "aborted")  # no column, though PostgreSQL has a value of that name
    skipped = {n.dump_id for n in dumped.notices if n.type == "SKIPPED"}
    assert skipped == {"what", "broken"}
    dumped.check("public.a1")
    dumped.check("public.a2")


@ways(READERS)
def test_signal_left_while_capture_was_down_is_acted_on_once(make: Make) -> None:
    dumped = make(source_lines="signal_table: public.signals")
    dumped.sql.execute(SIGNALS)
    several(dumped, "a1")
    dumped.start()
    dumped.catch_up()
    dumped.stop()
    collections = {"data-collections": ["public.a1"]}
    signal(dumped, "while-down", "execute-snapshot", **collections)
    dumped.start()
    dumped.dumped("while-down")
    dumped.restart()
    dumped.catch_up()
    assert len(dumped.rows_of("while-down", "public.a1")) == 7
    assert len(dumped.completions("public.a1")) == 1
    dumped.check("public.a1")
