"""Ends a command: by a signal, or with a message and exit code after an error."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidelog.cli import terminal
from tidelog.errors import Policy, TidelogError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

before_exit: list[Callable[[], None]] = []
"""Functions that restore the terminal when a process ends without unwinding."""


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; the second one ends the process at
    once.
    """
    stop = threading.Event()

    def request(number: int, frame: object) -> None:
        if stop.is_set():
            for restore in before_exit:
                restore()
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


_ADVICE = {
    Policy.RETRY: "this may pass: try again",
    Policy.VOID: "this may pass: try again",
    Policy.RESTART: "start it again; it resumes after the last durable change",
}


def exit_code_of(error: BaseException, *, as_json: bool = False) -> int:
    """Print the error (with ``--json`` also as JSON) and return its exit code."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, TidelogError):
        message, code = str(error), error.exit_code
        advice = _ADVICE.get(error.policy) if code == EXIT_FAILED else None
        terminal.print_error(f"{message} ({advice})" if advice else message)
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
        terminal.print_error(f"{message}; please report it with what follows\n{where}")
    if as_json:
        terminal.emit({"error": {"kind": type(error).__name__, "message": message}})
    return code
