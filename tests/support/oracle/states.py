"""The history oracle's part about tables of history: the states that each row had.

Pure: the event log's records, the truth and what readers of a table found come in as values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby, pairwise, zip_longest

from tests.support.oracle.history import HistoryError, SourceState, lasts
from tests.support.oracle.values import UNCHANGED, Change, Key, Row, Transaction


@dataclass(frozen=True, slots=True)
class State:
    """What a row was from one record on, until another; None: it still is.

    Attributes:
        key: the row's.
        row: its columns that no DDL touches.
        since, until: offsets of the records.
        since_us, until_us: times of the records, in microseconds since 1970 UTC.
    """

    key: Key
    row: Row
    since: int
    since_us: int
    until: int | None = None
    until_us: int | None = None

    def holds_at(self, time_us: int) -> bool:
        return self.since_us <= time_us and (self.until_us is None or time_us < self.until_us)


@dataclass(slots=True)
class _Open:
    row: Row
    since: int
    since_us: int
    version: int
    """Of the last record that showed this state."""


def states_of(records: Iterable[Change], table: str) -> list[State]:
    """The states of a table's rows by the event log's records, one record after the other."""
    done: list[State] = []
    there: dict[Key, _Open] = {}

    def end(key: Key | None, by: Change) -> None:
        found = there.pop(key, None) if key is not None else None
        if key is not None and found is not None:
            until_us = max(found.since_us, by.commit_us)
            done.append(
                State(key, _lasting(found.row), found.since, found.since_us, by.offset, until_us)
            )

    for record in records:
        if record.op == "c":
            control = json.loads(record.payload)
            first = control.get("first_offset")
            if (control["type"], control.get("table")) != ("dump-completed", table):
                continue
            if control["delete_absent"]:
                for key in [key for key, each in there.items() if each.version < first]:
                    end(key, record)
        elif record.table != table:
            continue
        elif record.op == "T":
            for key in list(there):
                end(key, record)
        elif record.new is None or record.new_key is None:
            end(record.old_key, record)
        else:
            _change(record, there, end)
    open_states = (
        State(key, _lasting(each.row), each.since, each.since_us) for key, each in there.items()
    )
    return sorted([*done, *open_states], key=lambda state: state.since)


def _change(
    record: Change, there: dict[Key, _Open], end: Callable[[Key | None, Change], None]
) -> None:
    key = record.new_key
    assert key is not None
    assert record.new is not None
    left = record.old_key if record.op == "U" and record.old_key is not None else key
    base = there.get(left)
    if left != key:
        end(left, record)
    if base is None and UNCHANGED in record.new.values():
        return  # nobody knows the row
    row = {
        name: base.row.get(name) if value == UNCHANGED and base is not None else value
        for name, value in record.new.items()
    }
    now = there.get(key)
    if now is not None and all(now.row.get(name) == value for name, value in row.items()):
        now.version = record.offset
        return
    since_us = record.commit_us if now is None else max(record.commit_us, now.since_us)
    end(key, record)
    there[key] = _Open(row, record.offset, since_us, record.offset)


def unknown_states(records: Sequence[Change], table: str, known: Sequence[State]) -> list[State]:
    """States that no reader of the log can know, without rows: a record began each whose columns
    the log does not have and no record before it had (an INSERT logged before its table got a
    column that capture knew already). They end with the key's next known state or its delete.
    """
    found = []
    for at, record in enumerate(records):
        key = record.new_key
        if record.table != table or key is None or UNCHANGED not in (record.new or {}).values():
            continue
        of_key = [each for each in known if each.key == key]
        if any(_lasts_over(each, record.offset) for each in of_key):
            continue
        ends = [(each.since, each.since_us) for each in of_key if each.since > record.offset]
        ends += [
            (other.offset, other.commit_us)
            for other in records[at + 1 :]
            if other.table == table
            and (other.op == "T" or (other.old_key == key and other.new_key != key))
        ]
        until, until_us = min(ends, default=(None, None))
        found.append(State(key, {}, record.offset, record.commit_us, until, until_us))
    return found


def _lasts_over(state: State, offset: int) -> bool:
    return state.since <= offset and (state.until is None or offset < state.until)


def _lasting(row: Row) -> Row:
    return {name: value for name, value in row.items() if lasts(name)}


def check_states(found: Sequence[State], wanted: Sequence[State]) -> None:
    """Are the states that a reader found those of the event log? Raises HistoryError."""
    for key, each in groupby(sorted(found, key=_place), key=lambda state: state.key):
        of_key = list(each)
        for one, following in pairwise(of_key):
            if one.until is None or one.until > following.since:
                raise HistoryError(f"two states of {key} overlap: {_told(one)}, {_told(following)}")
    for one, other in zip_longest(sorted(found, key=_place), sorted(wanted, key=_place)):
        if one != other:
            raise HistoryError(
                f"the history has {len(found)} states of {len(wanted)}; it has {_told(one)} where "
                f"the event log has {_told(other)}"
            )


def check_times(
    found: Sequence[State],
    table: str,
    truth: Sequence[Transaction],
    since_us: int,
    gone: Set[str] = frozenset(),
    unknown: Sequence[State] = (),
) -> int:
    """As of the time of each commit from ``since_us`` on, are the states those of the source?
    Returns how many times were compared. Keys with a part in ``gone`` are not: their rows went
    without changes; nor are those of `unknown_states`, while they last. Raises HistoryError.
    """
    state, compared = SourceState(), 0
    order = sorted(range(len(truth)), key=lambda at: (truth[at].commit_us, at))
    for time_us, group in groupby(order, key=lambda at: truth[at].commit_us):
        touched = False
        for at in group:
            for change in truth[at].changes:
                state.apply(change)
                touched |= change.table == table
        if time_us < since_us or not touched:
            continue
        compared += 1
        wanted = _without(state.tables[table], gone)
        rows: dict[Key, Row] = {}
        for each in found:
            if each.holds_at(time_us):
                if each.key in rows:
                    raise HistoryError(f"{table} has two states of {each.key} as of {time_us}")
                rows[each.key] = each.row
        rows = _without(rows, gone)
        for key in {each.key for each in unknown if each.holds_at(time_us)}:
            rows.pop(key, None)
            wanted.pop(key, None)
        if rows != wanted:
            wrong = [key for key in {*rows, *wanted} if rows.get(key) != wanted.get(key)]
            raise HistoryError(
                f"{table} as of {time_us} is not the source's in {len(wrong)} keys; the first is "
                f"{wrong[0]}: {_brief(rows.get(wrong[0]))}, not {_brief(wanted.get(wrong[0]))}"
            )
    return compared


def _without(rows: Mapping[Key, Row], gone: Set[str]) -> dict[Key, Row]:
    return {key: _lasting(row) for key, row in rows.items() if gone.isdisjoint(key)}


def _place(state: State) -> tuple[str, int]:
    return str(state.key), state.since


def _told(state: State | None) -> str:
    if state is None:
        return "none"
    times = f"from {state.since} ({state.since_us}) to {state.until} ({state.until_us})"
    return f"{state.key} {times} {_brief(state.row)}"


def _brief(row: Row | None) -> Row | None:
    return row and {name: value and value[:24] for name, value in row.items()}
