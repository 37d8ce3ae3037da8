"""Sends commands to the leading capture when keys are pressed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.cli.watch.picture import CONFIRMS, Picture
from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.config import Config
    from tidelog.control.commands import Command

_TIMEOUT_S: Final = 5.0
_MOST_READERS: Final = 64


class KeyCommands:
    """Sends commands in a thread beside the view; one at a time, each after a confirmation."""

    def __init__(self, config: Config, config_file: str) -> None:
        self.config_file = config_file
        self._config = config
        self._sending: threading.Thread | None = None
        self._pending: tuple[Command, str] | None = None
        """What `View.question` is about: the command, and what to show when it is done."""

    def act(self, keys: Sequence[str], shown: Picture) -> None:
        """Act on pressed keys; ``shown`` has the selected dump, and shows question and result."""
        for key in keys:
            if self._sending is not None and self._sending.is_alive():
                return
            if key == CONFIRMS and shown.view.question and self._pending is not None:
                shown.view.question = ""
                self._send(shown, *self._pending)
            elif key == "p":
                self._pause(shown)
            elif key in ("+", "-"):
                self._change_speed(shown, 2.0 if key == "+" else 0.5)

    def _pause(self, shown: Picture) -> None:
        from tidelog.cli.watch.dumps import unfinished_dumps
        from tidelog.control.commands import PauseSnapshot, ResumeSnapshot

        dumps = unfinished_dumps(shown.history.documents[-1]) if shown.history.documents else []
        if not dumps:
            shown.view.note = "no dump runs that could be paused"
            return
        dump = dumps[min(shown.view.dump, len(dumps) - 1)]
        name = dump["dump_id"]
        if dump["status"] == "paused":
            resume = ResumeSnapshot(dump_id=name)
            self._ask(shown, f"Resume dump {name}?", resume, f"dump {name} is resumed")
        else:
            pause = PauseSnapshot(dump_id=name)
            self._ask(shown, f"Pause dump {name}?", pause, f"dump {name} is paused")

    def _change_speed(self, shown: Picture, factor: float) -> None:
        from tidelog.control.commands import SetDumpOptions

        status = shown.history.documents[-1] if shown.history.documents else {}
        now = (status.get("dump_options") or {}).get("parallelism")
        if now is None:
            return
        wanted = max(1, min(_MOST_READERS, int(now * factor)))
        if wanted == now:
            shown.view.note = (
                f"parallelism is {now}, and can't be {'more' if factor > 1 else 'less'}"
            )
            return
        question = f"Set parallelism from {now} to {wanted}?"
        command = SetDumpOptions(parallelism=wanted)
        self._ask(shown, question, command, f"parallelism is {wanted} now")

    def _ask(self, shown: Picture, question: str, command: Command, done: str) -> None:
        self._pending = command, done
        shown.view.question = f"{question}  y: yes  any other key: no"

    def _send(self, shown: Picture, command: Command, done: str) -> None:
        def send() -> None:
            from tidelog import app

            try:
                result = app.send_command(self._config, command, timeout_s=_TIMEOUT_S)
            except TidelogError as error:
                shown.view.note = str(error)
                return
            waiting = "no capture has handled it yet; the next leader will"
            outcome = waiting if result["state"] == "waiting" else done
            shown.view.note = result["error"] or outcome

        shown.view.note = "sent…"
        self._sending = threading.Thread(target=send, daemon=True)
        self._sending.start()
