"""The demo's story: on a terminal, as plain lines and as JSON; and the counts that it shows."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.demo_documents import ENDED, KILLED, REPORT, RUNNING

from tidelog.cli.demo import open_story, story_screen
from tidelog.demo.play import DeltaRows, Story
from tidelog.system.download_progress import Download


def screen(document: dict[str, Any], *, report: dict[str, Any] | None = None) -> list[str]:
    return [line.plain.rstrip() for line in story_screen(document, 80, 23, report)]


@pytest.mark.parametrize(("document", "report"), [(RUNNING, None), (KILLED, None), (ENDED, REPORT)])
def test_each_picture_fits_a_small_terminal(
    document: dict[str, Any], report: dict[str, Any] | None
) -> None:
    lines = screen(document, report=report)
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80


def test_source_and_lake_stand_side_by_side_while_it_runs() -> None:
    assert screen(RUNNING)[:12] == [
        "demo     PostgreSQL → event log → Delta Lake                               00:19",
        "         rows       PostgreSQL  Delta Lake",
        "         customers      50,000      50,000  ████████████████████",
        "         products       10,000      10,000  ████████████████████",
        "         orders        103,110      41,216  ███████░░░░░░░░░░░░░",
        "         order_items   148,909           0  ░░░░░░░░░░░░░░░░░░░░",
        "now      capture reads the log while it dumps all tables",
        "source   1,618 transactions were committed",
        "capture  process 4711 leads; 5,310 records, 640 a second",
        "lag      ▁▁▁▃▅█▁▁ 200ms from source to event log",
        "dump     ███████░░░░░░░░░░░░░  37% of initial: 115,000 rows, 17 superseded",
        "lake     1.25s, 3,400 records behind",
    ]


def test_the_kill_is_seen_and_reported() -> None:
    lines = screen(KILLED)
    assert "capture  process 4711 is dead" in lines
    assert lines[-2:] == [
        "✗ 00:20  kill -9 of capture, process 4711, during the dump: 115,000 rows (38%)",
        "         are durable in the event log.",
    ]


def test_at_the_end_there_is_a_verdict_on_each_table_and_the_whole_story() -> None:
    lines = screen(ENDED, report=REPORT)
    assert "         orders        103,110     103,110  ✓ equal, 103,110 rows compared" in lines
    assert not any(line.startswith(("now", "capture", "dump")) for line in lines)
    assert sum(line[:1] in "✓·✗" for line in lines if line) == len(REPORT["story"])
    unequal = [{**REPORT["tables"][2], "equal": False, "missing": 3}, *REPORT["tables"][3:]]
    lines = screen(ENDED, report={**REPORT, "tables": unequal})
    assert any("✗ 3 missing, 0 surplus, 0 different" in line for line in lines)


def test_the_story_begins_later_where_the_terminal_is_smaller() -> None:
    lines = [line.plain for line in story_screen({**ENDED, "tables": None}, 80, 12)]
    assert lines[-1].startswith("✓ 01:28  4 tables")
    assert len(lines) == 12


def test_what_is_fetched_has_a_bar() -> None:
    fetching = {"what": "Delta's jars", "come": 4 << 20, "size": 16 << 20, "done": False}
    lines = screen({**RUNNING, "fetching": fetching})
    assert "now      fetches Delta's jars: █████░░░░░░░░░░░░░░░ 4MiB of 16MiB" in lines


def test_each_moment_is_a_line_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fetching = {"what": "Delta's jars", "come": 0, "size": 16 << 20, "done": False}
    with open_story(as_json=False) as shown:
        for told in ({**RUNNING, "fetching": fetching, "story": []}, RUNNING, RUNNING, KILLED):
            shown.update(told)
    shown.end(REPORT)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "demo: fetches Delta's jars, 16MiB"
    assert "demo: 00:02 PostgreSQL runs, with its own data directory." in lines
    assert sum("kill -9" in line for line in lines) == 1
    assert lines[-2:] == [
        "demo: public.order_items: equal, 148,909 rows compared",
        "demo: 4 tables, 312,019 rows compared: every table equals its Delta copy. It took 88.7 s.",
    ]


def test_json_has_what_is_new_and_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    with open_story(as_json=True) as shown:
        for told in (RUNNING, RUNNING, KILLED):
            shown.update(told)
    shown.end(REPORT)
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert documents == [RUNNING, KILLED, REPORT]


def test_the_last_picture_stays_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with open_story(as_json=False) as shown:
        shown.update(ENDED)
    sys.stdout.truncate(0)
    shown.end(REPORT)
    text = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert "kill -9 of capture, process 4711" in text
    assert text.count("equal, ") == 4


def test_the_story_is_reported_whole_each_time() -> None:
    told: list[dict[str, Any]] = []
    story = Story("MySQL", 300, told.append)
    story.set_step("MySQL starts")
    story.set_download(Download("MySQL's server", 10, 40, False))
    story.set_download(Download("MySQL's server", 40, 40, True))
    story.add_event("ok", "MySQL runs.")
    story.set_row_counts(dict.fromkeys(("customers", "products", "orders", "order_items"), 5), {})
    story.set_capture("leads", 7, 1.5, 100)
    table = {"table": "shop.orders", "rows_read": 4, "rows_superseded": 1}
    dump = {"dump_id": "initial", "status": "running", "tables": [table, table]}
    story.set_status({"dumps": [dump], "updated_ms": 1, "leader": "a:7"})
    story.publish(transactions=3)
    assert [each["step"] for each in told[:1]] == ["MySQL starts"]
    assert told[1]["fetching"]["share"] == 0.25
    assert "fetching" not in told[2]
    last = told[-1]
    assert [moment["text"] for moment in last["story"]] == ["MySQL runs."]
    assert last["dump"] == {
        "dump_id": "initial", "status": "running", "rows": 8, "of_rows": 20, "superseded": 2,
    }  # fmt: skip
    assert last["lags"] == [1.5]
    assert screen(last)


def commit(log: Path, version: int, *actions: dict[str, Any]) -> None:
    log.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(action) for action in actions]
    (log / f"{version:020}.json").write_text("\n".join(lines) + "\n")


def added(path: str, rows: int, gone: int = 0) -> dict[str, Any]:
    vector = {"deletionVector": {"cardinality": gone}} if gone else {}
    return {"add": {"path": path, "stats": json.dumps({"numRecords": rows}), **vector}}


def test_rows_of_a_delta_table_by_its_log(tmp_path: Path) -> None:
    log = tmp_path / "orders" / "_delta_log"
    counted = DeltaRows(tmp_path / "orders")
    assert counted.count() == 0
    commit(log, 0, {"metaData": {}}, added("a", 10), added("b", 5))
    assert counted.count() == 15
    commit(log, 1, added("a", 10, gone=3), {"remove": {"path": "a"}})
    commit(log, 2, {"remove": {"path": "b"}}, added("c", 7))
    assert counted.count() == 14
    assert counted.count() == 14
