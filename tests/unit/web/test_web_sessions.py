"""Sessions of the web page, without a server: who gets one, and when it ends."""

from __future__ import annotations

import base64

import pytest

from tidelog.app.web.routes import LASTS_S, Role, Sessions
from tidelog.control.channels.rate_limit import (
    ADDRESSES,
    FAILURES_OVER_S,
    MOST_FAILURES,
    MOST_OF_ALL,
    FailureCounts,
)

NOW = 1_700_000_000.0
TOKENS = {Role.OPERATOR: "operator-token", Role.VIEWER: "viewer-token"}


def opened(sessions: Sessions, token: str = "operator-token", name: str = "Anna") -> str:
    found = sessions.open(token, name, NOW)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("role", Role)
def test_a_token_gives_its_role_and_no_other(role: Role) -> None:
    sessions = Sessions(TOKENS)
    found = sessions.of(opened(sessions, TOKENS[role]), NOW)
    assert found is not None
    assert (found.role, found.name) == (role, "Anna")


def test_a_wrong_token_gives_none() -> None:
    sessions = Sessions(TOKENS)
    assert [sessions.open(token, "", NOW) for token in ("", "operator", "\ud800")] == [None] * 3


def test_a_session_ends_by_itself_and_when_it_is_closed() -> None:
    sessions = Sessions(TOKENS)
    cookie = opened(sessions)
    assert sessions.of(cookie, NOW + LASTS_S - 1) is not None
    assert sessions.of(cookie, NOW + LASTS_S) is None
    found = sessions.of(cookie, NOW)
    assert found is not None
    sessions.close(found)
    assert sessions.of(cookie, NOW) is None
    assert sessions.of(opened(sessions), NOW) is not None  # another one goes on


def test_another_process_knows_the_session_until_the_token_changes() -> None:
    cookie = opened(Sessions(TOKENS))
    assert Sessions(TOKENS).of(cookie, NOW) is not None
    assert Sessions({**TOKENS, Role.OPERATOR: "another-token"}).of(cookie, NOW) is None
    viewer = opened(Sessions(TOKENS), "viewer-token")
    assert Sessions({Role.OPERATOR: "operator-token"}).of(viewer, NOW) is None


def test_no_changed_cookie_is_taken() -> None:
    sessions = Sessions(TOKENS)
    body, _, mac = opened(sessions, "viewer-token").partition(".")
    other_body, _, other_mac = opened(sessions).partition(".")
    wrong = [
        "", ".", body, f"{body}.", f"{body}.{other_mac}", f"{other_body}.{mac}", f"{body}A.{mac}",
        f"{body}.{mac[:-1]}", "\ud800.x",
    ]  # fmt: skip
    assert [sessions.of(cookie, NOW) for cookie in wrong] == [None] * len(wrong)


def test_the_check_against_forgery_is_of_one_session() -> None:
    sessions = Sessions(TOKENS)
    one, other = (sessions.of(opened(sessions), NOW) for _ in range(2))
    assert one is not None
    assert other is not None
    assert sessions.has_csrf(one, sessions.csrf(one))
    assert not sessions.has_csrf(one, sessions.csrf(other))
    assert not sessions.has_csrf(one, "")
    assert not sessions.has_csrf(one, opened(sessions).partition(".")[2])


def test_names_are_short_and_printable() -> None:
    sessions = Sessions(TOKENS)
    found = sessions.of(opened(sessions, name=" A\x1b[31m\nna " + "x" * 500), NOW)
    assert found is not None
    assert found.name.startswith("A[31mna x")
    assert len(found.name) == 60


def test_failures_of_an_address_are_counted_for_a_minute() -> None:
    failures = FailureCounts()
    for _ in range(MOST_FAILURES):
        assert not failures.too_many("a", 100.0)
        failures.add("a", 100.0)
    assert failures.too_many("a", 100.0)
    assert not failures.too_many("b", 100.0)
    assert not failures.too_many("a", 100.0 + FAILURES_OVER_S)


def test_failures_of_all_addresses_are_counted_too() -> None:
    failures = FailureCounts()
    for number in range(MOST_OF_ALL):
        assert not failures.too_many("new", 100.0)
        failures.add(str(number), 100.0)
    assert failures.too_many("new", 100.0)
    assert not failures.too_many("new", 100.0 + FAILURES_OVER_S)


def test_a_cookie_of_another_version_is_of_nobody() -> None:
    sessions = Sessions(TOKENS)
    body = base64.urlsafe_b64encode(b'{"role": "operator", "more": 1}').decode()
    assert sessions.of(f"{body}.{sessions._mac(Role.OPERATOR, 'session', body)}", NOW) is None


def test_cookies_of_other_tokens_have_other_names() -> None:
    """Two Tidelogs below two paths of a proxy share all cookies of its address."""
    marks = Sessions(TOKENS).marks()
    assert marks == Sessions(TOKENS).marks()
    assert len({*marks.values()}) == 2
    others = Sessions({role: f"{token}-2" for role, token in TOKENS.items()}).marks()
    assert not {*marks.values()} & {*others.values()}


def test_so_many_addresses_are_remembered() -> None:
    failures = FailureCounts()
    for number in range(ADDRESSES + 50):
        failures.add(str(number), 0.0)
    assert len(failures._at) == ADDRESSES
