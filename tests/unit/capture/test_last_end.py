"""The status reports the error that ended capture or a pipeline, until one leads again or ends
normally.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tidelog import app
from tidelog.app.base.last_results import CAPTURE, PIPELINE, last_end, storing_end
from tidelog.app.overview.reader import StatusReader
from tidelog.config import Config, parse_config
from tidelog.errors import ConfigError, UsageError
from tidelog.state.opening import open_state


def configured(directory: Path, url: str = "sqlite:///state.db") -> Config:
    text = (
        "source: {kind: postgres, url: 'postgresql://u:hush@127.0.0.1:1/d'}\n"
        f"log: {{path: ./file/log}}\nstate: {{url: '{url}'}}\n"
        "outputs: [{kind: delta, path: ./lake}]\npipeline: {name: shop}\n"
    )
    return parse_config(text, "here", directory, {})


def ended(config: Config) -> Any:
    with StatusReader(config) as reader:
        return reader.from_state()["ended"]


@pytest.mark.parametrize("work", [app.run_capture, app.run_pipeline])
def test_a_process_that_ends_with_an_error_leaves_the_reason(
    tmp_path: Path, work: Callable[..., None]
) -> None:
    config = configured(tmp_path)
    (tmp_path / "file").touch()
    with closing(open_state(config.state.location)) as state:
        state.put("any", {}, None)
    assert ended(config) == {"capture": None, "pipelines": {}}
    with pytest.raises(UsageError, match="no file can be created"):
        work(config, stop_event=threading.Event())
    found = ended(config)
    end = found["capture"] if work is app.run_capture else found["pipelines"]["shop"]
    assert f"no file can be created at {tmp_path}/file/log" in end["reason"]


def test_a_state_store_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    config = configured(tmp_path)
    with pytest.raises(ConfigError), storing_end(config, CAPTURE):
        raise ConfigError("wrong")
    assert list(tmp_path.iterdir()) == []


def test_an_end_is_of_no_interest_once_another_process_has_led(tmp_path: Path) -> None:
    config = configured(tmp_path)
    with closing(open_state(config.state.location)) as state:
        state.put("any", {}, None)
        with pytest.raises(ValueError, match="secret"), storing_end(config, CAPTURE):
            raise ValueError("a secret of a row")
        end = last_end(state, CAPTURE, holder=None, since_ms=0)
        assert end is not None
        assert end["reason"] == "an internal error (ValueError)"
        later = end["at_ms"] + 1
        assert last_end(state, CAPTURE, holder="another", since_ms=later) is None
        assert last_end(state, CAPTURE, holder=end["holder"], since_ms=later) == end


def test_an_end_without_an_error_removes_that_of_its_part_alone(tmp_path: Path) -> None:
    """As of a leader that is stopped: another process may have failed to start meanwhile."""
    config = configured(tmp_path)
    with closing(open_state(config.state.location)) as state:
        state.put("any", {}, None)
    for part in (CAPTURE, PIPELINE + "shop"):
        with pytest.raises(ConfigError), storing_end(config, part):
            raise ConfigError("wrong")
    with storing_end(config, PIPELINE + "shop"):
        pass
    found = ended(config)
    assert found["pipelines"] == {}
    assert found["capture"]["reason"] == "wrong"
    stop = threading.Event()
    stop.set()
    app.run_capture(config, stop_event=stop)
    assert ended(config) == {"capture": None, "pipelines": {}}
