"""Waiting until outputs hold a dump: what is waited for, what is not, and where it is read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog

from tidelog.app.overview.remote_control import wait_delivered
from tidelog.capture.dumps.state import NO_KEY
from tidelog.capture.pauses import PIPELINE_KEYS
from tidelog.cli.dump import delivery_sentence, sentence
from tidelog.config import Config, load_config
from tidelog.control.commands import StartDump
from tidelog.control.mailbox import Mailbox
from tidelog.errors import TidelogError, UsageError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.storage import LocalStorage
from tidelog.results import DumpDelivery
from tidelog.state.sqlite import SqliteState

UNTIL = 100


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://localhost/shop'}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
        "outputs: [{kind: delta, path: lake, tables: [p.*]}, "
        "{kind: delta, name: other, path: more, tables: [q.t]}]\n"
    )
    BuiltLog(tmp_path / "log")
    return load_config(file)


@pytest.fixture
def state(config: Config) -> Iterator[SqliteState]:
    found = SqliteState(config.state.url)
    yield found
    found.close()


def consumers(config: Config) -> Consumers:
    return Consumers(LocalStorage(str(config.log.path)))


def dump(state: SqliteState, status: str, *tables: tuple[str, str, int | None]) -> None:
    names = ("table", "status", "finalized_until")
    listed = [dict(zip(names, table, strict=True)) for table in tables]
    state.put("dump/d", {"dump_id": "d", "status": status, "tables": listed}, None)


def wait(config: Config, output: str | None = None) -> dict[str, Any]:
    return wait_delivered(config, "d", output, timeout_s=0).to_dict()


def test_output_must_have_come_up_to_where_the_table_is_final(
    config: Config, state: SqliteState
) -> None:
    dump(state, "completed", ("p.a", "done", UNTIL), ("p.b", "done", 7))
    with pytest.raises(TidelogError, match="outputs are behind"):
        wait(config)
    consumers(config).register("pipeline", UNTIL - 1)
    with pytest.raises(TidelogError, match="outputs are behind"):
        wait(config)
    consumers(config).register("pipeline", UNTIL)
    found = wait(config)
    assert (found["delivered"], found["offset"]) == (True, UNTIL)


@pytest.mark.parametrize("status", ["queued", "running", "paused"])
def test_running_dump_is_waited_for(config: Config, state: SqliteState, status: str) -> None:
    consumers(config).register("pipeline", UNTIL)
    dump(state, status, ("p.a", "done", UNTIL), ("p.b", "running", None))
    with pytest.raises(TidelogError, match=f"the dump is {status}"):
        wait(config)


def test_a_table_without_a_key_is_not_expected(config: Config, state: SqliteState) -> None:
    consumers(config).register("pipeline", UNTIL)
    done = {"table": "p.a", "status": "done", "finalized_until": UNTIL}
    keyless = {"table": "p.b", "status": "failed", "finalized_until": None, "reason": NO_KEY}
    document = {"dump_id": "d", "status": "completed", "tables": [done, keyless]}
    put = state.put("dump/d", document, None)
    found = wait(config)
    assert found["delivered"]
    assert [table["reason"] for table in found["tables"]] == ["", NO_KEY]
    assert "1 of 2 tables" in delivery_sentence(found)
    assert f"p.b: {NO_KEY}" in delivery_sentence(found)
    state.put("dump/d", {**document, "tables": [keyless]}, put)
    assert not wait(config)["delivered"]


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_table_that_will_not_be_complete_is_not_waited_for(
    config: Config, state: SqliteState, status: str
) -> None:
    consumers(config).register("pipeline", UNTIL)
    dump(state, "completed", ("p.a", "done", UNTIL), ("p.b", status, None))
    found = wait(config)
    assert not found["delivered"]
    assert [table["delivered"] for table in found["tables"]] == [True, False]


def test_only_tables_that_the_output_takes_count(config: Config, state: SqliteState) -> None:
    consumers(config).register("pipeline", UNTIL)
    dump(state, "completed", ("p.a", "done", UNTIL), ("q.t", "failed", None), ("r.t", "done", 1))
    assert wait(config, "delta")["delivered"]
    assert not wait(config)["delivered"]
    assert not wait(config, "other")["delivered"]
    dump(state, "completed", ("r.t", "done", 1))
    with pytest.raises(UsageError, match="no output takes a table of dump d"):
        wait(config)


def test_each_output_is_where_it_is(config: Config, state: SqliteState) -> None:
    dump(state, "completed", ("p.a", "done", UNTIL), ("q.t", "done", UNTIL))
    consumers(config).register("pipeline", 5, {"delta": UNTIL, "other": 5})
    assert wait(config, "delta")["delivered"]
    for output in ("other", None):
        with pytest.raises(TidelogError, match="outputs are behind"):
            wait(config, output)
    consumers(config).register("pipeline", UNTIL, {"delta": UNTIL})  # the other was added now
    with pytest.raises(TidelogError, match="outputs are behind"):
        wait(config, "other")


def test_other_consumer_of_the_log_may_be_named(config: Config, state: SqliteState) -> None:
    dump(state, "completed", ("r.t", "done", UNTIL))
    with pytest.raises(UsageError, match="no output or consumer 'mine'; outputs: delta, other"):
        wait(config, "mine")
    consumers(config).register("pipeline", UNTIL)
    consumers(config).register("mine", 5)
    with pytest.raises(TidelogError, match="outputs are behind"):
        wait(config, "mine")
    consumers(config).register("mine", UNTIL)
    assert wait(config, "mine")["delivered"]


def test_dump_that_waits_for_a_capture_is_no_unknown_dump(
    config: Config, state: SqliteState
) -> None:
    with pytest.raises(UsageError, match="there is no dump d"):
        wait(config)
    Mailbox(state).send(StartDump(dump_id="d"))
    with pytest.raises(TidelogError, match="no capture has begun it"):
        wait(config)


def test_waiting_needs_no_spark() -> None:
    script = "import sys, tidelog.app; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


def test_who_waits_is_shown_what_stands_still(config: Config, state: SqliteState) -> None:
    hold = {"why": "log_paused", "reason": "The log is paused by me.", "since_ms": 1}
    state.put("status", {"dumps_held": [hold]}, None)
    dump(state, "running", ("p.a", "running", None))
    with pytest.raises(TidelogError, match=r"the dump is running \(The log is paused by me\.\)"):
        wait(config)
    found: list[DumpDelivery] = []
    state.put(f"{PIPELINE_KEYS}pipeline", {"by": "me", "since_ms": 1}, None)
    dump(state, "completed", ("p.a", "done", UNTIL))
    with pytest.raises(TidelogError, match=r"Pipeline pipeline is paused by me\."):
        wait_delivered(config, "d", timeout_s=0, on_progress=found.append)
    assert delivery_sentence(found[0].to_dict()) == (
        "d is completed; the outputs hold 0 of 1 tables completely. "
        "Pipeline pipeline is paused by me."
    )
    consumers(config).register("mine", 0, {}, {}, {})
    with pytest.raises(TidelogError, match="the outputs are behind"):
        wait(config, "mine")  # a consumer of the event log is no pipeline


def test_a_dump_that_has_ended_has_no_share_left() -> None:
    table = {"table": "p.t", "status": "done", "rows_read": 7, "estimated_rows": 7}
    ended = {"dump_id": "d", "status": "completed", "tables": [table]}
    assert sentence(ended) == "d is completed: 1 of 1 tables, 7 rows"
