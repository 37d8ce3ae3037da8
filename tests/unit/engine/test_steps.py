"""Steps of the configuration on an engine's events, without Spark."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.engines import Gates, engine, running, until
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.app.async_engine.engine import AsyncEngine
from tidelog.app.async_engine.log_task import LogTask
from tidelog.app.async_engine.steps import FormatSerializer, message_routes, split_transforms
from tidelog.engine.events import Events
from tidelog.errors import ConfigError
from tidelog.outputs.base.sections import StepSection

COLUMNS = {"id": "int64", "note": "text", "email": "text", "price": "decimal(10,2)"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    built = BuiltLog(tmp_path / "log")
    people = built.table("public.people", COLUMNS)
    other = built.table("public.other", {"id": "int64", "email": "text"}, relation_id=2)
    built.insert(people, "1", "one", "a@b.c", "1.50")
    built.insert(other, "1", "x@y.z")
    built.update(people, "1", UNCHANGED, None, "2.00")
    built.update(people, "2", "two", UNCHANGED, "2.00", key=["1"])
    built.delete(people, "2")
    built.truncate(people)
    built.flush()
    return tmp_path / "log"


def polled(log: Path, *steps: Any) -> Events:
    task = LogTask(str(log), "engine", steps=split_transforms(steps)[0])
    task.start(threading.Event())
    events = task.poll(1.0)
    assert events is not None
    return events


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_columns_are_left_out_renamed_masked_and_hashed_in_both_images(log: Path) -> None:
    events = polled(
        log,
        {"tables": ["public.people"], "drop": ["price"]},
        {"tables": ["public.people"], "rename": {"id": "number", "note": "remark"}},
        {"tables": ["public.people"], "hash": ["email"], "salt": "salt"},
        {"tables": ["public.people"], "mask": {"remark": "***"}},
    )
    hashed = sha("salta@b.c")
    assert [(e.op, e.key, e.before, e.after, e.missing) for e in events] == [
        ("c", {"number": 1}, None, {"number": 1, "remark": "***", "email": hashed}, ()),
        ("c", {"id": 1}, None, {"id": 1, "email": "x@y.z"}, ()),
        ("u", {"number": 1}, None, {"number": 1, "email": None}, ("remark",)),
        ("d", {"number": 1}, {"number": 1}, None, ()),
        ("c", {"number": 2}, None, {"number": 2, "remark": "***"}, ("email",)),
        ("d", {"number": 2}, {"number": 2}, None, ()),
        ("t", None, None, None, ()),
    ]
    assert events[0].schema.column_names == ("number", "remark", "email")


def test_columns_come_in_the_order_that_they_are_selected_in(log: Path) -> None:
    first = polled(log, {"tables": ["*.people"], "select": ["email", "id"]})[0]
    assert list((first.after or {}).items()) == [("email", "a@b.c"), ("id", 1)]
    assert first.to_batch().data.column("after").to_pylist() == [{"email": "a@b.c", "id": 1}]


def test_a_key_that_is_hashed_is_the_key_still(log: Path) -> None:
    events = polled(log, StepSection(hash=["id"]))
    assert [e.key for e in events][:5] == [{"id": sha("1")} for _ in range(4)] + [{"id": sha("2")}]


def test_functions_and_offsets_continue_behind_steps(log: Path) -> None:
    steps, functions = split_transforms(
        [{"rename": {"email": "mail"}}, lambda e: e.replace(after={**e.after, "mail": "-"})]
    )
    seen: list[Any] = []
    task = Gates(log, steps=steps)
    with running(engine(task, consumer=seen.append, transforms=functions[:0])) as run:
        until(lambda: len(seen) == 7 or not run.thread.is_alive())
    assert run.error is None
    assert task.calls[-2].startswith("commit ")
    taken: list[Any] = []

    def take(events: Events, committer: Any) -> None:
        taken.extend(events.to_pylist())
        committer.mark_processed(events)
        committer.mark_batch_finished()

    only_new = [lambda e: e if e.op == "c" else None, *functions]
    task = Gates(log, "second", steps=steps)
    with running(engine(task, change_consumer=take, transforms=only_new)) as run:
        until(lambda: len(taken) == 3 or not run.thread.is_alive())
    assert run.error is None
    assert [each["after"]["mail"] for each in taken] == ["-", "-", "-"]


def test_messages_are_of_what_steps_left_and_go_where_routes_say(log: Path) -> None:
    given = [{"rename": {"email": "mail"}}, {"tables": ["*.people"], "route": "to.{name}"}]
    steps, _ = split_transforms(given)
    messages = FormatSerializer("debezium", routes=message_routes(steps)).serialize(
        polled(log, *given)
    )
    assert [m.topic for m in messages][:3] == ["to.people", "public.other", "to.people"]
    value = json.loads(messages[0].value or b"")
    assert value["payload" if "payload" in value else "after"]["mail"] == "a@b.c"
    assert b"email" not in (messages[0].value or b"")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"filter": "id > 1"}, "step filter needs Spark"),
        ({"cast": {"id": "string"}}, "step cast needs Spark"),
        ({"compute": {"id": "1"}}, "step compute needs Spark"),
        ({"python": "a:b"}, "step python needs Spark"),
        ({"drop": ["a"], "select": ["a"]}, "one action"),
        ({"dorp": ["a"]}, "transforms: "),
        ({"route": "x"}, "route .* needs a format"),
    ],
)
def test_a_step_that_can_not_be_done_is_refused_at_once(
    tmp_path: Path, step: dict[str, Any], told: str
) -> None:
    config = {"source": {"kind": "postgres", "url": "postgresql://x/y"}, "log": {"path": "log"}}
    with pytest.raises(ConfigError, match=told):
        AsyncEngine(config, consumer=print, transforms=[step])


def test_a_step_behind_a_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="step drop comes after a function"):
        split_transforms([lambda event: event, {"drop": ["a"]}])


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"drop": ["nothing"]}, r"step drop: public\.\w+ has no column 'nothing'"),
        ({"drop": ["id"]}, r"the steps take id away from public\.\w+"),
        ({"mask": {"id": "x"}}, "column 'id' is of the key"),
        ({"rename": {"id": "email"}}, "one name"),
        ({"tables": ["*.people"], "hash": ["price"]}, r"'price' of public\.people is decimal"),
    ],
)
def test_a_step_that_does_not_fit_a_table_ends_the_engine(
    log: Path, step: dict[str, Any], told: str
) -> None:
    steps, _ = split_transforms([step])
    with running(engine(Gates(log, steps=steps), consumer=print)) as run:
        error = run.join()
    assert isinstance(error, ConfigError)
    with pytest.raises(ConfigError, match=told):
        raise error
