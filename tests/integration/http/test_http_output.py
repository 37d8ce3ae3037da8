"""The whole way from an event log to an API: crashes, replays, steps, dead letters."""

from __future__ import annotations

import json
import random
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs.api import output, table_rows
from tests.behaviours.outputs.destinations import Context
from tests.support.build_log import BuiltLog
from tests.support.http_receiver import HttpReceiver
from tests.support.idle import is_idle
from tests.support.output_options import body as request_body

from tidelog.app.pipeline.run import run_pipeline
from tidelog.config import load_config
from tidelog.errors import ConfigError, OutputError, OutputRefusedError
from tidelog.outputs.base.writer import JsonDeadLetters
from tidelog.outputs.formatters import formatter
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.transforms import Step
from tidelog.system import failpoints

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROOT = Path(__file__).parents[3]


class Log:
    """An event log and the API that it is posted to."""

    def __init__(self, spark: Any, built: BuiltLog, path: Path, api: HttpReceiver) -> None:
        self.context = Context(spark, built, path)
        self.built = built
        self.url = f"{api.url}/events/{{table}}"

    def bring(self, *ranges: tuple[int, int], **how: Any) -> None:
        log = self.built.log
        made = output(self.context, self.url, **how)
        try:
            made.prepare(log.generation)
            for start, end in ranges or [(log.head_offset, log.latest_offset())]:
                made.write(batch_of(log, start, end))
            self.rejected = made.rejected()
        finally:
            made.close()


@pytest.fixture
def posted(spark: Any, built: BuiltLog, tmp_path: Path, api: HttpReceiver) -> Log:
    return Log(spark, built, tmp_path, api)


def fill(built: BuiltLog, segments: int, changes: int = 60) -> tuple[list[int], dict[int, str]]:
    """Changes of 9 keys; the offsets where segments end, and what the table holds then."""
    table = built.table("public.t", {"id": "int64", "v": "text"})
    seeded = random.Random(5)
    alive: dict[int, str] = {}
    ends = []
    for number in range(segments * changes):
        key = seeded.randrange(9)
        if key in alive and seeded.random() < 0.2:
            built.delete(table, str(key))
            del alive[key]
        elif key in alive:
            built.update(table, str(key), f"v{number}")
            alive[key] = f"v{number}"
        else:
            built.insert(table, str(key), f"v{number}")
            alive[key] = f"v{number}"
        if number % changes == changes - 1:
            ends.append(built.flush().next)
    return ends, alive


def check(api: HttpReceiver, count: int, alive: dict[int, str]) -> None:
    """Each event once, a key's in order, the newest as the table has it."""
    events = [each.event for each in api.events()]
    versions = [event["__version"] for event in events]
    assert len(set(versions)) == len(versions) == count
    for key in range(9):
        of_key = [event["__version"] for event in events if event["id"] == key]
        assert of_key == sorted(of_key)
    assert {row["id"]: row["v"] for row in table_rows(events)} == alive


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("output.task.written:kill", marks=pytest.mark.thorough),
        pytest.param("output.task.commit:kill", marks=pytest.mark.thorough),
        "output.task.committed:kill",
    ],
)
def test_an_executor_killed_and_a_longer_batch_after_it_double_nothing(
    posted: Log,
    built: BuiltLog,
    api: HttpReceiver,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    """Invariant 8, crash anywhere: what was begun comes again just as it was, then the rest."""
    head, (ends, alive) = built.log.head_offset, fill(built, 3)
    monkeypatch.setenv(failpoints.ENVIRONMENT_VARIABLE, point)
    with pytest.raises(OutputError):
        posted.bring((head, ends[0]), body=request_body(rows=7))
    monkeypatch.delenv(failpoints.ENVIRONMENT_VARIABLE)
    posted.bring((head, ends[2]), body=request_body(rows=7))
    check(api, 180, alive)
    if "committed" in point:
        assert {request.times for request in api.requests()} == {1, 2}


@pytest.mark.parametrize("restarts", [True, False])
def test_what_an_api_may_be_at_work_on_since_before_a_restart_is_not_sent_in_parts(
    posted: Log,
    built: BuiltLog,
    api: HttpReceiver,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    restarts: bool,
) -> None:
    """It would take them beside the whole, which comes under another key."""
    _, alive = fill(built, 1)
    how: dict[str, Any] = {
        "dead_letters": JsonDeadLetters(str(tmp_path / "letters")),
        "body": request_body(rows=60),
        "lanes": 1,
    }
    if restarts:
        monkeypatch.setenv(failpoints.ENVIRONMENT_VARIABLE, "output.task.written:kill")
        with pytest.raises(OutputError):
            posted.bring(**how)
        monkeypatch.delenv(failpoints.ENVIRONMENT_VARIABLE)
    api.fail(status=409, times=3)
    if not restarts:  # nobody else can have sent it: the API means its records
        posted.bring(endpoint={"retry_for_s": 0.5}, **how)
        assert len(api.requests()) > 1
        return
    with pytest.raises(OutputError, match="does not accept requests: HTTP 409"):
        posted.bring(endpoint={"retry_for_s": 0.5}, **how)
    posted.bring(**how)
    check(api, 60, alive)
    assert len(api.requests()) == 1


def test_total_order_over_tables(posted: Log, built: BuiltLog, api: HttpReceiver) -> None:
    one = built.table("public.t", {"id": "int64"})
    two = built.table("public.u", {"id": "int64"}, relation_id=2)
    for key in range(30):
        built.insert(one if key % 3 else two, str(key))
    built.flush()
    posted.url = posted.url.replace("{table}", "all")
    posted.bring(order="total", body=request_body(rows=4))
    assert [each.event["id"] for each in api.events()] == list(range(30))
    # Tables share requests, since they share the address.
    assert len(api.requests()) == 8


def test_rejected_records_are_dead_letters(
    posted: Log, built: BuiltLog, api: HttpReceiver, tmp_path: Path
) -> None:
    table = built.table("public.t", {"id": "int64", "v": "text"})
    for key in range(10):
        built.insert(table, str(key), "poison" if key == 4 else "fine")
    built.flush()
    api.fail(poison="poison")
    with pytest.raises(OutputRefusedError, match=r"rejects a record of public\.t at versions"):
        posted.bring()
    posted.bring(dead_letters=JsonDeadLetters(str(tmp_path / "letters")))
    assert posted.rejected == 1
    (file,) = (tmp_path / "letters" / "api").iterdir()
    letter = json.loads(file.read_text())
    assert (letter["table"], letter["reason"]) == ("public.t", "HTTP 422")
    assert "poison" not in file.read_text()
    assert sorted(each.event["id"] for each in api.events()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_steps_and_routes_apply(posted: Log, built: BuiltLog, api: HttpReceiver) -> None:
    table = built.table("public.t", {"id": "int64", "card": "text"})
    for key in range(5):
        built.insert(table, str(key), "4711")
    built.flush()
    posted.bring(steps=(Step("mask", {"card": "***"}), Step("route", "shop/{name}")))
    # A route's slash is not one of the address; the receiver's framework shows it decoded.
    assert {each.path for each in api.events()} == {"/events/shop/t"}
    assert {each.event["card"] for each in api.events()} == {"***"}


def test_a_url_with_other_braces_is_refused(posted: Log, built: BuiltLog) -> None:
    fill(built, 1)
    posted.url = posted.url.replace("{table}", "{tabel}")
    with pytest.raises(ConfigError, match=r"only \{table\}"):
        posted.bring()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["debezium", "cloudevents"])
def test_other_formats(posted: Log, built: BuiltLog, api: HttpReceiver, name: str) -> None:
    fill(built, 1, changes=10)
    posted.bring(formatter=formatter(name, tombstones=False))
    members = {"debezium": {"before", "after", "op"}, "cloudevents": {"specversion", "id", "data"}}
    assert all(members[name] <= set(each.event) for each in api.events())


def test_the_page_s_configuration_runs(
    spark: Any, built: BuiltLog, tmp_path: Path, api: HttpReceiver
) -> None:
    fill(built, 1, changes=10)
    page = (ROOT / "docs/outputs/http.md").read_text()
    outputs = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "tidelog.yaml").write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        f"state: {{url: 'sqlite:///state.db'}}\n{outputs}".replace(
            "https://api.example.com", api.url
        )
    )
    api.fail(token="topsecret")
    config = load_config(tmp_path / "tidelog.yaml", {"API_TOKEN": "topsecret"})
    assert "topsecret" not in repr(config)
    run_pipeline(config, once=True, stop_event=threading.Event())
    assert len(api.events("/events/public.t")) == 10
    assert is_idle(config)
