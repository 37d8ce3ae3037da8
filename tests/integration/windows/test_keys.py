"""Which keys a record supersedes: old and new ones, requested absent ones, all of a truncate."""

from __future__ import annotations

import pytest
from tests.integration.windows import mutations
from tests.integration.windows.live import Live, at
from tests.integration.windows.rules import Make, rule

pytestmark = pytest.mark.integration


def ten_rows(live: Live, *alter: str) -> Live:
    live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, code text NOT NULL)")
    live.sql.execute("INSERT INTO t SELECT i, 1, (1000 + i)::text FROM generate_series(1, 10) i")
    for statement in alter:
        live.sql.execute(statement.encode())
    live.start()
    return live


@rule(mutations.old_keys_ignored)
def test_old_key_of_a_key_change_is_superseded(make: Make) -> None:
    live = ten_rows(make())
    hung = live.hang_emitted("UPDATE t SET id = 105, n = 2 WHERE id = 5")
    live.dumped(live.dump())
    hung.release()
    events = live.check()
    assert ("5",) not in [e.key for e in events if e.op == "r"]


@rule(mutations.new_keys_ignored, mutations.absent_keys_always_emitted)
def test_requested_key_that_a_row_moves_to_is_not_absent(make: Make) -> None:
    live = ten_rows(make())
    hung = live.hang_emitted("UPDATE t SET id = 105, n = 2 WHERE id = 5")
    live.dumped(live.dump(keys=[("105",)]))
    hung.release()
    events = live.check()
    assert [e.op for e in events if e.key == ("105",)] == ["U"]


@rule(mutations.absent_keys_always_emitted)
def test_delete_for_an_absent_key_does_not_follow_its_insert(make: Make) -> None:
    live = ten_rows(make())
    hung = live.hang_emitted("INSERT INTO t VALUES (11, 2, 'new')")
    done = live.dumped(live.dump(keys=[("11",)]))
    hung.release()
    events = live.check()
    assert [e.op for e in events if e.key == ("11",)] == ["I"]
    assert done["tables"][0]["keys_absent"] == 0


def test_absent_keys_are_reported_and_emitted(live: Make) -> None:
    capture = ten_rows(live())
    done = capture.dumped(capture.dump(keys=[("3",), ("77",)]))
    assert done["tables"][0]["keys_absent"] == 1
    assert [(e.op, e.key) for e in capture.check() if not e.control] == [
        ("r", ("3",)),
        ("a", ("77",)),
    ]


@rule(mutations.old_keys_ignored)
def test_identity_index_matches_where_deletes_carry_no_primary_key(make: Make) -> None:
    live = ten_rows(
        make(),
        "CREATE UNIQUE INDEX by_code ON t (code)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX by_code",
    )
    hung = live.hang_emitted(
        "DELETE FROM t WHERE id = 5",
        "UPDATE t SET n = 2 WHERE id = 6",
        "UPDATE t SET n = 2, code = 'moved' WHERE id = 7",
    )
    live.dumped(live.dump())
    hung.release()
    events = live.check(key=("code",))
    assert not {("1005",), ("1006",), ("1007",)} & {e.key for e in events if e.op == "r"}


def test_requested_keys_may_be_those_of_the_identity_index(live: Make) -> None:
    capture = ten_rows(
        live(),
        "CREATE UNIQUE INDEX by_code ON t (code)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX by_code",
    )
    capture.dumped(capture.dump(keys=[("3",)]))
    done = capture.dumped(capture.dump(keys=[("1004",), ("none",)], columns=("code",)))
    assert done["tables"][0]["keys_absent"] == 1
    assert [(e.op, e.key) for e in capture.check(key=("code",)) if not e.control] == [
        ("r", ("1003",)),
        ("r", ("1004",)),
        ("a", ("none",)),
    ]


@rule(mutations.old_keys_ignored)
def test_full_identity_supersedes_by_key_and_completes_rows(make: Make) -> None:
    live = ten_rows(
        make(),
        "ALTER TABLE t ALTER code SET STORAGE EXTERNAL",
        "UPDATE t SET code = repeat('x', 9000)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    hung = live.hang_emitted(
        "UPDATE t SET n = 2 WHERE id = 6",
        "UPDATE t SET id = 105, n = 2 WHERE id = 5",
        "DELETE FROM t WHERE id = 7",
    )
    live.dumped(live.dump())
    hung.release()
    events = live.check()
    assert not any(e.partial for e in events), "the old image has what the new one lacks"


@rule(mutations.truncate_ignored)
def test_truncate_clears_a_chunk_that_cannot_see_it(make: Make) -> None:
    """The chunk's lock holds a truncate off, until its connection dies after the read."""
    live = ten_rows(make())

    def truncate() -> None:
        live.kill_chunk_reader()
        live.sql.execute("TRUNCATE t")
        live.sql.execute("INSERT INTO t VALUES (3, 5, '')")

    with at("chunk.after_read", truncate) as done:
        live.dumped(live.dump())
        assert done.is_set()
    live.check()
