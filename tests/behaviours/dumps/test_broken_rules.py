"""Each rule broken on purpose: a behaviour of this suite must fail then."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.behaviours.dumps import (
    test_blocking_dumps,
    test_changes_during_dumps,
    test_control,
    test_failing_rows,
    test_restarts,
    test_scope,
)
from tests.behaviours.dumps.dumped import Make
from tests.behaviours.dumps.ways import Way
from tests.integration.windows import mutations
from tests.integration.windows.rules import impatient

from tidelog.capture import windows
from tidelog.capture.dumps import store
from tidelog.capture.dumps.chunk_planner import ChunkQueue
from tidelog.capture.dumps.coordinator import DumpTurns
from tidelog.capture.dumps.state import DumpState
from tidelog.capture.dumps.throttle import Throttle
from tidelog.capture.pauses import BlockingDumpPause

pytestmark = pytest.mark.integration

Patch = pytest.MonkeyPatch


def nothing_superseded(patch: Patch) -> None:
    patch.setattr(windows.KeyHistory, "invisible", lambda self, snapshot: None)


def chunks_of_the_log_ignored(patch: Patch) -> None:
    patch.setattr(store.DumpStore, "reconcile", lambda self, chunks, end=None: None)
    patch.setattr(store, "STORE_EVERY_S", 1e9)


def condition_forgotten(patch: Patch) -> None:
    load = DumpState.from_json.__func__  # type: ignore[attr-defined]

    def forgetting(cls: type[DumpState], data: dict[str, Any]) -> Any:
        return load(cls, {**data, "tables": [{**t, "where": None} for t in data["tables"]]})

    patch.setattr(DumpState, "from_json", classmethod(forgetting))


def log_pause_not_moved_to_the_snapshot(patch: Patch) -> None:
    patch.setattr(BlockingDumpPause, "set_position", lambda self, at: None)


def log_pause_never_released(patch: Patch) -> None:
    patch.setattr(BlockingDumpPause, "release", lambda self: None)


def first_dump_always_first(patch: Patch) -> None:
    patch.setattr(DumpTurns, "took_turn", lambda self, dump: None)


def rest_of_a_halved_chunk_dropped(patch: Patch) -> None:
    patch.setattr(ChunkQueue, "put_rest", lambda self, task, after: None)


def no_limit(patch: Patch) -> None:
    patch.setattr(Throttle, "wait_s", lambda self, now: 0.0)


TABLE, FOUR = Way("table", 1), Way("table", 4)
MYSQL, MARIADB = Way("table", 1, "mysql"), Way("table", 1, "mariadb")
changes, restarts = test_changes_during_dumps, test_restarts
BROKEN: list[tuple[Way, Callable[..., None], Callable[[Patch], None]]] = [
    (TABLE, changes.test_rows_written_inside_and_outside_the_chunk, nothing_superseded),
    (FOUR, changes.test_rows_written_inside_and_outside_the_chunk, nothing_superseded),
    (TABLE, changes.test_key_that_moves_between_read_and_unread_ranges, mutations.old_keys_ignored),
    (MYSQL, changes.test_rows_written_inside_and_outside_the_chunk, nothing_superseded),
    (
        MARIADB,
        changes.test_key_that_moves_between_read_and_unread_ranges,
        mutations.old_keys_ignored,
    ),
    (TABLE, changes.test_unchanged_large_values_are_not_lost, mutations.partial_rows_complete),
    (TABLE, restarts.test_crash_at_any_point_of_a_chunk, chunks_of_the_log_ignored),
    (TABLE, test_scope.test_conditions_are_kept_over_restarts, condition_forgotten),
    (
        TABLE,
        test_blocking_dumps.test_writers_of_all_kinds_go_on,
        log_pause_not_moved_to_the_snapshot,
    ),
    (TABLE, test_blocking_dumps.test_idle_source, log_pause_never_released),
    (TABLE, test_control.test_two_dumps_share_the_readers, first_dump_always_first),
    (TABLE, test_control.test_rows_per_second, no_limit),
    (
        FOUR,
        test_failing_rows.test_only_rows_that_cannot_be_read_are_missing,
        rest_of_a_halved_chunk_dropped,
    ),
]
TRIES = 3
"""What else the server does, e.g. cleaning up behind another test, may mend what is broken."""
GIVEN = {"point": "chunk.durable_before_progress", "broken": (8,)}


@pytest.mark.parametrize(
    ("way", "behaviour", "broken"),
    BROKEN,
    ids=lambda value: str(getattr(value, "__name__", value)).removeprefix("test_"),
)
def test_broken_rule_is_noticed(
    tries: Iterator[Make],
    monkeypatch: pytest.MonkeyPatch,
    behaviour: Callable[..., None],
    broken: Callable[[Patch], None],
) -> None:
    broken(monkeypatch)
    wanted = inspect.signature(behaviour).parameters
    given = {name: value for name, value in GIVEN.items() if name in wanted}
    for make in itertools.islice(tries, TRIES):
        try:
            behaviour(impatient(make), **given)
        except AssertionError as failure:
            print(f"{broken.__name__}: {failure}")
            return
    pytest.fail(f"{broken.__name__} went unnoticed {TRIES} times")
