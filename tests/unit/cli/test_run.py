"""`tidelog run`: what ends it, and what it does before it ends."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from tidelog.app.pipeline import run as run_module
from tidelog.config import parse_config
from tidelog.errors import IncompleteDumpError, OutputError, UsageError

CONFIG = {
    "source": {"kind": "postgres", "url": "postgresql://nowhere/shop", "tables": ["public.*"]},
    "log": {"path": "log"},
    "state": {"url": "sqlite:///state.db"},
    "outputs": [{"kind": "files", "path": "files"}],
}


def test_what_was_captured_is_delivered_before_it_says_what_the_dump_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    lacking = IncompleteDumpError("the initial dump lacks public.keyless")

    def capture(*_config: Any, **_given: Any) -> None:
        calls.append("captured")
        raise lacking

    def pipeline(
        _config: Any, *, stop_event: threading.Event, once: bool = False, **_given: Any
    ) -> None:
        if once:
            calls.append("delivered")
        else:
            assert stop_event.wait(30)

    monkeypatch.setattr(run_module, "run_capture", capture)
    monkeypatch.setattr(run_module, "run_pipeline", pipeline)
    monkeypatch.setattr(run_module, "check_spark", lambda _config: False)
    config = parse_config(json.dumps(CONFIG), "configuration", tmp_path, {})
    with pytest.raises(IncompleteDumpError) as raised:
        run_module.run_capture_and_pipeline(config, stop_event=threading.Event())
    assert raised.value is lacking
    assert calls == ["captured", "delivered"]


@pytest.mark.parametrize("alone", [False, True])
def test_what_the_dump_lacks_is_said_also_while_the_pipeline_is_paused(
    alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = UsageError("pipeline main is paused by ann: `tidelog resume` resumes it")

    def capture(*_config: Any, **_given: Any) -> None:
        if not alone:
            raise IncompleteDumpError("the initial dump lacks public.keyless")

    def pipeline(
        _config: Any, *, stop_event: threading.Event, once: bool = False, **_given: Any
    ) -> None:
        if once:
            raise paused
        assert stop_event.wait(30)

    monkeypatch.setattr(run_module, "run_capture", capture)
    monkeypatch.setattr(run_module, "run_pipeline", pipeline)
    monkeypatch.setattr(run_module, "check_spark", lambda _config: False)
    config = parse_config(json.dumps(CONFIG), "configuration", tmp_path, {})
    if alone:
        with pytest.raises(UsageError, match="is paused by ann"):
            run_module.run_capture_and_pipeline(config, stop_event=threading.Event())
        return
    with pytest.raises(IncompleteDumpError, match=r"lacks public\.keyless.* paused by ann"):
        run_module.run_capture_and_pipeline(config, stop_event=threading.Event())


def test_what_the_dump_lacks_is_logged_where_the_pipeline_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def capture(*_config: Any, stop_event: threading.Event, **_given: Any) -> None:
        assert stop_event.wait(30)
        raise IncompleteDumpError("the initial dump lacks public.keyless")

    def pipeline(*_config: Any, **_given: Any) -> None:
        raise OutputError("the disk is full")

    monkeypatch.setattr(run_module, "run_capture", capture)
    monkeypatch.setattr(run_module, "run_pipeline", pipeline)
    monkeypatch.setattr(run_module, "check_spark", lambda _config: False)
    config = parse_config(json.dumps(CONFIG), "configuration", tmp_path, {})
    with caplog.at_level(logging.WARNING), pytest.raises(OutputError):
        run_module.run_capture_and_pipeline(config, stop_event=threading.Event())
    assert "lacks public.keyless" in caplog.text
