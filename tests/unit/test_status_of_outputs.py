"""What `tidelog status` says of outputs: how far each is, and what stopped it."""

from __future__ import annotations

from pathlib import Path

from tests.support.build_log import BuiltLog

from tidelog.app.client import status
from tidelog.capture.session import STATUS_KEY
from tidelog.config import load_config
from tidelog.eventlog.consumers import Consumers, Stopped
from tidelog.state.sqlite import SqliteState


def test_an_output_that_stopped_is_in_the_status(tmp_path: Path) -> None:
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://localhost/shop'}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
        "outputs: [{kind: delta, path: lake}, {kind: files, path: f}]\n"
    )
    config = load_config(file)
    built = BuiltLog(tmp_path / "log")
    built.insert(built.table("public.t", {"id": "int64"}), "1")
    end = built.flush().next
    state = SqliteState(config.state.url)
    state.put(STATUS_KEY, {"updated_ms": 0}, None)
    state.close()
    stopped = {"files": Stopped("OutputRefusedError", "f can't be written", 77)}
    Consumers(built.log.storage).register("pipeline", 0, {"delta": end, "files": 0}, {}, stopped)
    found = status(config)
    rows = found["outputs"]
    noted = {row.pop("noted_ms") for row in rows}
    assert len(noted) == 1
    assert rows[1].pop("lag_s") > 86_400  # the record says that it is of long ago
    assert rows == [
        {
            "pipeline": "pipeline", "output": "delta", "offset": end, "behind_records": 0,
            "lag_s": 0.0, "state": "following",
        },
        {
            "pipeline": "pipeline", "output": "files", "offset": 0, "behind_records": 1,
            "state": "stopped", "error": "f can't be written", "since_ms": 77,
        },
    ]  # fmt: skip
    stopped = [each for each in found["overview"]["problems"] if each["kind"] == "output-stopped"]
    assert stopped[0]["sentence"] == "Output pipeline/files has stopped: f can't be written"
