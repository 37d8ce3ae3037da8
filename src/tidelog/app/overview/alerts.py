"""Alerts: polls the overview, and reports each problem once, by webhook or command."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from tidelog.app.overview.remote_control import status
from tidelog.config import Config
from tidelog.config.control import CommandAlertSection, WebhookAlertSection
from tidelog.errors import StateConflictError, StateError, TidelogError
from tidelog.ports import StateStore
from tidelog.results import Problem, Severity
from tidelog.state.opening import pays_per_request
from tidelog.system.extras import check_installed
from tidelog.system.processes import unix_ms

# The rules: which problems an alert reports, and when.

BLINK_S = 30.0
"""A problem that disappears for no longer than this is the same one.

For example, while two processes take turns in trying to connect.
"""
_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


@dataclass(frozen=True, slots=True)
class AlertReport:
    """The problems that one alert reports now, as JSON objects with ``since_ms``."""

    begun: tuple[dict[str, Any], ...]
    ended: tuple[dict[str, Any], ...]

    def __bool__(self) -> bool:
        return bool(self.begun or self.ended)


class AlertHistory:
    """The problems that one alert has seen, and those that it has reported.

    Args:
        severity: the lowest severity to report.
        after_s: how long a problem must last, and be over, before that is reported.
    """

    def __init__(self, severity: Severity, after_s: float) -> None:
        self._severity = severity
        self._after_s = after_s
        self._reported: dict[tuple[str, str], dict[str, Any]] = {}
        self._first_seen: dict[tuple[str, str], tuple[float, int]] = {}
        self._last_present: dict[tuple[str, str], float] = {}
        self._absent_since: dict[tuple[str, str], float] = {}

    @property
    def reported(self) -> list[dict[str, Any]]:
        """The reported problems whose end is not reported yet; JSON objects."""
        return list(self._reported.values())

    def update(self, problems: Iterable[Problem], now: float, now_ms: int) -> AlertReport:
        """Return what to report now; the same again until `record` is called.

        Call it also where nothing is reported, so that the age of a problem is known. ``now``:
        seconds of a monotonic clock; ``now_ms``: the calendar time.
        """
        present = {}
        for problem in problems:
            if _RANK[problem.severity] >= _RANK[self._severity]:
                present[problem.kind, problem.about] = problem
        self._last_present |= dict.fromkeys(present, now)
        self._last_present = {
            key: at for key, at in self._last_present.items() if now - at <= BLINK_S
        }
        self._first_seen = {
            key: self._first_seen.get(key, (now, now_ms)) for key in self._last_present
        }
        begun = []
        for key, problem in present.items():
            since, since_ms = self._first_seen[key]
            if key not in self._reported and now - since >= self._after_s:
                begun.append(_as_json(problem, since_ms))
        absent = [key for key in self._reported if key not in present]
        self._absent_since = {key: self._absent_since.get(key, now) for key in absent}
        ended = [
            self._reported[key] for key in absent if now - self._absent_since[key] >= self._after_s
        ]
        return AlertReport(tuple(begun), tuple(ended))

    def load(self, reported: Iterable[dict[str, Any]]) -> None:
        """Load what another process has reported."""
        self._reported = {_key(each): each for each in reported}

    def record(self, news: AlertReport) -> None:
        """Record that it was reported."""
        for each in news.ended:
            self._reported.pop(_key(each), None)
        for each in news.begun:
            self._reported[_key(each)] = each


def _key(reported: dict[str, Any]) -> tuple[str, str]:
    return reported["kind"], reported["about"]


def _as_json(problem: Problem, since_ms: int) -> dict[str, Any]:
    return {
        "kind": problem.kind,
        "severity": str(problem.severity),
        "about": problem.about,
        "sentence": problem.sentence,
        "remedy": problem.remedy,
        "page": problem.page,
        "since_ms": since_ms,
    }


# Messages, and how they are sent.

PROBLEMS_NAMED = 10
"""How many problems the text names."""

Send = Callable[[dict[str, Any]], None]


class AlertNotDeliveredError(Exception):
    """Raised when an alert was not delivered; its text has no part of message or URL's path."""


def sender(alert: WebhookAlertSection | CommandAlertSection) -> Send:
    """Return the function that sends an alert. Raises MissingExtraError without httpx."""
    if isinstance(alert, CommandAlertSection):
        return lambda message: _run(alert, message)
    check_installed("httpx")
    return lambda message: _post(alert, message)


def message_of(connector: str, holder: str, news: AlertReport, now_ms: int) -> dict[str, Any]:
    """Return the alert's JSON; ``text`` is for people, and for services that show only that."""
    lines = [f"{_SIGNS[each['severity']]} {_line(each)}" for each in news.begun]
    lines += [f"over: {each['sentence']}" for each in news.ended]
    if len(lines) > PROBLEMS_NAMED:
        lines[PROBLEMS_NAMED:] = [f"… and {len(lines) - PROBLEMS_NAMED} more: tidelog status"]
    return {
        "version": 1,
        "capture": connector,
        "holder": holder,
        "at_ms": now_ms,
        "text": "\n".join([f"Tidelog {connector}", *lines]),
        "begun": list(news.begun),
        "ended": list(news.ended),
    }


_SIGNS = {"warning": "warning:", "critical": "CRITICAL:"}


def _line(each: dict[str, Any]) -> str:
    return f"{each['sentence']} {each['remedy']}".strip()


def _post(alert: WebhookAlertSection, message: dict[str, Any]) -> None:
    import httpx

    url = alert.url.get_secret_value()
    headers = {name: each.get_secret_value() for name, each in alert.headers.items()}
    host = "the service"
    try:
        host = urlsplit(url).hostname or host
        # The answer's body is not needed, and may never end.
        with httpx.stream(
            "POST", url, json=message, headers=headers, timeout=alert.timeout_ms / 1000
        ) as answer:
            code = answer.status_code
    except Exception as error:  # noqa: BLE001 - proxies, certificates: its text may have the URL
        raise AlertNotDeliveredError(f"{host}: {type(error).__name__}") from None
    if code >= 300:
        raise AlertNotDeliveredError(f"{host} answers HTTP {code}")


def _run(alert: CommandAlertSection, message: dict[str, Any]) -> None:
    program = alert.command[0]
    try:
        done = subprocess.run(  # noqa: S603 - the configuration's own command, without a shell
            alert.command,
            input=json.dumps(message).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=alert.timeout_ms / 1000,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AlertNotDeliveredError(f"{program} did not end in time") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise AlertNotDeliveredError(f"{program}: {why}") from None
    if done.returncode:
        raise AlertNotDeliveredError(f"{program} ended with {done.returncode}")


# The thread that polls the overview.

logger = logging.getLogger(__name__)

REPORTED_KEY: Final = "alerts"
"""Key of what was reported, so that the next leader reports only news and ends."""
POLL_EVERY_S: Final = 5.0
PAID_POLL_EVERY_S: Final = 120.0
CLOSE_S: Final = 15.0


class Alerts(Protocol):
    """What a capture needs of the alerts."""

    def start(self) -> None: ...
    def close(self) -> None: ...


def open_alerts(config: Config, state: StateStore, holder: str) -> Alerts:
    """Return the alerts of ``control.alerts``. Raises MissingExtraError if a package that they need
    is missing.
    """
    if not config.control.alerts:
        return NoAlerts()
    return AlertWatch(config, state, holder)


class NoAlerts:
    """Sends nothing."""

    def start(self) -> None: ...
    def close(self) -> None: ...


class AlertWatch:
    """Sends alerts from a thread.

    Only one process sends: the leader or, if there is none, the first of the others. A dead process
    sends nothing (the alert rules for Prometheus do).

    Args:
        config: the configuration with the alerts.
        state: the store of what was reported.
        holder: this process.
    """

    def __init__(self, config: Config, state: StateStore, holder: str) -> None:
        self._config = config
        self._state = state
        self._holder = holder
        self._senders: dict[str, Send] = {each.key: sender(each) for each in config.control.alerts}
        self._histories = {
            each.key: AlertHistory(Severity(each.severity), each.after_ms / 1000)
            for each in config.control.alerts
        }
        self._is_sender = False
        self._failing: set[str] = set()
        self._closed = threading.Event()
        self._every_s = (
            PAID_POLL_EVERY_S if pays_per_request(config.state.location) else POLL_EVERY_S
        )
        self._thread = threading.Thread(target=self._watch, name="tidelog-alerts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop; wait some seconds at most for an alert that is being sent."""
        self._closed.set()
        self._thread.join(CLOSE_S)

    def _watch(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                self._poll()
            except (TidelogError, OSError) as error:
                self._log_failure("", f"the status can't be read now: {error}")
            except Exception:  # else nobody would get alerts any more
                logger.exception("alerts: internal error")
            else:
                self._log_failure("", None)

    def _poll(self) -> None:
        current_status = status(self._config).document
        is_sender, before = self._should_send(current_status), self._is_sender
        if is_sender and not before:
            self._load()
        self._is_sender = is_sender
        view = current_status["overview"]
        problems = [
            Problem(**{**each, "severity": Severity(each["severity"])}) for each in view["problems"]
        ]
        now_ms, changed = unix_ms(), False
        for key, history in self._histories.items():
            news = history.update(problems, time.monotonic(), now_ms)
            if not news or not is_sender:
                continue
            message = message_of(self._config.source.connector, self._holder, news, now_ms)
            try:
                self._senders[key](message)
            except AlertNotDeliveredError as error:
                self._log_failure(key, f"{key} was not delivered, and is retried: {error}")
                continue
            self._log_failure(key, None)
            history.record(news)
            changed = True
        if changed:
            self._save()

    def _should_send(self, current_status: Mapping[str, Any]) -> bool:
        leader = current_status["leader"]
        if leader is not None:
            return bool(leader == self._holder)
        others = [
            each["holder"] for each in (*current_status["failing"], *current_status["standbys"])
        ]
        return bool(others) and others[0] == self._holder

    def _load(self) -> None:
        document = self._state.get(REPORTED_KEY)
        reported = {} if document is None else document.value
        for key, history in self._histories.items():
            history.load(reported.get(key, ()))

    def _save(self) -> None:
        value = {key: history.reported for key, history in self._histories.items()}
        with suppress(StateError, StateConflictError):  # then it may be sent twice
            self._state.put(REPORTED_KEY, value, None)

    def _log_failure(self, key: str, failure: str | None) -> None:
        """Log the first of consecutive failures."""
        if failure is None:
            self._failing.discard(key)
        elif key not in self._failing:
            self._failing.add(key)
            logger.warning("alerts: %s", failure)
