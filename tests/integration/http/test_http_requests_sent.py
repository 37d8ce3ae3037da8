"""What an API gets from one task, and what the task makes of its answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from tests.integration.http.conftest import Message, Task
from tests.support.ending_lease import EndingLease
from tests.support.http_receiver import HttpReceiver
from tests.support.output_options import body as request_body

from tidelog.errors import LeaseLostError, OutputError, OutputRefusedError

pytestmark = pytest.mark.integration


def changes(count: int, keys: int = 7) -> list[Message]:
    return [(number % keys, number + 1, "text") for number in range(count)]


def check(api: HttpReceiver, messages: Sequence[Message], path: str = "%") -> None:
    """All of them, each once, and each key's in order."""
    events = [each.event for each in api.events(path)]
    assert sorted(event["v"] for event in events) == [version for _, version, _ in messages]
    for key in {key for key, _, _ in messages}:
        versions = [event["v"] for event in events if event["k"] == key]
        assert versions == sorted(versions)


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503, "times": 4},
        {"status": 408},
        {"status": 500, "times": 2},
        {"slow_s": 1.5, "times": 3},
        {"reset": True, "times": 4},
        {"drop": True, "times": 4},
        {"status": 409},
    ],
    ids=str,
)
def test_what_fails_for_a_while_is_sent_again_under_its_key(
    task: Task, api: HttpReceiver, fault: dict[str, Any]
) -> None:
    api.fail(**fault)
    messages = changes(40)
    assert task.send(*messages, timeout_s=0.5) == []
    check(api, messages)
    stored = {"slow_s", "reset"} & set(fault)
    again = sum(request.times - 1 for request in api.requests())
    assert again == (fault.get("times", 1) if stored else 0)


def test_an_api_that_dies_after_storing_gets_its_requests_again(
    task: Task, api: HttpReceiver
) -> None:
    api.fail(die=True)
    starting = threading.Timer(1.0, api.start)
    starting.start()
    messages = changes(40)
    task.send(*messages, retry_for_s=20.0)
    starting.join()
    check(api, messages)


@pytest.mark.parametrize("how", ["seconds", "date"])
def test_a_pause_that_the_api_asks_for_is_kept(task: Task, api: HttpReceiver, how: str) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=4), usegmt=True)
    api.fail(status=429, retry_after="3" if how == "seconds" else date)
    started = time.monotonic()
    # Also beyond the time for trying again.
    task.send(*changes(2), retry_for_s=0.1)
    assert time.monotonic() - started >= 2.5
    check(api, changes(2))


@pytest.mark.parametrize("asked", ["0", "Sun, 06 Nov 1994 08:49:37 GMT"])
def test_an_api_that_asks_for_no_pause_is_not_flooded(
    task: Task, api: HttpReceiver, asked: str
) -> None:
    api.fail(status=503, retry_after=asked, times=4)
    started = time.monotonic()
    task.send(*changes(2, keys=1))
    assert time.monotonic() - started >= 1.0
    check(api, changes(2, keys=1))


def test_a_request_that_stays_at_work_after_no_answer_is_not_sent_in_parts(
    task: Task, api: HttpReceiver
) -> None:
    messages = changes(3, keys=1)
    keeping = replace(task, lanes=1, keep_rejected=True)
    api.fail(slow_s=1.0)
    api.fail(status=409, times=20)
    with pytest.raises(OutputError, match="does not accept requests: HTTP 409") as caught:
        keeping.send(*messages, timeout_s=0.3, retry_for_s=1.0)
    assert not isinstance(caught.value, OutputRefusedError)
    check(api, messages)


def test_nothing_overtakes_a_request_that_failed(task: Task, api: HttpReceiver) -> None:
    api.fail(status=503, times=1)
    one_line = replace(task, lanes=1)
    with pytest.raises(OutputError, match=r"127\.0\.0\.1 does not accept requests: HTTP 503"):
        one_line.send(*changes(40), retry_for_s=0.0)
    assert api.events() == []


def test_a_closed_port_is_an_error_that_names_the_host_alone(task: Task, api: HttpReceiver) -> None:
    api.kill()
    with pytest.raises(OutputError, match="ConnectError") as caught:
        task.send(*changes(1), retry_for_s=0.2)
    assert "events" not in str(caught.value)


def test_records_that_the_api_rejects_are_found_and_the_others_continue(
    task: Task, api: HttpReceiver
) -> None:
    api.fail(poison="poison")
    messages = changes(50)
    for bad in (3, 17, 18):
        messages[bad] = (messages[bad][0], messages[bad][1], "poison")
    keeping = replace(task, keep_rejected=True, body=request_body(rows=10))
    rejections = keeping.send(*messages)
    assert sorted((each.table, each.version, each.reason) for each in rejections) == [
        ("public.t", version, "HTTP 422") for version in (4, 18, 19)
    ]
    check(api, [each for each in messages if each[2] != "poison"])


def test_the_first_record_rejected_stops_the_task_where_none_are_kept(
    task: Task, api: HttpReceiver
) -> None:
    api.fail(poison="poison")
    messages = [*changes(4), (1, 5, "poison"), *[(1, n, "later") for n in range(6, 12)]]
    one_line = replace(task, lanes=1)
    why = r"a record of public\.t at versions 4 to 6 \(HTTP 422\)"
    with pytest.raises(OutputRefusedError, match=why):
        one_line.send(*messages)
    check(api, messages[:3])
    alone = replace(one_line, body=request_body(rows=1))
    with pytest.raises(OutputRefusedError, match=r"the record of public\.t at version 5 \(HTTP"):
        alone.send(messages[4])


def test_what_was_rejected_is_taken_once_by_an_api_that_was_fixed(
    task: Task, api: HttpReceiver
) -> None:
    messages = [*changes(3), (1, 4, "poison")]
    one_line = replace(task, lanes=1, body=request_body(rows=4))
    api.fail(poison="poison")
    with pytest.raises(OutputRefusedError, match="Fix the API"):
        one_line.send(*messages)
    api.fail(poison="nothing")
    one_line.send(*messages)
    check(api, messages)


def test_a_request_that_is_too_large_is_halved(task: Task, api: HttpReceiver) -> None:
    api.fail(largest=100)
    replace(task, lanes=1, body=request_body(rows=40)).send(*changes(40))
    check(api, changes(40))
    assert max(len(request.body) for request in api.requests()) <= 100


@pytest.mark.parametrize(
    ("status", "why"),
    [(401, "refuses our credentials"), (403, "forbids it"), (404, "url"), (302, "url")],
)
def test_what_is_wrong_with_us_stops_at_once(
    task: Task, api: HttpReceiver, status: int, why: str
) -> None:
    api.fail(status=status, times=50)
    with pytest.raises(OutputRefusedError, match=why) as caught:
        replace(task, keep_rejected=True).send(
            *changes(40), headers={"Authorization": "Bearer topsecret"}
        )
    assert "topsecret" not in str(caught.value)


def test_token_headers_and_gzip_arrive(task: Task, api: HttpReceiver) -> None:
    api.fail(token="topsecret")
    headers = {"authorization": "Bearer topsecret", "content-type": "application/vnd.events+json"}
    task.send(*changes(5), headers=headers, gzip=True)
    check(api, changes(5))
    got = api.requests()[0].headers
    assert got["content-encoding"] == "gzip"
    assert got["content-type"] == "application/vnd.events+json"
    assert got["tidelog-table"] == "public.t"
    first, last = got["tidelog-versions"].split("-")
    assert got["idempotency-key"].endswith(f"/{first}-{last}")


def test_lines_of_json(task: Task, api: HttpReceiver) -> None:
    replace(task, body=request_body(kind="ndjson", rows=4)).send(*changes(20))
    check(api, changes(20))
    assert {request.headers["content-type"] for request in api.requests()} == {
        "application/x-ndjson"
    }
    assert all(request.body.endswith("}\n") for request in api.requests())


def test_a_truncate_stands_between_what_was_before_and_after(task: Task, api: HttpReceiver) -> None:
    before, after = changes(30), [(n % 7, n + 40, "text") for n in range(30)]
    api.fail(status=503, times=3)
    task.send(*before, (None, 35, "truncate"), *after)
    versions = [each.event["v"] for each in api.events()]
    at = versions.index(35)
    assert max(versions[:at]) == 30
    assert min(versions[at + 1 :]) == 40
    assert len(versions) == 61


def test_total_order_is_kept_over_tables_and_one_at_a_time(task: Task, api: HttpReceiver) -> None:
    api.fail(status=503, times=3)
    messages = changes(30)
    total = replace(task, total=True, keep_rejected=True)
    total.send_tables(
        ("public.t", messages[:7]), ("public.u", messages[7:9]), ("public.t", messages[9:])
    )
    assert [each.event["v"] for each in api.events()] == list(range(1, 31))
    assert [each.event["v"] for each in api.events("/events/public.u")] == [8, 9]


def test_the_same_messages_are_the_same_requests(task: Task, api: HttpReceiver) -> None:
    task.send(*changes(40))
    task.send(*changes(40))
    assert {request.times for request in api.requests()} == {2}
    check(api, changes(40))


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_sent_once_the_lease_has_ended(
    task: Task, api: HttpReceiver, fails: bool
) -> None:
    """A driver that was frozen wakes up, and its tasks with it. The API can't tell a late one."""
    if fails:
        api.fail(reset=True, times=1_000)
    task.fence = EndingLease(4)
    with pytest.raises(LeaseLostError):
        task.send(*changes(60))
    assert sum(request.times for request in api.requests()) == 4
