"""Looks at the overview now and then, and delivers alerts about what is new."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from tidelog.app.alerts.rules import AlertHistory, AlertReport
from tidelog.app.overview.document import Problem, Severity
from tidelog.app.remote_control import status
from tidelog.config import Config
from tidelog.config.alerts import CommandAlert, WebhookAlert
from tidelog.errors import StateConflictError, StateError, TidelogError
from tidelog.ports import StateStore
from tidelog.state.opening import sparing
from tidelog.system.extras import check_installed

LINES = 10
"""Problems that the text names."""

Send = Callable[[dict[str, Any]], None]


class AlertNotDeliveredError(Exception):
    """The alert could not be delivered. The text has no part of the message, and no URL's path."""


def sender(alert: WebhookAlert | CommandAlert) -> Send:
    """What tells it. Raises MissingExtraError without httpx."""
    if isinstance(alert, CommandAlert):
        return lambda message: _run(alert, message)
    check_installed("httpx")
    return lambda message: _post(alert, message)


def message_of(connector: str, holder: str, news: AlertReport, now_ms: int) -> dict[str, Any]:
    """The JSON object; ``text`` is for people, and for services that show just that."""
    lines = [f"{_SIGNS[each['severity']]} {_line(each)}" for each in news.begun]
    lines += [f"over: {each['sentence']}" for each in news.ended]
    if len(lines) > LINES:
        lines[LINES:] = [f"… and {len(lines) - LINES} more: tidelog status"]
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


def _post(alert: WebhookAlert, message: dict[str, Any]) -> None:
    import httpx

    url = alert.url.get_secret_value()
    headers = {name: each.get_secret_value() for name, each in alert.headers.items()}
    host = "the service"
    try:
        host = urlsplit(url).hostname or host
        # The answer's body is of no interest, and may never end.
        with httpx.stream(
            "POST", url, json=message, headers=headers, timeout=alert.timeout_ms / 1000
        ) as answer:
            code = answer.status_code
    except Exception as error:  # noqa: BLE001 - proxies, certificates: its text may hold the URL
        raise AlertNotDeliveredError(f"{host}: {type(error).__name__}") from None
    if code >= 300:
        raise AlertNotDeliveredError(f"{host} answers HTTP {code}")


def _run(alert: CommandAlert, message: dict[str, Any]) -> None:
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


logger = logging.getLogger(__name__)

KEY: Final = "alerts"
"""What alerts were told: a leader that comes later does not tell it again, and tells its end."""
LOOK_EVERY_S: Final = 5.0
LOOK_SPARINGLY_S: Final = 120.0
CLOSE_S: Final = 15.0


class Alerts(Protocol):
    """What a capture needs of them."""

    def start(self) -> None: ...
    def close(self) -> None: ...


def open_alerts(config: Config, state: StateStore, holder: str) -> Alerts:
    """The alerts of ``control.alerts``. Raises MissingExtraError if a package that they need is
    missing.
    """
    if not config.control.alerts:
        return NoAlerts()
    return AlertWatch(config, state, holder)


class NoAlerts:
    """Nobody is told."""

    def start(self) -> None: ...
    def close(self) -> None: ...


class AlertWatch:
    """A thread that tells. Of all processes the one that leads does, or, while none does, the first
    of those that would: a process that is dead tells nothing (the alert rules for Prometheus do).

    Args:
        config: names them.
        state: where it is kept what they were told.
        holder: this process.
    """

    def __init__(self, config: Config, state: StateStore, holder: str) -> None:
        self._config = config
        self._state = state
        self._holder = holder
        self._senders: dict[str, Send] = {each.key: sender(each) for each in config.control.alerts}
        self._ledgers = {
            each.key: AlertHistory(Severity(each.severity), each.after_ms / 1000)
            for each in config.control.alerts
        }
        self._mine = False
        self._failing: set[str] = set()
        self._closed = threading.Event()
        self._every_s = LOOK_SPARINGLY_S if sparing(config.state.place) else LOOK_EVERY_S
        self._thread = threading.Thread(target=self._watch, name="tidelog-alerts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What is being told is told to its end, for some seconds at most."""
        self._closed.set()
        self._thread.join(CLOSE_S)

    def _watch(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                self._look()
            except (TidelogError, OSError) as error:
                self._heed("", f"what is wrong can't be seen now: {error}")
            except Exception:  # nobody would be told any more
                logger.exception("alerts: internal error")
            else:
                self._heed("", None)

    def _look(self) -> None:
        found = status(self._config)
        mine, before = self._is_mine(found), self._mine
        if mine and not before:
            self._load()
        self._mine = mine
        view = found["overview"]
        problems = [
            Problem(**{**each, "severity": Severity(each["severity"])}) for each in view["problems"]
        ]
        now_ms, changed = int(time.time() * 1000), False
        for key, ledger in self._ledgers.items():
            news = ledger.look(problems, time.monotonic(), now_ms)
            if not news or not mine:
                continue
            message = message_of(self._config.source.connector, self._holder, news, now_ms)
            try:
                self._senders[key](message)
            except AlertNotDeliveredError as error:
                self._heed(key, f"{key} could not be told, and will be: {error}")
                continue
            self._heed(key, None)
            ledger.tell(news)
            changed = True
        if changed:
            self._save()

    def _is_mine(self, found: dict[str, Any]) -> bool:
        leader = found["leader"]
        if leader is not None:
            return bool(leader == self._holder)
        others = [each["holder"] for each in (*found["failing"], *found["standbys"])]
        return bool(others) and others[0] == self._holder

    def _load(self) -> None:
        document = self._state.get(KEY)
        told = {} if document is None else document.value
        for key, ledger in self._ledgers.items():
            ledger.told_before(told.get(key, ()))

    def _save(self) -> None:
        value = {key: ledger.told for key, ledger in self._ledgers.items()}
        with suppress(StateError, StateConflictError):  # then it may be told twice
            self._state.put(KEY, value, None)

    def _heed(self, key: str, failure: str | None) -> None:
        """Log the first failure of a row of failures."""
        if failure is None:
            self._failing.discard(key)
        elif key not in self._failing:
            self._failing.add(key)
            logger.warning("alerts: %s", failure)
