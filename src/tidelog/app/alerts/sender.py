"""Delivers one alert, by an HTTP request or a program."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from tidelog.app.alerts.rules import AlertReport
from tidelog.config.alerts import CommandAlert, WebhookAlert
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
