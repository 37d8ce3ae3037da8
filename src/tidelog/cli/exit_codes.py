"""How a command ends: by a signal, and with which message and exit code after an error."""

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
"""What gives a terminal back as it was, where a process ends without unwinding."""


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second one ends the process at once."""
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
    Policy.RESTART: "start it again; it goes on from what is durable",
}


def exit_code_of(error: BaseException, *, as_json: bool = False) -> int:
    """Tell people (and, with ``--json``, programs) about an error; the exit code it stands for."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, TidelogError):
        message, code = str(error), error.exit_code
        advice = _ADVICE.get(error.policy) if code == EXIT_FAILED else None
        terminal.complain(f"{message} ({advice})" if advice else message)
    else:
        # The exception's own text may hold cell values: show where it happened, not what it says.
        message, code = f"internal error ({type(error).__name__})", EXIT_FAILED
        # TIDELOG_DEBUG shows all, for a machine whose data may be seen.
        show_all = bool(os.environ.get("TIDELOG_DEBUG"))
        where = "".join(
            traceback.format_exception(error)
            if show_all
            else traceback.format_tb(error.__traceback__)
        )
        terminal.complain(f"{message}; please report it with what follows\n{where}")
    if as_json:
        terminal.emit({"error": {"kind": type(error).__name__, "message": message}})
    return code
