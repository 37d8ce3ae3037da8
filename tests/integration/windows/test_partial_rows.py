"""Records that lack columns (unchanged TOAST): their keys are read again, whatever happens."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.integration.windows import mutations
from tests.integration.windows.live import Live, at, crash
from tests.integration.windows.rules import Make, rule

from tidelog import app
from tidelog.capture.dumps import chunk_planner, refetch_queue

pytestmark = pytest.mark.integration


def ten_big_rows(live: Live, *alter: str) -> Live:
    live.sql.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, code text NOT NULL, big text)"
    )
    live.sql.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    live.sql.execute(
        "INSERT INTO t SELECT i, 1, (1000 + i)::text, repeat(chr(64 + i), 9000) "
        "FROM generate_series(1, 10) i"
    )
    for statement in alter:
        live.sql.execute(statement.encode())
    live.start()
    return live


BY_CODE = (
    "CREATE UNIQUE INDEX by_code ON t (code)",
    "ALTER TABLE t REPLICA IDENTITY USING INDEX by_code",
)


@rule(mutations.partial_rows_complete, mutations.partial_rows_ignored)
def test_row_superseded_by_a_partial_record_is_read_again(make: Make) -> None:
    live = ten_big_rows(make(chunk_rows=3))
    dump = ""
    with at("chunk.after_high", lambda: live.hang_emitted("UPDATE t SET n = 2 WHERE id = 9")):
        dump = live.dump()
        live.wait_for(
            lambda: any(e.op == "r" and e.key == ("10",) for e in live.events()), "last chunk"
        )
    live.hung[0].release()  # only now a key chunk can see the row
    live.dumped(dump)
    events = live.check()
    assert [(e.op, e.n) for e in events if e.key == ("9",)] == [("U", 2), ("r", 2)]


@rule(mutations.order_of_changes_ignored)
def test_row_that_lacks_columns_and_takes_the_key_of_a_deleted_one_is_read_again(
    make: Make,
) -> None:
    """Its key is read while the transaction can't be seen: that the key went tells nothing of the
    row that has it now.
    """
    live = ten_big_rows(make(chunk_rows=3))
    hung = live.hang_emitted(
        "DELETE FROM t WHERE id = 5", "UPDATE t SET id = 5, n = 2 WHERE id = 9"
    )
    dump = live.dump()
    live.wait_for(lambda: any(e.op == "r" and e.key == ("10",) for e in live.events()), "the rest")
    time.sleep(0.5)  # the key is read meanwhile, which shows in nothing
    hung.release()
    live.dumped(dump)
    events = live.check()
    found = [(e.op, e.n) for e in events if e.key == ("5",) and e.op in "Ur"]
    assert found[0] == ("U", 2)
    # Twice, if the dump's chunk asked for it as well while it was being read.
    assert set(found[1:]) == {("r", 2)}


@rule(mutations.refetches_not_stored)
def test_key_is_read_again_after_a_crash(make: Make) -> None:
    """Crash with the chunk durable and its progress not stored."""
    live = ten_big_rows(make())
    hung = live.hang_emitted("UPDATE t SET n = 2 WHERE id = 9")
    with at("chunk.durable_before_progress", crash):
        dump = live.dump()
        live.crashes()
    live.start()
    hung.release()
    live.dumped(dump)
    events = live.check()
    assert [(e.op, e.n) for e in events if e.key == ("9",)] == [("U", 2), ("r", 2)]
    assert len([e for e in events if e.op == "r"]) == 10, "no completed chunk is read again"


@rule(mutations.moved_keys_ignored)
def test_moved_key_is_completed_without_any_dump(make: Make) -> None:
    live = ten_big_rows(make())
    live.sql.execute("UPDATE t SET id = 105, n = 2 WHERE id = 5")
    live.wait_for(
        lambda: [e.op for e in live.events("public.t") if e.key == ("105",)] == ["U", "r"],
        "the key is read again",
    )
    assert live.events("public.t")[-1].row == live.source("t", ("id",))[("105",)]


@rule(mutations.key_columns_ignored)
def test_keys_read_again_are_those_of_the_identity_index(make: Make) -> None:
    """Keys come from records, so they are match keys; here these are not the primary key."""
    live = ten_big_rows(make(), *BY_CODE)
    live.sql.execute("UPDATE t SET code = '7', n = 2 WHERE id = 5")
    live.wait_for(
        lambda: [e.op for e in live.events("public.t") if e.key == ("7",)] == ["U", "r"],
        "the moved key is read again",
    )
    hung = live.hang_emitted("UPDATE t SET n = 2 WHERE id = 9")
    dump = live.dump()
    live.wait_for(lambda: any(e.key == ("1010",) for e in live.events()), "the chunk")
    hung.release()
    live.dumped(dump)
    events = live.check(key=("code",))
    assert [(e.op, e.n) for e in events if e.key == ("1009",)] == [("U", 2), ("r", 2)]


@rule(mutations.refetches_not_stored)
def test_keys_of_a_large_transaction_are_read_again_over_a_crash(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several pieces, some read before the crash and some not."""
    monkeypatch.setattr(refetch_queue, "PIECE_KEYS", 3)
    monkeypatch.setattr(refetch_queue, "OPEN_KEYS", 1)
    monkeypatch.setattr(chunk_planner, "REFETCH_KEYS", 3)
    live = ten_big_rows(make())
    with at("chunk.durable_before_progress", crash, hit=2):
        live.sql.execute("UPDATE t SET id = id + 100, n = 2")
        live.crashes()
    live.start()
    moved = {(str(100 + number),) for number in range(1, 11)}
    live.wait_for(
        lambda: {e.key for e in live.events("public.t") if e.op == "r"} == moved,
        "every key is read again",
    )
    source = live.source("t", ("id",))
    assert {e.key: e.row for e in live.events("public.t") if e.op == "r"} == source
    live.dumped(live.dump())
    live.check()


def test_key_deleted_before_it_is_read_again(live: Make) -> None:
    capture = ten_big_rows(live())
    hung = capture.hang("UPDATE t SET id = 105, n = 2 WHERE id = 5")
    capture.wait_for(lambda: any(e.xid == hung.xid for e in capture.events()), "emitted")
    hung.release()
    capture.sql.execute("DELETE FROM t WHERE id = 105")
    capture.dumped(capture.dump())
    capture.check()


def test_table_dropped_before_its_key_is_read_again(live: Make) -> None:
    """Nothing is left to read; other tables' dumps go on."""
    capture = ten_big_rows(live())
    capture.sql.execute("CREATE TABLE u (id int PRIMARY KEY, n int)")
    hung = capture.hang_emitted("UPDATE t SET id = 105, n = 2 WHERE id = 5")
    hung.release()
    capture.sql.execute("DROP TABLE t")
    capture.wait_for(lambda: "public.u" in capture.published(), "published")
    capture.dumped(capture.dump("public.u"))


def test_table_gets_another_key_before_its_row_is_read_again(live: Make) -> None:
    """The key that waits tells nothing any more: the dump that is due is not held up by it."""
    capture = ten_big_rows(live())

    def change() -> None:
        capture.sql.execute("DELETE FROM t WHERE id = 105")
        capture.sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code)")

    with at("chunk.after_low", change):
        capture.sql.execute("UPDATE t SET id = 105, n = 2 WHERE id = 5")
        capture.wait_for(capture.completions, "the table is dumped for its new key")
    capture.check(key=("code",))


def test_keys_that_are_no_value_of_the_columns_new_type(live: Make) -> None:
    """No row has them: they hold up neither the dump that is due nor other keys."""
    capture = ten_big_rows(live(), *BY_CODE)

    def change() -> None:
        capture.sql.execute("UPDATE t SET code = id::text, n = 3 WHERE id IN (5, 6, 7)")
        capture.sql.execute("ALTER TABLE t ALTER code TYPE int USING code::int")

    with at("chunk.after_low", change):
        capture.sql.execute("UPDATE t SET code = 'x' || id, n = 2 WHERE id IN (5, 6, 7)")
        capture.wait_for(capture.completions, "the table is dumped for the new type")
    capture.check(key=("code",))
    capture.sql.execute("UPDATE t SET code = 105, n = 4 WHERE id = 5")
    capture.dumped(capture.dump())
    capture.check(key=("code",))


def test_row_that_cannot_be_read_again_fails_the_dump_and_holds_up_no_other(
    live: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label of an enum is torn out of the catalogue."""
    monkeypatch.setattr(refetch_queue, "RETRY_KEY_S", 0.2)
    enum = "CREATE TYPE mood AS ENUM ('good', 'bad')"
    capture = ten_big_rows(live(), enum, "ALTER TABLE t ADD mood mood")

    def change() -> None:  # behind the chunk's snapshot
        capture.sql.execute(
            "UPDATE t SET n = 2, mood = CASE id WHEN 5 THEN 'bad'::mood END WHERE id IN (4, 5, 6)"
        )

    def break_row() -> None:  # once the log has shown it
        capture.sql.execute("DELETE FROM pg_enum WHERE enumlabel = 'bad'")

    def ended() -> dict[str, Any]:
        found = {d["dump_id"]: d for d in app.status(capture.config).document.get("dumps", ())}
        return found[dump] if found.get(dump, {}).get("status") == "aborted" else {}

    def read_again(key: str) -> list[int]:
        return [e.n for e in capture.events("public.t") if e.op == "r" and e.key == (key,)]

    with at("chunk.after_read", change), at("chunk.after_low", break_row, hit=2):
        dump = capture.dump()
        capture.wait_for(ended, "the dump ends")
    assert "1 row that changed during the dump could not be read" in ended()["tables"][0]["reason"]
    assert read_again("4") == read_again("6") == [2]
    assert not read_again("5")
    capture.sql.execute("UPDATE t SET n = 3, mood = 'good' WHERE id = 5")
    # Twice, if reading took longer than it is until the next try.
    capture.wait_for(lambda: set(read_again("5")) == {3}, "the row is mended, and read again")
    capture.dumped(capture.dump())
    capture.check()
