"""Prints a command's output as tables and live views, plain lines or JSON, and ends the command.

A terminal gets colours and a view that is redrawn; anything else gets one line at a time;
``--json`` gets one JSON document a line. Documents are plain dicts shown by their shape, so that a
new field needs no change here.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TextIO

from tidelog.errors import Policy, TidelogError
from tidelog.model import command_text
from tidelog.model.units import format_bytes, printable
from tidelog.system.compilation import cache_error

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

PLAIN_INTERVAL_S = 10.0
WATCH_ONLY = frozenset({"events", "windows"})
SIGNS = {
    "ok": ("green", "✓"), "info": ("cyan", "·"), "warning": ("yellow", "!"),
    "error": ("red", "✗"), "critical": ("red", "✗"),
}  # fmt: skip
"""The colour and the sign of each severity."""

_APART = re.compile(r'[\s="]')

# ---------------------------------------------------------------- lines

CONFIG_FILES: dict[str, str] = {}
"""The configuration files that this process has loaded for the command, and for which of its
databases; "": it has one.
"""


def name_config(text: str, config: str | None = None, database: str | None = None) -> str:
    """As `command_text.name_config`; None: the command's own, if it has one file."""
    if config is None:
        if len(CONFIG_FILES) != 1:
            return text
        (config,) = CONFIG_FILES
    chosen = CONFIG_FILES.get(config, "") if database is None else database
    return command_text.name_config(text, config, chosen)


def to_json(value: Any) -> str:
    """Return the value as one line of JSON; types that JSON does not have become text."""
    return json.dumps(value, ensure_ascii=False, default=_json_default)


def _json_default(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


def emit(document: Any) -> None:
    """Write a JSON document as a line of stdout, at once."""
    _write(to_json(document), sys.stdout)


def print_line(text: str, *, error: bool = False) -> None:
    """Write a line to stdout, or to stderr (``error``), at once."""
    _write(name_config(text), sys.stderr if error else sys.stdout)


def _write(text: str, stream: TextIO) -> None:
    stream.write(text + "\n")
    stream.flush()


def print_sentence(sentence: str, *, error: bool = False) -> None:
    """As `print_line`; on a terminal in lines that break between words. ``error``: to stderr."""
    if (sys.stderr if error else sys.stdout).isatty():
        console(error=error).print(name_config(sentence))
    else:
        print_line(sentence, error=error)


def print_error(text: str) -> None:
    """Write an error to stderr; on a terminal in lines that break between words."""
    text = name_config(printable(text, lines=True))
    if not sys.stderr.isatty():
        print_line(f"error: {text}", error=True)
        return
    from rich.text import Text

    console(error=True).print(Text.assemble(("error:", "bold red"), f" {text}"))


def console(*, error: bool = False) -> Console:
    """Return Rich's console of stdout, or of stderr (``error``)."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, stderr=error)


# ---------------------------------------------------------------- results


def show(document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a command's result."""
    if as_json:
        emit(document)
    elif sys.stdout.isatty() and _fits(view(document)):
        console().print(view(document))
    else:
        for line in plain_lines(document):
            print_line(line)


def _fits(picture: Group) -> bool:
    """Return whether the terminal is wide enough; else plain lines can still be read."""
    from rich.measure import Measurement

    screen = console()
    options = screen.options.update(width=10_000)
    return Measurement.get(screen, options, picture).minimum <= screen.width


def show_findings(findings: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the findings of `tidelog.app.check`."""
    if as_json:
        emit({"ok": not any_error(findings), "findings": list(findings)})
        return
    granted: set[str] = set()
    for finding in findings:
        _print_signed(
            finding["level"], f"{printable(finding['check'])}: {printable(finding['message'])}"
        )
        if finding["level"] != "ok":  # the JSON has the other fixes, too
            for line in (finding.get("fix") or "").split("\n"):
                if line and line not in granted:
                    print_line(f"      {printable(line)}")
                if line.startswith("GRANT "):
                    granted.add(line)
    print_line(_count(findings))


def _print_signed(severity: str, sentence: str) -> None:
    colour, sign = SIGNS[severity]
    if not sys.stdout.isatty():
        print_line(f"{sign} {sentence}")
        return
    from rich.text import Text

    console().print(Text.assemble((sign, colour), f" {name_config(sentence)}"))


def _count(findings: Sequence[Mapping[str, Any]]) -> str:
    by_level = Counter(finding["level"] for finding in findings)
    parts = [f"{by_level['ok']} in order"]
    if warnings := by_level["warning"]:
        parts.append(f"{warnings} with a warning")
    if errors := by_level["error"]:
        parts.append(f"{errors} to fix")
    hint = "; `tidelog check --sql` writes the SQL as one script" if warnings or errors else ""
    return f"{len(findings)} checks: {', '.join(parts)}{hint}"


def any_error(findings: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether there is an error: capture does not start, or leaves a table out."""
    return any(finding["level"] == "error" for finding in findings)


def plain_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield ``name: value`` lines; a list of dicts gets a line for each element."""
    for name, value in _without_watch_only(document):
        if _is_table(value):
            yield from _row_lines(name, value)
        else:
            yield f"{name}: {_text(name, value)}"


def _row_lines(name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield f"{name}: {plain_line(row)}"
        for inner, value in _flat(row):
            if _is_table(value):
                yield from _row_lines(f"{name}.{inner}", value)


def plain_line(document: Mapping[str, Any]) -> str:
    """Return all scalars of ``document`` on one line, for progress without a terminal."""
    return " ".join(
        f"{name}={_quoted(_text(name, value))}"
        for name, value in _flat(document)
        if not _is_table(value)
    )


def _quoted(text: str) -> str:
    """Return the text, in JSON's quotes if it has blanks, ``=`` or quotes."""
    return to_json(text) if not text or _APART.search(text) else text


# ---------------------------------------------------------------- shapes


def _is_table(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value)


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield fields with nested names joined by dots; lists of dicts last."""
    tables = []
    for name, value in document.items():
        full = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{full}.")
        elif _is_table(value):
            tables.append((full, value))
        else:
            yield full, value
    yield from tables


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("bytes"):
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return printable(", ".join(str(item) for item in value)) or "-"
    return printable(str(value))


KEYS_SHOWN = 10
"""How many of a copy's differing keys a screen shows."""


def _screen_text(name: str, value: Any) -> str:
    """As `_text`, with commas in the numbers of rows and the like, and only the first keys."""
    if name == "keys" and isinstance(value, (list, tuple)) and len(value) > KEYS_SHOWN:
        return f"{_text(name, value[:KEYS_SHOWN])} and {len(value) - KEYS_SHOWN:,} more (--json)"
    counted = isinstance(value, int) and not isinstance(value, bool)
    if counted and any(word in name for word in ("rows", "records", "events", "superseded")):
        return f"{value:,}"
    return _text(name, value)


def _without_watch_only(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """As `_flat`, without the hundreds of events that only `tidelog watch` shows."""
    for name, value in _flat(document):
        if name.rpartition(".")[2] not in WATCH_ONLY:
            yield name, value


def view(document: Mapping[str, Any], title: str = "") -> Group:
    """Return scalars as names and values, then each list of dicts as a table."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = Table(box=None, show_header=False, title=title or None, title_justify="left")
    facts.add_column(style="dim")
    facts.add_column()
    tables: list[Table] = []
    for name, value in _without_watch_only(document):
        if _is_table(value):
            tables.extend(_tables(name, value))
        else:
            facts.add_row(name.replace("_", " "), Text(_screen_text(name, value)))
    return Group(facts, *tables)


def _tables(title: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Yield a table of the rows' scalars, then tables of the lists in the rows."""
    from rich import box
    from rich.table import Table

    flat = [dict(_flat(row)) for row in rows]
    scalars = [{name: v for name, v in row.items() if not _is_table(v)} for row in flat]
    columns = list(dict.fromkeys(name for row in scalars for name in row))
    table = Table(
        box=box.SIMPLE_HEAD, title=title.replace("_", " "), title_justify="left", pad_edge=False
    )
    for name in columns:
        values = [row.get(name) for row in scalars]
        if all(isinstance(value, (int, float)) for value in values):
            table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
        else:  # Rich makes no word narrower than this
            parts = [part for value in values for part in _parts(_text(name, value))]
            longest = min(_WIDEST_PART, max(map(len, parts)))
            table.add_column(name.replace("_", " "), min_width=longest)
    for row in scalars:
        table.add_row(*(BreakableText(_screen_text(name, row.get(name))) for name in columns))
    yield table
    for row, own in zip(flat, scalars, strict=True):
        for name, value in row.items():
            if _is_table(value):
                yield from _tables(f"{printable(str(next(iter(own.values()), '')))} {name}", value)


_WIDEST_PART = 24


def _parts(text: str) -> list[str]:
    """Return the parts between which a text may be broken: behind a blank, a dot, an underscore."""
    return re.findall(r"[^\s._]*[\s._]*", text) or [""]


class BreakableText:
    """A text that Rich breaks at blanks, and behind the dots and underscores of names."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.cells import cell_len
        from rich.measure import Measurement

        return Measurement(max(map(cell_len, _parts(self._text))), cell_len(self._text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.cells import cell_len
        from rich.text import Text

        line = ""
        for part in _parts(self._text):
            if line and cell_len(line + part.rstrip()) > options.max_width:
                yield Text(line.rstrip())
                line = ""
            line += part
        yield Text(line)


# ---------------------------------------------------------------- the end of a command

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

_before_exit: list[Callable[[], None]] = []


@contextmanager
def restored_at_exit(restore: Callable[[], None]) -> Iterator[None]:
    """Call ``restore`` at the end, also if a signal ends the process at once."""
    _before_exit.append(restore)
    unhandled = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if unhandled:
        signal.signal(signal.SIGTERM, _restore_and_end)
    try:
        yield
    finally:
        if unhandled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        restore()
        _before_exit.remove(restore)


def _restore_all() -> None:
    """Call all of `restored_at_exit`; a signal may have come while one of them writes."""
    for restore in reversed(_before_exit):
        with suppress(Exception):
            restore()


def _restore_and_end(number: int, frame: object) -> None:
    _restore_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; the second one ends the process at
    once.
    """
    stop = threading.Event()

    def request(number: int, frame: object) -> None:
        if stop.is_set():
            _restore_all()
            os._exit(128 + number)
        stop.set()

    previous = {
        number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C: raise KeyboardInterrupt."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


_ADVICE = {
    Policy.RETRY: "this may pass: try again",
    Policy.VOID: "this may pass: try again",
    Policy.RESTART: "start it again; it resumes after the last durable change",
}


def exit_code_of(error: BaseException, *, as_json: bool = False) -> int:
    """Print the error (with ``--json`` also as JSON) and return its exit code."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    error = cache_error(str(error)) or error
    if isinstance(error, TidelogError):
        message, code = str(error), error.exit_code
        advice = _ADVICE.get(error.policy) if code == EXIT_FAILED else None
        print_error(f"{message} ({advice})" if advice else message)
    else:
        # The exception's own text may have cell values: show where it happened, not the text.
        message, code = f"internal error ({type(error).__name__})", EXIT_FAILED
        # TIDELOG_DEBUG shows all, for a machine whose data may be seen.
        show_all = bool(os.environ.get("TIDELOG_DEBUG"))
        where = "".join(
            traceback.format_exception(error)
            if show_all
            else traceback.format_tb(error.__traceback__)
        )
        print_error(f"{message}; please report it with what follows\n{where}")
    if as_json:
        emit({"error": {"kind": type(error).__name__, "message": message}})
    return code


# ---------------------------------------------------------------- log records


class OneLineFormatter(logging.Formatter):
    """Writes a record as one line, whatever names it has; a traceback follows on its own lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return name_config(printable(super().formatMessage(record)))


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object: ``at``, ``level``, ``logger``, ``message``, ``thread``.

    An error also has its ``kind`` and ``where`` it happened, but not its text, which may have
    values.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        document: dict[str, Any] = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": name_config(record.getMessage()),
            "thread": record.threadName,
        }
        if record.exc_info and record.exc_info[0] is not None:
            document["kind"] = record.exc_info[0].__name__
            document["where"] = "".join(traceback.format_tb(record.exc_info[2]))
        return json.dumps(document, ensure_ascii=False)


LOG_FORMATS: dict[str, logging.Formatter] = {
    "text": OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    "json": JsonFormatter(),
}
"""The formatters for the values of ``--log-format``."""
