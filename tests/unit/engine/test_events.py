"""One change as a small object, and many as Arrow."""

from __future__ import annotations

import datetime
import json
import pickle
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.build_log import SOURCE, BuiltLog
from tests.support.engines import COLUMNS, versions
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.app.async_engine.log_task import LogTask
from tidelog.engine.event_batches import EventBatch, _values
from tidelog.engine.events import Event, Events
from tidelog.engine.options import EngineOptions
from tidelog.engine.running_task import TaskCommitter


def polled(path: Path, batch_size: int = 2048) -> Events:
    task = LogTask(str(path), "engine", batch_size=batch_size)
    task.start(threading.Event())
    events = task.poll(1.0)
    assert events is not None
    return events


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.decimal128(38, 20), ["0", "1E-20", "-1.50", "123456789012345678", "100"]),
        (pa.decimal128(12, 0), ["0", "-7", "100"]),
        (pa.decimal128(12, -2), ["0", "100", "12300"]),
        (pa.decimal256(60, 30), ["0", "1E-30", "-99999999999999999999.5"]),
        (pa.date32(), [0, -719_162, 2_932_896]),
        (pa.date32(), [0, -719_163]),
        *(
            (pa.timestamp("us", zone), values)
            for zone in (None, "UTC")
            for values in (
                [0, 1, -1, -62_135_596_800_000_000, 253_402_300_799_999_999],
                [0, 253_402_300_800_000_000],
            )
        ),
        (pa.timestamp("us", "Europe/Paris"), [0, 1]),
        (pa.timestamp("ms"), [0, 1]),
    ],
)
def test_numbers_and_instants_are_those_of_arrow(
    kind: pa.DataType, values: list[Any], nulls: bool
) -> None:
    """However they are made: equal in value, type, digits and zone."""
    given = values if not pa.types.is_decimal(kind) else [Decimal(each) for each in values]
    column = pa.array([*given, *([None] if nulls else [])], kind)
    for part in (column, column.slice(1), column.slice(0, 0), column.slice(len(given))):
        try:
            expected = part.to_pylist()
        except (OverflowError, ValueError):
            assert any(isinstance(each, str) for each in _values(part))
            continue
        assert list(map(repr, _values(part))) == list(map(repr, expected))


def test_each_kind_of_change(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    built.insert(orders, "1", "a")
    built.update(orders, "1", UNCHANGED)
    built.delete(orders, "1")
    built.truncate(orders)
    built.flush()
    built.chunk(orders, [["2", "b"]])
    events = polled(tmp_path)
    created, updated, deleted, truncated, dumped = events
    assert [event.op for event in events] == ["c", "u", "d", "t", "r"]
    assert (created.key, created.before, created.after) == ({"id": 1}, None, {"id": 1, "note": "a"})
    # What the log does not tell is not there: not None, which is SQL's NULL.
    assert (updated.after, updated.missing) == ({"id": 1}, ("note",))
    assert (deleted.key, deleted.before, deleted.after) == ({"id": 1}, {"id": 1}, None)
    assert (truncated.key, truncated.before, truncated.after) == (None, None, None)
    assert (dumped.key, dumped.after, dumped.xid) == ({"id": 2}, {"id": 2, "note": "b"}, 0)
    assert [event.version for event in events] == versions(tmp_path)
    assert str(created.table) == "public.orders"
    assert created.schema == orders
    assert created.source == SOURCE
    assert created.position == 1001
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    expected = epoch + datetime.timedelta(microseconds=1_700_000_000_000_000 + 1001)
    assert created.ts == expected


def _set_item(image: Any) -> None:
    image["note"] = "***"


def _add_in_place(image: Any) -> None:
    image |= {"note": "***"}


@pytest.mark.parametrize(
    "change",
    [
        _set_item,
        _add_in_place,
        lambda image: image.pop("note"),
        lambda image: image.update(note="***"),
        lambda image: image.setdefault("more", 1),
        lambda image: image.__delitem__("note"),
        lambda image: image.popitem(),
        lambda image: image.clear(),
    ],
)
def test_a_change_of_an_image_raises_and_says_what_to_write(tmp_path: Path, change: Any) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    built.insert(orders, "1", "b")
    built.delete(orders, "1")
    built.flush()
    event, deleted = polled(tmp_path)
    replaced = event.replace(after={"id": 1, "note": "c"})
    images = [event.key, deleted.before, event.after, replaced.after]
    images += [pickle.loads(pickle.dumps(event.after))]  # as it reaches another process
    for image in images:
        held = dict(image or {})
        with pytest.raises(TypeError, match=r"read-only.*event\.replace"):
            change(image)
        assert image == held
    copied = event.to_dict()["after"]
    copied["note"] = "a copy of one's own"
    assert (event.after, replaced.after) == ({"id": 1, "note": "b"}, {"id": 1, "note": "c"})
    assert json.loads(json.dumps(event.after)) == event.after


def test_dates_that_python_has_no_calendar_for_are_texts(tmp_path: Path) -> None:
    """Years before 1 and after 9999, and MySQL's 0000-00-00 of a key; rows beside are as ever."""
    built = BuiltLog(tmp_path)
    days = built.table(
        "public.t", {"d": "date", "at": "timestamp", "tz": "timestamptz"}, key=("d",)
    )
    built.insert(days, "0044-03-15 BC", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00.5+00")
    built.insert(days, "2024-02-29", "2024-02-29 01:02:03", None)
    built.flush()
    odd, usual = polled(tmp_path)
    assert odd.key == {"d": "-0043-03-15"}
    assert odd.after == {
        "d": "-0043-03-15",
        "at": "-0043-03-15T12:00:00.000000",
        "tz": "+10000-01-01T00:00:00.500000Z",
    }
    assert usual.after == {
        "d": datetime.date(2024, 2, 29),
        "at": datetime.datetime(2024, 2, 29, 1, 2, 3),
        "tz": None,
    }


def test_a_full_old_image_is_reported_whole(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    full = built.table("public.orders", COLUMNS, identity_kind="f", identity=("id", "note"))
    built.insert(full, "1", "a")
    built.flush()
    [event] = polled(tmp_path)
    assert event.before is None
    other = built.table("public.narrow", COLUMNS, relation_id=2)
    built.delete(other, "1")
    built.flush()
    assert polled(tmp_path)[1].before == {"id": 1}  # without a note that nobody told


def test_a_key_change_is_a_delete_and_a_creation_of_one_version(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    built.insert(orders, "1", "a")
    built.update(orders, "2", UNCHANGED, key=["1"])
    built.insert(orders, "3", "c")
    built.flush()
    events = polled(tmp_path)
    first, gone, new, last = events
    assert [event.op for event in events] == ["c", "d", "c", "c"]
    assert (gone.key, gone.before, gone.after, gone.missing) == ({"id": 1}, {"id": 1}, None, ())
    assert (new.key, new.before, new.after) == ({"id": 2}, None, {"id": 2})
    assert new.missing == ("note",)
    assert first.version < gone.version == new.version < last.version


def test_tables_that_alternate_keep_the_logs_order(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    lines = built.table("public.lines", {"order": "int64", "line": "int64"}, relation_id=2, key=())
    for number in range(6):
        built.insert(orders, str(number), "x")
        built.insert(lines, str(number), "0")
        built.update(orders, str(number + 10), "y", key=[str(number)])
        built.insert(lines, str(number), "1")
    built.flush()
    for batch_size in (2048, 5):
        task = LogTask(str(tmp_path), "engine", batch_size=batch_size)
        task.start(threading.Event())
        found: list[Event] = []
        while len(found) < 30:
            events = task.poll(1.0)
            assert events is not None
            assert len(events) == len(list(events))
            assert [events[place].version for place in range(len(events))] == [
                event.version for event in events
            ]
            found += events
        assert [event.version for event in found] == sorted(
            [*versions(tmp_path), *versions(tmp_path)[2::4]]
        )
        told = [str(event.table.name)[0] + event.op for event in found]
        assert told == ["oc", "lc", "od", "oc", "lc"] * 6
        assert [event.after["line"] for event in found if event.key is None] == [0, 1] * 6
        assert [event.key["id"] for event in found if event.op == "d"] == list(range(6))


def test_as_arrow_and_as_plain_values(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    for number in range(4):
        built.insert(orders, str(number), None)
    built.flush()
    events = polled(tmp_path)
    table = events.to_arrow()
    table.validate(full=True)
    assert table.column("after").to_pylist() == [{"id": n, "note": None} for n in range(4)]
    assert [row["after"] for row in events.to_pylist()] == table.column("after").to_pylist()
    assert events.to_pylist()[0]["schema_version"] == orders.schema_id
    built.insert(built.table("public.lines", COLUMNS, relation_id=2), "1", "x")
    built.flush()
    both = polled(tmp_path)
    with pytest.raises(ValueError, match=r"public\.lines .*take runs"):
        both.to_arrow()
    assert [(str(s.table), b.num_rows) for s, b in both.runs()] == [
        ("public.orders", 4),
        ("public.lines", 1),
    ]


def test_a_replaced_image_is_in_the_values_and_in_arrow(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    for number in range(3):
        built.insert(orders, str(number), "secret")
    built.flush()
    events = polled(tmp_path)
    masked = events[1].replace(after={"id": 1, "note": "***"})
    assert masked.after == {"id": 1, "note": "***"}
    assert events[1].after == {"id": 1, "note": "secret"}
    made = Events.of([events[0], masked, events[2]], events.end)
    notes = [after["note"] for after in made.to_arrow().column("after").to_pylist()]
    assert notes == ["secret", "***", "secret"]
    assert [event.number for event in made] == [event.number for event in events]
    with pytest.raises(ValueError, match="has no column colour"):
        events[0].replace(after={"colour": "red"}).to_batch()
    with pytest.raises(TypeError, match="op"):
        events[0].replace(op="d")


def test_no_value_shows_where_an_event_is_logged(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    built.insert(built.table("public.orders", COLUMNS), "1", "secret")
    built.flush()
    [event] = polled(tmp_path)
    [version] = versions(tmp_path)
    assert repr(event) == f"<Event c of public.orders, version {version}>"


def test_a_batch_travels_to_another_process(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    built.insert(orders, "1", "a")
    built.insert(orders, "2", "b")
    built.flush()
    [part] = polled(tmp_path).parts
    back = pickle.loads(pickle.dumps(part.slice(1, 2)))
    assert Event(back, 0).after == {"id": 2, "note": "b"}


def test_values_are_those_of_arrow(tmp_path: Path) -> None:
    """However they are made: by a quicker way for most types."""
    built = BuiltLog(tmp_path)
    columns = {
        "id": "int64", "s": "int16", "yes": "bool", "f": "float32", "d": "float64", "day": "date",
        "at": "timestamptz", "n": "decimal(10,2)", "t": "text", "b": "bytes",
    }  # fmt: skip
    table = built.table("public.t", columns)
    moment = "2026-01-02 03:04:05.678901+00"
    built.insert(table, "1", "2", "t", "0.1", "1e300", "2026-01-02", moment, "1.50", "ä", "b")
    built.insert(table, "2", "3", "f", "NaN", "-0", "0001-01-01", moment, "-1", "", "")
    built.flush()
    whole = polled(tmp_path)
    built.insert(table, "3", *[None] * 9)
    built.flush()
    task = LogTask(str(tmp_path), "all")
    task.start(threading.Event())
    for events in (whole, task.poll(1.0)):
        assert events is not None
        expected = events.to_arrow().column("after").to_pylist()
        for event, row in zip(events, expected, strict=True):
            assert event.after is not None
            assert repr(event.after) == repr(row)
            assert list(map(type, event.after.values())) == list(map(type, row.values()))


def test_pieces_are_the_same_events(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    tables = [built.table(f"public.t{n}", COLUMNS, relation_id=n) for n in (1, 2)]
    for number in range(20):
        built.insert(tables[number // 3 % 2], str(number), "x")
    built.flush()
    events = polled(tmp_path)
    for size in (1, 4, 7, 20, 50):
        pieces = list(events.pieces(size))
        assert [len(piece) for piece in pieces[:-1]] == [size] * (len(pieces) - 1)
        assert [e.version for piece in pieces for e in piece] == [e.version for e in events]
        assert {(piece.end, piece.generation) for piece in pieces} == {
            (events.end, events.generation)
        }


def alternating(path: Path, count: int) -> Events:
    """Of two tables in turn: each event is a part of its own."""
    built = BuiltLog(path)
    tables = [built.table(f"public.t{n}", COLUMNS, relation_id=n) for n in (1, 2)]
    for number in range(count):
        built.insert(tables[number % 2], str(number), "x")
    built.flush()
    return polled(path)


class Walked(list[EventBatch]):
    """Parts that count how many of them are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[EventBatch]:
        for each in super().__iter__():
            self.looks += 1
            yield each

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)


def test_work_grows_as_the_parts_do_where_tables_alternate(tmp_path: Path) -> None:
    events = alternating(tmp_path, 200)
    events.parts = parts = Walked(events.parts)
    assert len(parts) == 200
    again = Events.of(events, events.end)
    assert again.parts == list(parts)  # the same ones, nothing is made anew
    assert [events[at].number for at in range(200)] == [event.number for event in again]
    assert parts.looks < 10 * len(parts)


def test_alternating_tables_travel_as_one_batch_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = alternating(tmp_path, 40)
    TaskCommitter(EngineOptions()).begin(events)  # numbers them
    sent: list[int] = []
    reduce = EventBatch.__reduce__

    def counted(batch: EventBatch) -> Any:
        sent.append(len(batch))
        return reduce(batch)

    monkeypatch.setattr(EventBatch, "__reduce__", counted)
    back = pickle.loads(pickle.dumps(events))
    assert sent == [20, 20]
    assert (back.end, back.generation) == (events.end, events.generation)
    assert [(e.number, e.version, e.table, e.after) for e in back] == [
        (e.number, e.version, e.table, e.after) for e in events
    ]
    few = Events.of([events[3], *events[10:20:3], events[39].replace(after=None)], events.end)
    assert [(e.number, e.after) for e in pickle.loads(pickle.dumps(few))] == [
        (e.number, e.after) for e in few
    ]


def test_changed_events_are_one_run_again(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    tables = [built.table(f"public.t{n}", COLUMNS, relation_id=n) for n in (1, 2)]
    for number in range(10):
        built.insert(tables[number // 5], str(number), "x")
    built.flush()
    events = polled(tmp_path)
    committer = TaskCommitter(EngineOptions())
    committer.begin(events)
    changed = [each.replace(after={"id": 0, "note": "y"}) for each in events]
    changed[3] = events[3]
    kept = [each for each in changed if each.number != 7]  # left out: no run goes over it
    made = Events.of(kept, events.end)
    assert [(str(s.table), rows.num_rows) for s, rows in made.runs()] == [
        ("public.t1", 5),
        ("public.t2", 2),
        ("public.t2", 2),
    ]
    notes = [row["note"] for _, rows in made.runs() for row in rows.column("after").to_pylist()]
    assert notes == [each.after["note"] for each in kept if each.after]
    committer.mark_processed(made)
    assert not committer.all_done
    committer.mark_processed(changed[7])
    assert committer.all_done
