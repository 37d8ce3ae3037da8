"""What the web page keeps and shows beside the overview: history, who did what, configuration."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tidelog.app.overview.build import overview
from tidelog.app.web import site
from tidelog.app.web import site as poller
from tidelog.app.web.routes import page_files
from tidelog.app.web.site import FROM_VARIABLE, HIDDEN, settings_of
from tidelog.config import parse_config
from tidelog.results import Overview
from tidelog.state.sqlite import SqliteState

T_S = 1_700_000_100  # a bucket begins here


def seen(
    at_s: float, records: int, *, lag_s: float | None = 0.0, output_s: float = 0.0, since: int = 1
) -> Overview:
    row = {
        "pipeline": "p", "output": "o", "offset": 0, "behind_records": 0, "lag_s": output_s,
        "noted_ms": 0, "state": "following",
    }  # fmt: skip
    at_ms = int(at_s * 1000)
    status: dict[str, Any] = {
        "leader": "h:1", "epoch": since, "since_ms": since, "updated_ms": at_ms, "outputs": [row],
        "capture": {"records": records}, "source": {"lag_s": lag_s},
    }  # fmt: skip
    return overview(status, at_ms)


def test_records_are_counted_between_looks_and_the_worst_lag_is_kept() -> None:
    found = poller.History()
    assert not found.add(seen(T_S, 100))
    assert not found.add(seen(T_S + 10, 150, lag_s=7.0, output_s=90.0))
    assert not found.add(seen(T_S + 20, 160, lag_s=None))
    assert found.add(seen(T_S + poller.BUCKET_S, 200))
    first = found.to_json()["day"][0]
    assert first == {
        "at_s": T_S, "records": 60, "over_s": 20.0, "lag_s": 7.0, "outputs": {"p/o": 90.0},
    }  # fmt: skip
    assert len(found.to_json()["recent"]) == 4


def test_a_new_leader_counts_from_zero() -> None:
    found = poller.History()
    found.add(seen(T_S, 1000))
    found.add(seen(T_S + 5, 10, since=2))
    found.add(seen(T_S + 10, 30, since=2))
    assert [point["records"] for point in found.to_json()["recent"]] == [0, 0, 20]


def test_one_status_is_counted_once() -> None:
    found = poller.History()
    for _ in range(3):
        found.add(seen(T_S, 1000))
    assert len(found.to_json()["recent"]) == 1


def test_a_day_survives_a_restart_and_no_more(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    try:
        before = poller.History()
        for number in range(poller.BUCKETS + 20):
            before.add(seen(T_S + number * poller.BUCKET_S, number))
        before.store(state)
        after = poller.History()
        after.load(state)
        day = after.to_json()["day"]
        assert len(day) == poller.BUCKETS
        assert day[-1]["at_s"] == T_S + (poller.BUCKETS + 18) * poller.BUCKET_S
    finally:
        state.close()


def test_a_history_of_another_version_is_read(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    try:
        rows = [{"at_s": T_S, "records": 7, "news": [1]}, {"when": 1}, {"at_s": T_S + 300}]
        state.put(poller.HISTORY_KEY, rows, None)
        found = poller.History()
        found.load(state)
        assert [(row["at_s"], row["records"]) for row in found.to_json()["day"]] == [
            (T_S, 7), (T_S + 300, 0),
        ]  # fmt: skip
    finally:
        state.close()


def test_what_became_of_an_action_is_noted(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    try:
        first, _ = (site.add_entry(state, name=name) for name in ("anna", "otto"))
        site.finish(state, first, site.Result.REFUSED)
        site.finish(state, "gone meanwhile", site.Result.DONE)
        found = [(row["name"], row.get("result")) for row in site.entries(state)]
        assert found == [("otto", None), ("anna", "refused")]
    finally:
        state.close()


def test_the_list_of_who_did_what_is_bounded_and_loses_nothing(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    try:

        def act(name: str) -> None:
            for number in range(10):
                site.add_entry(state, name=name, action="pause-snapshot", about=str(number))

        threads = [threading.Thread(target=act, args=(f"n{each}",)) for each in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = site.entries(state)
        assert {(row["name"], row["about"]) for row in rows} == {
            (f"n{each}", str(number)) for each in range(3) for number in range(10)
        }
        for _ in range(site.KEPT):
            site.add_entry(state, name="last")
        rows = site.entries(state)
        assert len(rows) == site.KEPT
        assert {row["name"] for row in rows} == {"last"}
    finally:
        state.close()


def test_the_configuration_is_shown_without_secrets(tmp_path: Path) -> None:
    text = """
source: {kind: postgres, url: 'postgresql://u:hunter2@h/shop', tables: ['public.*']}
log: {path: 's3://bucket/log', storage_options: {secret_access_key: hunter2, region: x}}
state: {url: 'sqlite:///state.db'}
control:
  rest: {token: hunter2-token, viewer_token: hunter2-viewer}
  alerts:
    - {kind: webhook, name: a, url: 'https://h/hunter2'}
    - {kind: command, name: b, command: [page, hunter2]}
    - {kind: webhook, name: c, url: 'https://h/x'}
pipeline: {conf: {spark.some.password: hunter2}}
outputs:
  - {kind: http, url: 'https://u:hunter2@h/x?key=hunter2', headers: {Authorization: hunter2}}
  - {kind: postgres, url: 'postgresql://u:hunter2@h/copy'}
  - kind: delta
    path: 's3://bucket/lake'
    steps:
      - {hash: [email], salt: hunter2}
      - {compute: {a: "f('https://hunter2@h/x', 'mysql://u:hunter2@h/y')"}}
      - {mask: {note: none}, tables: ['public.*']}
"""
    found = settings_of(parse_config(text, "test", tmp_path, {}))
    shown = {row["option"]: row["value"] for row in found}
    assert "hunter2" not in repr(shown)
    assert shown["source.url"] == "postgresql://u:***@h/shop"
    assert shown["source.tables"] == "public.*"
    assert shown["control.rest.token"] == HIDDEN
    assert shown["control.rest.viewer_token"] == HIDDEN
    assert shown["control.rest.metrics_token"] == "unset"
    assert shown["capture.flush_ms"] == "50ms"
    assert shown["outputs[2].steps[0].salt"] == HIDDEN
    assert shown["outputs[2].steps[2].salt"] == "unset"
    assert shown["outputs[2].steps[1].compute.a"] == "f('https://***@h/x', 'mysql://u:***@h/y')"


def test_what_came_from_a_variable_is_not_shown(tmp_path: Path) -> None:
    text = """
source: {kind: postgres, url: '${URL}', tables: ['public.*', '${TABLE}'], slot: 'slot_${NAME}'}
log: {path: 's3://${NAME}/log'}
control: {rest: {token: t0ken-of-it, host: '${HOST:-0.0.0.0}'}}
outputs:
  - {kind: delta, path: lake, steps: [{mask: {note: '${NAME}', other: stars}}]}
"""
    environ = {"URL": "postgresql://hunter2/hunter2", "TABLE": "hunter2.*", "NAME": "hunter2"}
    config = parse_config(text, "test", tmp_path, environ)
    shown = {row["option"]: row["value"] for row in settings_of(config)}
    assert "hunter2" not in repr(shown)
    assert shown["source.tables"] == f"public.*, {FROM_VARIABLE}"
    assert shown["source.slot"] == shown["control.rest.host"] == FROM_VARIABLE
    assert shown["outputs[0].steps[0].mask.other"] == "stars"
    again = {row["option"] for row in settings_of(config.model_copy(update={"dumps": []}))}
    assert again == shown.keys()
    copy = settings_of(config.model_copy(update={"dumps": []}))
    assert "hunter2" not in repr(copy)  # as `database_config` makes them


def test_no_file_of_the_page_has_scripts_or_styles_inside() -> None:
    """The policy of its headers forbids them, and what reads texts as markup."""
    files = page_files()
    assert {"index.html", "page.css", "main.js", "failure-modes.md"} <= files.keys()
    page = files["index.html"].body.decode()
    assert "style=" not in page
    assert "<script>" not in page
    assert "http:" not in page
    for name, file in files.items():
        if name.endswith(".js"):
            text = file.body.decode()
            for forbidden in ("innerHTML", "insertAdjacentHTML", "eval(", "document.write"):
                assert forbidden not in text, name
