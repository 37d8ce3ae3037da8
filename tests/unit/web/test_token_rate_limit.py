"""Guessed tokens over HTTP: wrong ones are answered late, right ones always at once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tidelog.app.web.metrics import MetricValues
from tidelog.app.web.metrics_routes import Health
from tidelog.app.web.routes import Role, Web
from tidelog.control.channels import rate_limit as brakes
from tidelog.control.channels.rate_limit import MOST_FAILURES, MOST_OF_ALL, TokenRateLimit
from tidelog.control.channels.rest import Leadership, application

TOKEN = "the-right-token"


@pytest.fixture
def client() -> TestClient:
    brake = TokenRateLimit()
    health = Health(
        MetricValues(lambda: None, "log"), lambda: None, (TOKEN, "metrics-token"), brake
    )
    page = Web([], {Role.OPERATOR: TOKEN}, brake).routes()
    return TestClient(
        application(lambda: Leadership(None), TOKEN, [*health.routes(), *page], brake)
    )


def status(client: TestClient, token: str | None, path: str = "/status") -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return client.get(path, headers=headers).status_code


def test_guesses_are_slowed_down_wherever_they_are_tried(client: TestClient) -> None:
    found = [status(client, f"guess-{n}") for n in range(MOST_FAILURES)]
    assert found == [401] * MOST_FAILURES
    begun = time.monotonic()
    assert [status(client, "guess"), status(client, "guess", "/metrics")] == [429, 429]
    assert client.post("/web/login", json={"token": "guess"}).status_code == 429
    assert time.monotonic() - begun >= 3 / brakes.ANSWERS_PER_S - 0.01
    answer = client.get("/status", headers={"Authorization": "Bearer guess"})
    assert answer.headers["Retry-After"] == "60"
    assert "guess" not in answer.text
    # Who has the right one is not kept out by that, at none of them.
    assert status(client, TOKEN) == 503  # nobody leads
    assert status(client, "metrics-token", "/metrics") == 200
    assert client.post("/web/login", json={"token": TOKEN}).status_code == 200


def test_who_gives_no_token_makes_no_guess(client: TestClient) -> None:
    assert [status(client, None) for _ in range(MOST_FAILURES + 5)] == [401] * (MOST_FAILURES + 5)
    assert status(client, "guess") == 401


def test_answers_are_held_back_together_and_so_many_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brakes, "MOST_HELD", 3)
    monkeypatch.setattr(brakes, "ANSWERS_PER_S", 5.0)
    brake = TokenRateLimit()

    async def guess() -> Any:
        for number in range(MOST_OF_ALL):
            assert not await brake.reject(f"10.0.0.{number}")
        begun = time.monotonic()
        ended = []

        async def one(number: int) -> None:
            assert await brake.reject(f"10.9.9.{number}")
            ended.append(time.monotonic() - begun)

        await asyncio.gather(*(one(number) for number in range(5)))
        return sorted(ended)

    at_once, also, *held = asyncio.run(guess())
    assert max(at_once, also) < held[0]
    for number, took_s in enumerate(held, 1):
        assert took_s >= number / 5.0 - 0.01
    assert brake._held == 0
    assert len(brake._failures._at) <= brakes.ADDRESSES


def test_an_application_without_a_brake_of_others_has_its_own() -> None:
    client = TestClient(Starlette(routes=application(lambda: Leadership(None), TOKEN).routes))
    found = [status(client, "guess") for _ in range(MOST_FAILURES + 1)]
    assert found == [401] * MOST_FAILURES + [429]
