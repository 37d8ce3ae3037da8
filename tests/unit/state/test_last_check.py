"""The stored result of the last check: bounded, without secrets, and only in a state store that
exists already.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tidelog.app.base import last_results
from tidelog.app.base.last_results import check_summary, store_check_result
from tidelog.app.capture import maintenance
from tidelog.app.overview.reader import StatusReader
from tidelog.app.web import site
from tidelog.app.web.site import Checks
from tidelog.capture.session.start import STATUS_KEY
from tidelog.config import Config, parse_config
from tidelog.errors import SourceError, StateError, UsageError
from tidelog.results import CheckFinding
from tidelog.sources.findings import Finding
from tidelog.state.opening import open_state


def finding(level: str, message: str = "m", fix: str = "f", check: str = "c") -> CheckFinding:
    return CheckFinding(check, level, message, fix)


def configured(directory: Path, *, url: str = "postgresql://h/shop", tables: str = "*.*") -> Config:
    text = f"""
source: {{kind: postgres, url: '{url}', tables: ['{tables}']}}
log: {{path: log}}
state: {{url: 'sqlite:///state.db'}}
"""
    return parse_config(text, "test", directory, {})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configured(tmp_path)


def kept(config: Config) -> dict[str, Any] | None:
    state = open_state(config.state.location)
    try:
        return last_results.stored_check_summary(state, config)
    finally:
        state.close()


def test_captures_own_check_is_shown_until_another_one_is_stored(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page said that nothing was checked yet, beside an error that capture found."""
    for name in ("BEGIN_AFTER_S", "AGAIN_AFTER_S"):
        monkeypatch.setattr(maintenance, name, 0.0)
    findings = [Finding("version", "ok", "18"), Finding("wal_level", "error", "is replica", "SQL")]
    check = maintenance.SourceCheck(lambda: findings)
    check.begin()
    deadline = time.monotonic() + 10
    while not check.summary()["check_errors"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    check.end()
    with closing(open_state(config.state.location)) as state:
        state.put(STATUS_KEY, check.summary(), None)
    with StatusReader(config) as reader:
        found = reader.results()["checked"]
        assert (found["by"], found["counts"]) == ("capture", {"error": 1, "warning": 0, "ok": 1})
        assert [each["check"] for each in found["findings"]] == ["wal_level"]
        store_check_result(config, [finding("ok")])
        assert "by" not in reader.results()["checked"]


def test_the_worst_findings_are_kept_and_counted() -> None:
    many = [finding("ok")] * 500 + [finding("warning", "x" * 5000), finding("error")]
    found = check_summary(many)
    assert found["counts"] == {"error": 1, "warning": 1, "ok": 500}
    assert [each["level"] for each in found["findings"][:3]] == ["error", "warning", "ok"]
    assert len(found["findings"]) == last_results.FINDINGS_KEPT
    assert len(found["findings"][1]["message"]) == last_results.TEXT_CHARACTERS


def test_what_is_kept_holds_no_passwords_whoever_checked(config: Config) -> None:
    far = "x" * (last_results.TEXT_CHARACTERS - 30)  # the cut comes after the password's beginning
    message = f"{far} http://ann:hunter2{'2' * 50}@proxy fails"
    fix = "password=hunter2 host=h; postgresql://u:hunter2@h/shop"
    kept(config)  # which makes the store
    store_check_result(config, [finding("error", message, fix)])
    found = kept(config)
    assert found is not None
    assert "hunter" not in str(found)
    assert "proxy fails" in str(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_check_by_root_leaves_no_files_of_root(config: Config, tmp_path: Path) -> None:
    kept(config)
    for place in (tmp_path, *tmp_path.iterdir()):
        os.chown(place, 65534, 65534)
    with closing(open_state(config.state.location)) as state:  # then SQLite's other files stay
        store_check_result(config, [finding("ok")])
        assert last_results.stored_check_summary(state, config) is not None
        assert {each.stat().st_uid for each in tmp_path.iterdir()} == {65534}
        assert len(list(tmp_path.iterdir())) > 1
    assert {each.stat().st_uid for each in tmp_path.iterdir()} == {65534}


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), StateError("away")])
def test_a_store_that_is_not_theirs_to_look_at_fails_no_check(
    config: Config, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    told: list[object] = []

    def refuse(_place: object) -> bool:
        raise error

    monkeypatch.setattr(last_results, "state_exists", refuse)
    monkeypatch.setattr(threading, "excepthook", told.append)
    store_check_result(config, [finding("ok")])
    assert told == []


def test_a_check_makes_no_state_store(config: Config, tmp_path: Path) -> None:
    store_check_result(config, [finding("ok")])
    assert list(tmp_path.iterdir()) == []
    assert kept(config) is None  # which made it
    store_check_result(config, [finding("error")])
    found = kept(config)
    assert found is not None
    assert found["counts"]["error"] == 1


def test_a_check_of_another_configuration_is_not_shown(config: Config, tmp_path: Path) -> None:
    kept(config)
    store_check_result(config, [finding("ok")])
    for mistyped in (
        configured(tmp_path, tables="shop.*"),
        configured(tmp_path, url="postgresql://h/shap"),
    ):
        store_check_result(mistyped, [finding("error")])
        assert (kept(mistyped) or {})["counts"]["error"] == 1
    assert (kept(config) or {})["counts"] == {"error": 0, "warning": 0, "ok": 1}
    # With another password it is the same configuration, if it works.
    assert last_results.check_key(configured(tmp_path, url="postgresql://u:a@h/shop")) == (
        last_results.check_key(configured(tmp_path, url="postgresql://u:b@h/shop"))
    )


def test_a_check_that_can_not_connect_is_not_stored(config: Config) -> None:
    kept(config)
    store_check_result(config, [finding("error", "no password", check="connection")])
    assert kept(config) is None


def test_results_of_the_last_configurations_alone_are_kept(config: Config, tmp_path: Path) -> None:
    kept(config)
    for number in range(last_results.CHECKS_KEPT + 3):
        store_check_result(configured(tmp_path, tables=f"t{number}.*"), [finding("ok")])
    with closing(open_state(config.state.location)) as state:
        assert len(state.keys(last_results.CHECK_PREFIX)) == last_results.CHECKS_KEPT


def wait_for_end(running: Checks) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while (found := running.latest(None))["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_one_check_runs_at_a_time_and_its_secrets_stay_hidden(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def check(_config: Config) -> list[CheckFinding]:
        assert go_on.wait(30)
        return [finding("error", "postgresql://u:hunter2@h/shop fails")]

    monkeypatch.setattr(site, "check", check)
    running = Checks(config)
    running.begin()
    assert running.latest(None)["running"]
    with pytest.raises(UsageError, match="is running already"):
        running.begin()
    go_on.set()
    found = wait_for_end(running)
    assert "hunter2" not in str(found)
    assert found["found"]["counts"]["error"] == 1
    newer = {**found["found"], "at_ms": found["found"]["at_ms"] + 1, "counts": {}}
    assert running.latest(newer)["found"] == newer  # of another process


@pytest.mark.parametrize(
    ("error", "told"), [(SourceError("it is away"), "it is away"), (KeyError("v"), "KeyError")]
)
def test_a_check_that_fails_is_reported_and_can_be_begun_again(
    config: Config, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def check(_config: Config) -> list[CheckFinding]:
        raise error

    monkeypatch.setattr(site, "check", check)
    running = Checks(config)
    running.begin()
    assert wait_for_end(running) == {"running": False, "trouble": told, "found": None}
    running.begin()


def test_a_check_whose_thread_can_not_be_started_keeps_none_from_being_begun(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(site, "check", lambda _config: [finding("ok")])
    running = Checks(config)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(UsageError, match="can't start a thread"):
            running.begin()
    assert not running.latest(None)["running"]
    running.begin()
    assert wait_for_end(running)["found"]["counts"]["ok"] == 1
