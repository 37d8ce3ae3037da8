"""`tidelog watch`: what a status document looks like."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.screens import FAULTS, FOLDER, Feed, pictures
from tests.support.screens import status as many

from tidelog import app
from tidelog.app.overview.build import lanes_of
from tidelog.cli.live import View
from tidelog.cli.screen import LEAST, lane_bar, screen
from tidelog.cli.watch import KeyCommands, show_status
from tidelog.config import parse_config
from tidelog.control.commands import Command, PauseDump, SetDumpOptions
from tidelog.results import ChunkSpan

NOW_MS = 1_700_000_010_000
T = "public.orders"


def status(**changes: Any) -> dict[str, Any]:
    """A status as capture publishes it while a dump runs."""
    table = {
        "table": T, "status": "running", "reason": "", "where": None, "key_count": 0,
        "keys_read": 0, "keys_absent": 0, "chunks": 40, "chunks_voided": 1, "rows_read": 400_000,
        "rows_superseded": 1234, "estimated_rows": 1_000_000, "failed_ranges": 0,
    }  # fmt: skip
    document: dict[str, Any] = {
        "leader": "db-host:77",
        "epoch": 3,
        "updated_ms": NOW_MS,
        "lag_bytes": 3 << 20,
        "capture": {
            "position": 123_456, "records": 50_000, "segments": 77, "next_offset": 9_876_543,
            "buffer_bytes": 1 << 20, "open_windows": 2, "retained_bytes": 4096, "held": False,
        },
        "dump_options": {"chunk_rows": 10_000, "parallelism": 4},
        "readers_busy": 2,
        "throttle": {
            "settings": {
                "delay_ms": 0, "rows_per_second": 0, "max_lag_bytes": 256 << 20,
                "max_replica_lag_ms": 10_000, "max_select_ms": 2_000, "max_commit_delay_ms": 5,
            },
            "observed": {
                "lag_bytes": 3 << 20, "replica_lag_ms": None, "select_ms": 120,
                "commit_delay_ms": 1.3,
            },
            "decision": {
                "limited_by": None, "parallelism_share": 1.0, "pause_ms": 0, "reason": "",
            },
        },
        "windows": [
            {"chunk": "cccccccc", "table": T, "state": "reading", "age_ms": 500},
            {"chunk": "dddddddd", "table": T, "state": "read", "age_ms": 1500},
        ],
        "events": [
            event("aaaaaaaa", "begun", 4000),
            event("aaaaaaaa", "read", 3000, rows=10_000),
            event("aaaaaaaa", "durable", 2000, rows=10_000, superseded=321),
            event("bbbbbbbb", "begun", 2500),
            event("bbbbbbbb", "voided", 1000),
            event("dddddddd", "begun", 1500),
            event("dddddddd", "read", 700, rows=9000),
            event("cccccccc", "begun", 500),
        ],
        "dumps": [{"dump_id": "d1", "status": "running", "mode": "incremental", "tables": [table]}],
    }  # fmt: skip
    return {**document, **changes}


def event(chunk: str, kind: str, before_ms: int, **numbers: int) -> dict[str, Any]:
    return {"at_ms": NOW_MS - before_ms, "chunk": chunk, "table": T, "event": kind, **numbers}


def picture(
    history: list[dict[str, Any]],
    view: View | None = None,
    *,
    now_ms: int = NOW_MS,
    height: int = 40,
) -> str:
    return "\n".join(line.plain for line in screen(history, view or View(), now_ms, 120, height))


# ---------------------------------------------------------------- the picture


def test_a_picture_shows_how_late_dumps_readers_and_windows_in_this_order() -> None:
    text = picture([status()], View(windows=True))
    expected = (
        "All is well", "not asked yet", "d1 is running: 0 of 1 tables, 400,000 rows of about",
        "40%", "public.orders", "db-host:77 leads", "2 busy of 4; chunks of 10,000 rows",
        "log lag", "3MiB/256MiB", "120ms/2s", "1ms/5ms", "−321", "waits for high",
    )  # fmt: skip
    places = [text.find(each) for each in expected]
    assert -1 not in places, text
    assert places == sorted(places), text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_windows_are_shown_to_those_who_ask() -> None:
    assert "waits for high" not in picture([status()])


def test_the_throttle_s_decision_is_reported_with_its_reason() -> None:
    limited = status()
    limited["throttle"]["decision"] = {
        "limited_by": "replica_lag", "parallelism_share": 0.25, "pause_ms": 1600,
        "pace": 0.5, "reason": "a replica of the source is further behind than max_replica_lag_ms",
    }  # fmt: skip
    text = picture([limited])
    assert "slowed down: a replica of the source is further behind" in text
    assert "25% of the readers" in text
    assert "a pause of 1.6s" in text
    assert "SELECTs work 50% of the time" in text
    assert "2 busy of 1 (parallelism 4)" in text, text


def test_rates_come_from_the_documents_before() -> None:
    history: list[dict[str, Any]] = [{"leader": None, "capture": None}]  # before the first
    for second in range(6):
        document = status(updated_ms=NOW_MS + second * 1000)
        document["capture"] = {**document["capture"], "records": 1000 * second}
        table = {**document["dumps"][0]["tables"][0], "rows_read": 100_000 + 20_000 * second}
        document["dumps"] = [{**document["dumps"][0], "tables": [table]}]
        history.append(document)
    text = picture(history, now_ms=NOW_MS + 5000)
    assert "5,000 records, 1,000 a second" in text
    assert re.search(r"20,000/s +≈40s", text), text


def test_what_a_document_lacks_is_left_out() -> None:
    old: dict[str, Any] = {
        "leader": None,
        "capture": {"position": 5},
        "updated_ms": NOW_MS,
        "dumps": [],
    }
    for document in (old, {"leader": None, "capture": None}, {"updated_ms": 1}):
        assert "capture" in picture([document]).lower()


def test_an_old_status_says_how_old_it_is() -> None:
    assert "reported 40 s ago" in picture([status()], now_ms=NOW_MS + 40_000)


def test_names_are_not_taken_for_markup_and_do_nothing_to_a_terminal() -> None:
    document = status()
    document["dumps"][0]["tables"][0]["table"] = "public.[red]\x1b[2J"
    document["events"] = [{**event("cccccccc", "begun", 5), "table": "public.[red]"}]
    text = picture([document], View(windows=True))
    assert text.count("public.[red]") == 2, text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"where": "(condition)"}, "?"),
        ({"key_count": 200, "keys_read": 50}, "25%"),
        ({"rows_read": 5_000_000}, "99%"),
        ({"status": "done"}, "1 done"),
        ({"failed_ranges": 2}, "2 key ranges could not be read"),
        ({"status": "failed", "reason": "it has no primary key"}, "it has no primary key"),
        ({"keys_absent": 7}, "7 keys were not in the table"),
    ],
)
def test_progress_of_a_table(changes: dict[str, Any], expected: str) -> None:
    document = status()
    document["dumps"][0]["tables"][0].update(changes)
    assert expected in picture([document])


def test_finished_tables_are_a_number_until_somebody_scrolls_to_them() -> None:
    document = status()
    running = document["dumps"][0]["tables"][0]
    ended = [{**running, "table": f"public.e{at}", "status": "done"} for at in range(14)]
    document["dumps"][0]["tables"] = [*ended, running]
    assert "1 running, 14 done" in picture([document])
    assert "public.e3" not in picture([document])
    assert "public.e3" in picture([document], View(scroll=1), height=60)
    far = View(scroll=1000)
    assert "public.e13" in picture([document], far)
    assert far.scroll == 14


def test_arrows_choose_the_dump_that_is_shown_with_its_tables() -> None:
    document = status()
    other = {**document["dumps"][0]["tables"][0], "table": "public.other"}
    document["dumps"].append({"dump_id": "d2", "status": "paused", "tables": [other]})
    assert "public.other" not in picture([document])
    text = picture([document], View(dump=1))
    assert "public.other" in text
    assert "paused" in text
    assert "d1 is running" in text


def test_a_process_that_begins_or_stands_by_says_so() -> None:
    begins = View(starting=True, here={"pipeline": "pipeline starts: Spark"})
    text = picture([{"capture": None, "configured_outputs": ["shop/lake"]}], begins)
    assert text.startswith("· Starting.")
    assert "Nothing was ever delivered" not in text
    assert "pipeline starts: Spark" in text


def test_keys_that_change_something_ask_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Command] = []
    text = "source: {kind: postgres, url: 'postgresql://h/d'}\nlog: {path: log}\n"
    commands = KeyCommands(parse_config(text, "test", tmp_path, {}))
    monkeypatch.setattr(commands, "_send", lambda _view, command, _done: sent.append(command))
    view = View()

    def press(key: str) -> str:
        if not view.press(key):
            commands.press(key, view, status())
        return view.question

    assert press("p").startswith("Pause dump d1?")
    assert "Pause dump d1?" in picture([status()], view)
    for other in ("n", "up", "w"):  # also those that the view knows
        press("p")
        assert press(other) == ""
        press("y")
    assert press("+").startswith("Set parallelism from 4 to 8?")
    assert press("-").startswith("Set parallelism from 4 to 2?")
    assert sent == []
    assert press("y") == ""
    press("y")
    assert sent == [SetDumpOptions(parallelism=2)]
    press("p")
    press("y")
    assert sent[1:] == [PauseDump(dump_id="d1")]


def test_the_foot_says_how_to_leave() -> None:
    assert picture([status()]).splitlines()[-1].startswith("q quits")
    assert picture([status()], View(quits=False)).splitlines()[-1].startswith("Ctrl-C ends")


def test_drops_and_batches_have_their_lines() -> None:
    drop = {
        "table": "public.orders", "kind": "insert", "at_ms": NOW_MS - 900_000, "until_ms": None,
        "before_per_min": 340.0, "then_per_min": 0.0,
    }  # fmt: skip
    told = {
        "pipeline": "shop", "output": "lake", "offset": 9, "behind_records": 0, "lag_s": 0.0,
        "noted_ms": NOW_MS, "state": "following", "committed_ms": NOW_MS, "batch_s": 2.0,
        "batch_records": 500, "records_per_s": 250.0, "rejected": 3, "rejected_ms": NOW_MS,
    }  # fmt: skip
    text = picture([{**status(), "outputs": [told], "drops": [drop]}])
    assert "activity public.orders: inserts fell from 340 to 0 a minute at" in text
    assert "shop/lake is up to date; 3 in dead letters" in text
    assert "500 records in 2s, 250 a second" in text


@pytest.mark.parametrize("size", [(1, 1), (20, 5), (40, 8), (80, 24), (300, 100)])
def test_no_size_breaks_the_picture(size: tuple[int, int]) -> None:
    for faults in ({}, FAULTS):
        for view in (View(), View(windows=True), View(words=True)):
            lines = screen([many(500, **faults)], view, NOW_MS, *size)
            assert len(lines) <= max(size[1], LEAST[1])
            assert not any("……" in line.plain for line in lines)


@pytest.mark.parametrize(
    ("name", "lines"), list(pictures()), ids=lambda each: each if isinstance(each, str) else ""
)
def test_pictures_are_as_they_were(name: str, lines: list[str]) -> None:
    """A wanted change is written down by `python -m tests.support.screens`."""
    assert "\n".join(lines) + "\n" == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    columns, rows = map(int, name.split("-")[0].split("x"))
    assert len(lines) <= rows
    assert max(map(len, lines[:-1])) <= columns  # of the keys as many as there is room for


def test_every_kept_picture_is_one_that_is_drawn() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == {name for name, _ in pictures()}


# ---------------------------------------------------------------- windows


def test_windows_are_lanes_from_low_to_high() -> None:
    lanes = {lane.chunk: lane for lane in lanes_of(status())}
    assert list(lanes) == ["aaaaaaaa", "bbbbbbbb", "dddddddd", "cccccccc"]
    assert (lanes["aaaaaaaa"].end, lanes["aaaaaaaa"].superseded) == ("durable", 321)
    assert lanes["bbbbbbbb"].end == "voided"
    assert lanes["dddddddd"].ended_ms is None
    assert lanes["cccccccc"].read_ms is None


def test_a_window_that_is_neither_open_nor_ended_is_not_shown() -> None:
    assert "cccccccc" not in {lane.chunk for lane in lanes_of(status(windows=[]))}


def test_a_window_older_than_the_events_is_shown() -> None:
    assert [lane.chunk for lane in lanes_of(status(events=[]))] == ["dddddddd", "cccccccc"]


@pytest.mark.parametrize(
    ("lane", "expected"),
    [
        (ChunkSpan("a", T, 0, 400, 1000, "durable"), "[━━━╌╌╌╌╌]"),
        (ChunkSpan("a", T, 500), "    [━━━━▶"),
        (ChunkSpan("a", T, 0, None, 500, "voided"), "[━━━✗     "),
        (ChunkSpan("a", T, -9000, 400, 1000, "durable"), "━━━━╌╌╌╌╌]"),
        (ChunkSpan("a", T, 1000, 1000, 1000, "durable"), "         ]"),
    ],
)
def test_a_bar(lane: ChunkSpan, expected: str) -> None:
    drawn = lane_bar(lane, 1000, 1000, 10).plain
    assert drawn == expected


def test_json_gives_each_document_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = threading.Event()
    documents = [status(), status(), status(updated_ms=NOW_MS + 1000)]

    class Documents(Feed):
        poll_interval_s = 0.01

        def latest(self, *, last: bool = False) -> dict[str, Any]:
            document = documents.pop(0)
            if not documents:
                stop.set()
            return document

    monkeypatch.setattr(app, "StatusFeed", Documents)
    text = "source: {kind: postgres, url: 'postgresql://h/d'}\nlog: {path: log}\n"
    show_status(parse_config(text, "test", tmp_path, {}), "tidelog.yaml", stop, as_json=True)
    printed = [json.loads(line)["updated_ms"] for line in capsys.readouterr().out.splitlines()]
    assert printed == [NOW_MS, NOW_MS + 1000]
