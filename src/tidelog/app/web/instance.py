"""One Tidelog as the page shows it: its status, settings, checks, commands and audit list."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from tidelog.app.base import last_results
from tidelog.app.base.last_results import redacted
from tidelog.app.dumps.plan import plan
from tidelog.app.overview import Overview
from tidelog.app.sources.preflight import check
from tidelog.app.sources.schema_versions import schemas
from tidelog.app.web.poller import History, Poller, PollResult
from tidelog.config import Config
from tidelog.config.loading import SECRET_OPTIONS
from tidelog.control.commands import Command
from tidelog.control.mailbox import Mailbox, Outcome
from tidelog.errors import StateConflictError, TidelogError, UsageError
from tidelog.kinds.sections import SecretUrl
from tidelog.model.units import format_bytes, format_milliseconds
from tidelog.ports import StateStore
from tidelog.state.opening import ReadOnlyStateStore, open_state

HIDDEN: Final = "(hidden)"
FROM_VARIABLE: Final = "(from a variable)"
_HIDDEN_TOO: Final = SECRET_OPTIONS | {"command"}
"""Arguments of commands may be tokens, which viewers must not see."""

Place = tuple[str | int, ...]


def settings_of(config: Config) -> list[dict[str, str]]:
    """Return each option with its dotted name, also the defaults.

    No value from a variable is shown: it is kept out of the file for a reason.
    """
    return [{"option": name, "value": value} for name, value in _Settings(config).lines()]


class _Settings:
    """Lists a configuration as options and values, without secrets."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._variables = config.from_variables
        if ("log", "path") in self._variables:
            self._variables |= {("state", "url")}  # which may be derived from it

    def lines(self) -> Iterator[tuple[str, str]]:
        return self._lines((), self._config, secret=False)

    def _lines(self, place: Place, value: Any, *, secret: bool) -> Iterator[tuple[str, str]]:
        name = _dotted(place)
        if place in self._variables:
            yield name, FROM_VARIABLE
        elif isinstance(value, SecretUrl):
            shown, asked, _ = value.redacted.partition("?")
            yield name, redacted(f"{shown}?{HIDDEN}" if asked else shown)  # options may be keys
        elif value is None:
            yield name, "unset"
        elif isinstance(value, SecretStr):
            yield name, HIDDEN if value.get_secret_value() else "unset"
        elif secret and not isinstance(value, (BaseModel, dict)):
            yield name, HIDDEN
        elif isinstance(value, BaseModel):
            for field, text in type(value).model_fields.items():
                inner = (*place, text.alias or field)
                yield from self._lines(inner, getattr(value, field), secret=field in _HIDDEN_TOO)
        elif isinstance(value, dict):
            if not value:
                yield name, "{}"
            for key, each in value.items():
                hidden = secret or str(key) in SECRET_OPTIONS
                yield from self._lines((*place, str(key)), each, secret=hidden)
        elif isinstance(value, (list, tuple)) and any(
            isinstance(each, (BaseModel, dict)) for each in value
        ):
            for number, each in enumerate(value):
                yield from self._lines((*place, number), each, secret=secret)
        elif isinstance(value, (list, tuple)):
            yield name, ", ".join(self._items(place, value)) or "[]"
        else:
            yield name, redacted(_with_unit(place, value))

    def _items(self, place: Place, values: list[Any] | tuple[Any, ...]) -> Iterator[str]:
        for number, each in enumerate(values):
            hidden = (*place, number) in self._variables
            yield FROM_VARIABLE if hidden else redacted(str(each))


def _with_unit(place: Place, value: Any) -> str:
    """Return a value with the unit that its option's name has: ``4MiB``."""
    option = str(place[-1])
    for unit, written in (("_bytes", format_bytes), ("_ms", format_milliseconds)):
        if option.endswith(unit) and isinstance(value, int):
            return written(value)
    return str(value)


def _dotted(place: Place) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


class Checks:
    """Runs checks, one at a time. Thread-safe. ``config``: the configuration to check."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._running = threading.Lock()
        self._result: dict[str, Any] | None = None
        self._trouble = ""

    def begin(self) -> None:
        """Start a check. Raises UsageError while another one runs, or if none can start."""
        if not self._running.acquire(blocking=False):
            raise UsageError("a check is running already; its result comes soon")
        try:
            threading.Thread(target=self._run, name="tidelog-web-check", daemon=True).start()
        except BaseException as error:
            self._running.release()
            if isinstance(error, RuntimeError):
                raise UsageError(
                    "the check could not start, as this process can't start a thread: its host "
                    "or container limits them; try again, or run `tidelog check`"
                ) from None
            raise

    def latest(self, stored: dict[str, Any] | None) -> dict[str, Any]:
        """Return ``running``, ``trouble`` and ``newest``.

        ``trouble``: why the last check here ended without a result; ``newest``: the result of the
        last one here, or ``stored``, that of another process, if it is newer.
        """
        both = [each for each in (self._result, stored) if each is not None]
        newest = max(both, key=lambda each: int(each["at_ms"]), default=None)
        return {"running": self._running.locked(), "trouble": self._trouble, "found": newest}

    def _run(self) -> None:
        try:
            self._result, self._trouble = last_results.check_summary(check(self._config)), ""
            last_results.store_check_summary(self._config, self._result)
        except Exception as error:  # noqa: BLE001 - others' messages may have values
            text = str(error) if isinstance(error, TidelogError) else type(error).__name__
            self._trouble = redacted(text)
            logger.warning("a check from the web page: %s", text)
        finally:
            self._running.release()


AUDIT_KEY: Final = "web-audit"
KEPT: Final = 200
_ATTEMPTS: Final = 20


class Result(StrEnum):
    """The result of an action; without one, the process ended, or could not store it."""

    DONE = "done"
    GIVEN = "given"
    """No capture has handled it within the time that the page waits."""
    REFUSED = "refused"


def add_entry(state: StateStore, **entry: str) -> str:
    """Add an entry and delete the oldest; return its id. Several processes may do so at once."""
    entry_id = secrets.token_hex(8)
    row: dict[str, Any] = {"id": entry_id, "at_ms": time.time_ns() // 1_000_000, **entry}
    _update_entries(state, lambda rows: [*rows, row][-KEPT:])
    return entry_id


def finish(state: StateStore, entry_id: str, result: Result) -> None:
    """Store the result of an entry, unless it has been deleted."""
    _update_entries(
        state,
        lambda rows: [
            {**row, "result": result} if row.get("id") == entry_id else row for row in rows
        ],
    )


def entries(state: StateStore) -> list[dict[str, Any]]:
    """Return the entries, the newest first."""
    stored = state.get(AUDIT_KEY)
    return [] if stored is None else list(reversed(stored.value))


def _update_entries(
    state: StateStore, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> None:
    for attempt in range(_ATTEMPTS):
        stored = state.get(AUDIT_KEY)
        rows = change([] if stored is None else stored.value)
        try:
            state.put(AUDIT_KEY, rows, 0 if stored is None else stored.version)
        except StateConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


logger = logging.getLogger(__name__)

WAIT_S: Final = 5.0


class Instance:
    """One Tidelog on the page. Thread-safe. ``name``: its name among several."""

    leads: bool = False
    """Whether the capture of this process leads; only the leader stores the history."""

    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        self._config = config
        self._planning = threading.Lock()
        self._history = History()
        self._history_loaded = False
        self._poller = Poller(config, self._add_to_history)
        self._checks = Checks(config)

    @property
    def kind(self) -> str:
        """The kind of the source."""
        return self._config.source.kind

    def start(self) -> None:
        """Start to poll the status and to collect the history."""
        self._poller.start()

    def close(self) -> None:
        self._poller.close()

    def latest(self) -> PollResult | None:
        """Return the overview, at most a few seconds old, without waiting; None: not known yet.

        All callers share it, so that many cost no more than one.
        """
        return self._poller.latest()

    # ------------------------------------------------------------ on demand

    def history(self) -> dict[str, Any]:
        """Return the contents of `History`."""
        return self._history.to_json()

    def activity(self) -> dict[str, Any] | None:
        """Return operations by table and kind over the last day; None: none are stored yet."""
        return self._poller.activity()

    def results(self) -> dict[str, Any]:
        """Return the last results of `verify` and `check`."""
        stored = self._poller.results()
        return {"verified": stored["verified"], "check": self._checks.latest(stored["checked"])}

    def check(self) -> None:
        """Start a check; `results` has its findings. Raises UsageError while another one runs."""
        self._checks.begin()

    def settings(self) -> list[dict[str, str]]:
        """Return the effective configuration."""
        return settings_of(self._config)

    def schema(self, table: str) -> dict[str, Any]:
        """Return the versions of one table. Raises UsageError if the event log does not have it."""
        return schemas(self._config, table=table).to_dict()

    def plan(self, tables: list[str]) -> dict[str, Any]:
        """Return what a dump of these would read. One at a time: it reads samples of the tables."""
        if not self._planning.acquire(blocking=False):
            raise UsageError("another plan is being computed; wait until it is ready")
        try:
            return plan(self._config, tables=tables).to_dict()
        finally:
            self._planning.release()

    def audit(self) -> list[dict[str, Any]]:
        """Return who did what, the newest first."""
        with contextlib.closing(ReadOnlyStateStore(self._config.state.place)) as state:
            return entries(state)

    def send(self, command: Command, who: dict[str, str], about: str) -> dict[str, Any]:
        """Send the command to the leader, and wait a little for its outcome.

        It is stored in the audit list before it is sent, so that nothing is done that is not on the
        list. The outcome is added.
        """
        with contextlib.closing(open_state(self._config.state.place)) as state:
            entry = add_entry(state, **who, action=command.type, about=about)
            mailbox = Mailbox(state)
            command_id = mailbox.send(command)
            outcome = mailbox.wait(command_id, WAIT_S)
            if outcome is None:
                text, result = "waiting", Result.GIVEN
            elif outcome.error is None:
                text, result = "done", Result.DONE
            else:
                text, result = "failed", Result.REFUSED
            try:
                finish(state, entry, result)
            except TidelogError as error:  # it was sent all the same
                logger.warning("the result of an action of the web page is not stored: %s", error)
        return {"state": text, **(outcome or Outcome(command_id, {})).to_dict()}

    # ------------------------------------------------------------ history

    def _add_to_history(self, current: Overview) -> None:
        complete = self._history.add(current)
        if self._history_loaded and not complete:
            return
        with contextlib.closing(ReadOnlyStateStore(self._config.state.place)) as state:
            self._history.load(state)
            self._history_loaded = True
            if complete and self.leads:
                self._history.store(state)
