"""One Tidelog as the page shows it: its status, settings, checks, commands and audit list.

A thread polls the status, so that a state store that hangs delays no other.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from tidelog.app.base import last_results
from tidelog.app.base.last_results import redacted
from tidelog.app.overview.build import overview
from tidelog.app.overview.reader import StatusReader
from tidelog.app.sources.plan import plan
from tidelog.app.sources.preflight import check
from tidelog.app.sources.schema_versions import schemas
from tidelog.config import Config
from tidelog.config.loading import SECRET_OPTIONS, dotted
from tidelog.control.commands import Command
from tidelog.control.mailbox import Mailbox, Outcome
from tidelog.errors import StateConflictError, TidelogError, UsageError, message_without_values
from tidelog.kinds.sections import SecretUrl
from tidelog.model.units import format_bytes, format_milliseconds
from tidelog.ports import StateStore
from tidelog.results import Overview
from tidelog.state.opening import ReadOnlyStateStore, open_state, poll_interval_s
from tidelog.system.processes import unix_ms

# Throughput and lag over time.

HISTORY_KEY: Final = "web-history"
BUCKET_S: Final = 300
BUCKETS: Final = 288
SAMPLE_S: Final = 5.0
SAMPLES: Final = 360
MOST_OUTPUTS: Final = 16
"""The number of outputs to remember; more would make the document large."""


@dataclass(slots=True)
class HistoryPoint:
    """Throughput and lag in a span of time.

    Attributes:
        at_s: the start, in seconds since 1970.
        records: the number of captured records.
        over_s: the seconds in which they were captured.
        lag_s: the largest lag of the source; None: not known.
        outputs: the largest lag of each output.
    """

    at_s: int
    records: int = 0
    over_s: float = 0.0
    lag_s: float | None = None
    outputs: dict[str, float] = field(default_factory=dict)

    def merge(self, other: HistoryPoint) -> None:
        """Add the values of another point."""
        self.records += other.records
        self.over_s = round(self.over_s + other.over_s, 3)
        self.lag_s = max(
            (lag for lag in (self.lag_s, other.lag_s) if lag is not None), default=None
        )
        for name, lag in other.outputs.items():
            self.outputs[name] = max(self.outputs.get(name, 0.0), lag)


class History:
    """Collects points. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[HistoryPoint] = deque(maxlen=SAMPLES)
        self._day: list[HistoryPoint] = []
        self._open: HistoryPoint | None = None
        self._last: tuple[object, int, int] | None = None

    def add(self, overview: Overview) -> bool:
        """Add an overview; return True if a bucket is complete and should be stored."""
        at_ms = overview.at_ms
        if at_ms is None:
            return False
        with self._lock:
            leadership = (overview.leader, overview.epoch, overview.since_ms)
            point = HistoryPoint(
                at_ms // 1000, lag_s=None if overview.source.silent_s else overview.source.lag_s
            )
            if self._last is not None and self._last[1] >= at_ms:
                return False  # nobody has written anything since
            if self._last is not None and self._last[0] == leadership:
                point.records = max(0, overview.records - self._last[2])
                point.over_s = (at_ms - self._last[1]) / 1000
            for output in overview.outputs[:MOST_OUTPUTS]:
                if output.lag_s is not None:
                    point.outputs[f"{output.pipeline}/{output.output}"] = output.lag_s
            self._last = leadership, at_ms, overview.records
            self._recent.append(point)
            return self._collect(point)

    def _collect(self, point: HistoryPoint) -> bool:
        bucket_s = point.at_s // BUCKET_S * BUCKET_S
        complete = self._open is not None and self._open.at_s != bucket_s
        if self._open is not None and complete:
            self._day = _newest([*self._day, self._open])
        if self._open is None or complete:
            self._open = HistoryPoint(bucket_s)
        self._open.merge(point)
        return complete

    def load(self, state: StateStore) -> None:
        """Load the last day from the state store, under what this process has added."""
        stored = state.get(HISTORY_KEY)
        if stored is None:
            return
        with self._lock:
            self._day = _newest([*_points(stored.value), *self._day])

    def store(self, state: StateStore) -> None:
        """Store the last day; only the leader does."""
        with self._lock:
            value = [asdict(point) for point in self._day]
        state.put(HISTORY_KEY, value, None)

    def to_json(self) -> dict[str, Any]:
        """Return both spans, the oldest first."""
        with self._lock:
            day = [*self._day, *([] if self._open is None else [self._open])]
            return {
                "recent": [asdict(point) for point in self._recent],
                "day": [asdict(point) for point in _newest(day)],
            }


def _points(rows: Any) -> list[HistoryPoint]:
    """Return the valid points; another version may have stored more fields, or fewer."""
    names = {each.name for each in fields(HistoryPoint)}
    return [
        HistoryPoint(**{name: value for name, value in row.items() if name in names})
        for row in rows
        if "at_s" in row
    ]


def _newest(points: Iterable[HistoryPoint]) -> list[HistoryPoint]:
    """Return a day of points; of two of one time, the later in the list."""
    by_time = {point.at_s: point for point in points}
    return [by_time[at] for at in sorted(by_time)][-BUCKETS:]


# The poller.

logger = logging.getLogger(__name__)

READ_EVERY_S: Final = 1.0
LOG_EVERY_S: Final = 2.0
SELDOM_EVERY_S: Final = 20.0
"""Seconds between two reads of what changes every few minutes."""
SILENT_S: Final = 10.0
_WARN_AGAIN_S: Final = 60.0
_END_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of a poll. All open pages share it, so it is never changed.

    Attributes:
        overview: the overview without its tables; None: it could not be read.
        tables: the tables by name.
        trouble: why it could not be read.
    """

    overview: dict[str, Any] | None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    trouble: str = ""


def _with_commands(document: Any, config: Config) -> Any:
    """Return the document with the commands in its texts as a user can type them."""
    if isinstance(document, str):
        return config.name_commands(document)
    if isinstance(document, dict):
        return {name: _with_commands(each, config) for name, each in document.items()}
    if isinstance(document, list | tuple):
        return [_with_commands(each, config) for each in document]
    return document


class Poller:
    """Polls once a second while somebody calls `latest`, else for the history. Thread-safe.

    Args:
        config: the configuration.
        keep: called with each overview for the history.
    """

    def __init__(self, config: Config, keep: Callable[[Overview], None]) -> None:
        self._config = config
        self._keep = keep
        self._every_s = max(READ_EVERY_S, 2 * poll_interval_s(config.state.location))
        self._sample_s = max(SAMPLE_S, self._every_s)
        self._reader: StatusReader | None = None
        self._requested = threading.Event()
        self._closed = threading.Event()
        self._result: PollResult | None = None
        self._result_at = time.monotonic()
        self._silent: PollResult | None = None
        self._warned_at = float("-inf")
        self._activity: dict[str, Any] | None = None
        self._results: dict[str, Any] = {"verified": None, "checked": None}
        self._seldom_due = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._result_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tidelog-web-poller", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._requested.set()
        if self._thread is not None:
            self._thread.join(_END_S)

    def latest(self) -> PollResult | None:
        """Return the last result without waiting (None: nothing yet), and request a new poll."""
        self._requested.set()
        last, silent_s = self._result, time.monotonic() - self._result_at
        if silent_s <= self._sample_s + SILENT_S:
            self._silent = None
            return last
        silent = self._silent
        if silent is None:
            since = time.strftime("%H:%M:%S", time.gmtime(time.time() - silent_s))
            self._silent = silent = PollResult(None, trouble=f"no answer since {since} UTC")
        return silent

    def activity(self) -> dict[str, Any] | None:
        """Return `StatusReader.activity`, half a minute old at most. Does not wait."""
        return self._activity

    def results(self) -> dict[str, Any]:
        """Return `StatusReader.results`, half a minute old at most. Does not wait."""
        return self._results

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        """Poll until `close`. Capture runs on whatever happens here."""
        sample_due = 0.0
        try:
            while not self._closed.is_set():
                self._requested.clear()
                begun = time.monotonic()
                current = self._poll()
                if current is not None and begun >= sample_due:
                    sample_due = begun + self._sample_s
                    self._sample(current)
                if self._closed.wait(begun + self._every_s - time.monotonic()):
                    break
                self._requested.wait(max(0.0, begun + self._sample_s - time.monotonic()))
        finally:
            self._drop_reader()

    def _poll(self) -> Overview | None:
        current = None
        try:
            if self._reader is None:
                self._reader = StatusReader(self._config, log_every_s=LOG_EVERY_S)
            current = overview(self._reader.read(), unix_ms())
            shown = current.to_dict()
            tables = {
                row["table"]: _with_commands(row, self._config) if row.get("remedy") else row
                for row in shown.pop("tables")
            }
            shown = _with_commands(shown, self._config)
            self._publish(PollResult(shown, tables))
            if time.monotonic() >= self._seldom_due:
                self._seldom_due = time.monotonic() + SELDOM_EVERY_S
                self._activity = self._reader.activity()
                self._results = self._reader.results()
        except Exception as error:  # noqa: BLE001 - another version's documents may raise anything
            self._drop_reader()
            self._publish(PollResult(None, trouble=message_without_values(error)))
            self._warn(error)
        return current

    def _publish(self, result: PollResult) -> None:
        self._result, self._result_at = result, time.monotonic()

    def _sample(self, current: Overview) -> None:
        try:
            self._keep(current)
        except Exception as error:  # noqa: BLE001 - as above
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if time.monotonic() > self._warned_at + _WARN_AGAIN_S:
            self._warned_at = time.monotonic()
            logger.warning(
                "the web page's history is not updated: %s", message_without_values(error)
            )

    def _drop_reader(self) -> None:
        if self._reader is not None:
            with contextlib.suppress(Exception):
                self._reader.__exit__()
            self._reader = None


HIDDEN: Final = "(hidden)"
FROM_VARIABLE: Final = "(from a variable)"
_HIDDEN_TOO: Final = SECRET_OPTIONS | {"command"}
"""Arguments of commands may be tokens, which viewers must not see."""

Place = tuple[str | int, ...]


def settings_of(config: Config) -> list[dict[str, str]]:
    """Return each option with its dotted name, also the defaults. No value from a variable is
    shown: it is kept out of the file for a reason.
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
        name = dotted(place)
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
        """Return ``running``, ``trouble`` and ``found``.

        ``trouble``: why the last check here ended without a result; ``found``: the result of the
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
            text = message_without_values(error)
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


_RESULTS: Final = {"done": Result.DONE, "failed": Result.REFUSED, "waiting": Result.GIVEN}
"""The result of an action, by the state of its command."""


def add_entry(state: StateStore, **entry: str) -> str:
    """Add an entry and delete the oldest; return its id. Several processes may do so at once."""
    entry_id = secrets.token_hex(8)
    row: dict[str, Any] = {"id": entry_id, "at_ms": unix_ms(), **entry}
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


WAIT_S: Final = 5.0


class Site:
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
        """Return the overview, at most a few seconds old, without waiting; None: not known yet. All
        callers share it, so that many cost no more than one.
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
        found = {
            "verified": stored["verified"],
            "check": self._checks.latest(stored["checked"]),
            "commands": {name: f"tidelog {name} CONFIG" for name in ("check", "verify")},
        }
        named: dict[str, Any] = _with_commands(found, self._config)
        return named

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
        with contextlib.closing(ReadOnlyStateStore(self._config.state.location)) as state:
            return entries(state)

    def send(self, command: Command, who: dict[str, str], about: str) -> dict[str, Any]:
        """Send the command to the leader, and wait a little for its outcome.

        It is stored in the audit list before it is sent, so that nothing is done that is not on the
        list. The outcome is added.
        """
        with contextlib.closing(open_state(self._config.state.location)) as state:
            entry = add_entry(state, **who, action=command.type, about=about)
            mailbox = Mailbox(state)
            command_id = mailbox.send(command)
            outcome = mailbox.wait(command_id, WAIT_S) or Outcome(command_id, handled=False)
            try:
                finish(state, entry, _RESULTS[outcome.state])
            except TidelogError as error:  # it was sent all the same
                logger.warning("the result of an action of the web page is not stored: %s", error)
        return outcome.to_dict()

    # ------------------------------------------------------------ history

    def _add_to_history(self, current: Overview) -> None:
        complete = self._history.add(current)
        if self._history_loaded and not complete:
            return
        with contextlib.closing(ReadOnlyStateStore(self._config.state.location)) as state:
            self._history.load(state)
            self._history_loaded = True
            if complete and self.leads:
                self._history.store(state)
