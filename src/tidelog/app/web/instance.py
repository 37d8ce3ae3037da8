"""One Tidelog as the page shows it: what it reads, and the commands that it gives."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, Final

from tidelog.app.dumps.plan import plan
from tidelog.app.overview import Overview
from tidelog.app.schema_versions import schemas
from tidelog.app.web import audit_log
from tidelog.app.web.checks import Checks
from tidelog.app.web.history import History
from tidelog.app.web.poller import Poller, PollResult
from tidelog.app.web.settings import settings_of
from tidelog.config import Config
from tidelog.control.commands import Command
from tidelog.control.mailbox import Mailbox, Outcome
from tidelog.errors import TidelogError, UsageError
from tidelog.state.opening import open_state
from tidelog.state.read_only import ReadOnlyStateStore

logger = logging.getLogger(__name__)

WAIT_S: Final = 5.0


class Instance:
    """Thread-safe. ``name``: what it is called where several are on one page."""

    leads: bool = False
    """Does the capture of this process lead? It alone stores the history."""

    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        self._config = config
        self._planning = threading.Lock()
        self._history = History()
        self._loaded = False
        self._looks = Poller(config, self._keep)
        self._checks = Checks(config)

    @property
    def kind(self) -> str:
        """What the source is."""
        return self._config.source.kind

    def start(self) -> None:
        """Begin to look, and to remember throughput and lag."""
        self._looks.start()

    def close(self) -> None:
        self._looks.close()

    def look(self) -> PollResult | None:
        """The overview, a second old or two: anybody who looks costs no more than the first. Does
        not wait; None: nothing is known yet.
        """
        return self._looks.latest()

    # ------------------------------------------------------------ on demand

    def history(self) -> dict[str, Any]:
        """What `History` remembers."""
        return self._history.to_json()

    def activity(self) -> dict[str, Any] | None:
        """Operations by table and kind over the last day; None: none are stored yet."""
        return self._looks.activity()

    def results(self) -> dict[str, Any]:
        """What `verify` and `check` found last: when, and what differed or was not in order."""
        kept = self._looks.results()
        return {"verified": kept["verified"], "check": self._checks.latest(kept["checked"])}

    def check(self) -> None:
        """Begin to check; `results` has what it finds. Raises UsageError while another one runs."""
        self._checks.begin()

    def settings(self) -> list[dict[str, str]]:
        """The effective configuration."""
        return settings_of(self._config)

    def schema(self, table: str) -> dict[str, Any]:
        """The versions of one table. Raises UsageError if the event log does not know it."""
        return schemas(self._config, table=table)

    def plan(self, tables: list[str]) -> dict[str, Any]:
        """What a dump of these would read. One at a time: it reads samples of the tables."""
        if not self._planning.acquire(blocking=False):
            raise UsageError("somebody looks at a plan already; wait until that is there")
        try:
            return plan(self._config, tables=tables)
        finally:
            self._planning.release()

    def audit(self) -> list[dict[str, Any]]:
        """Who did what, the newest first."""
        with contextlib.closing(ReadOnlyStateStore(self._config.state.place)) as state:
            return audit_log.entries(state)

    def send(self, command: Command, who: dict[str, str], about: str) -> dict[str, Any]:
        """Give the command to whoever leads, and wait a little for what becomes of it. It is noted
        before it is given: nothing is done that is not on the list. What became of it is added.
        """
        with contextlib.closing(open_state(self._config.state.place)) as state:
            entry = audit_log.note(state, **who, action=command.type, about=about)
            mailbox = Mailbox(state)
            command_id = mailbox.send(command)
            outcome = mailbox.wait(command_id, WAIT_S)
            if outcome is None:
                told, result = "waiting", audit_log.Result.GIVEN
            elif outcome.error is None:
                told, result = "done", audit_log.Result.DONE
            else:
                told, result = "failed", audit_log.Result.REFUSED
            try:
                audit_log.finish(state, entry, result)
            except TidelogError as error:  # it is given all the same
                logger.warning("what became of an action of the web page is not noted: %s", error)
        return {"state": told, **(outcome or Outcome(command_id, {})).to_json()}

    # ------------------------------------------------------------ history

    def _keep(self, found: Overview) -> None:
        complete = self._history.note(found)
        if self._loaded and not complete:
            return
        with contextlib.closing(ReadOnlyStateStore(self._config.state.place)) as state:
            self._history.load(state)
            self._loaded = True
            if complete and self.leads:
                self._history.store(state)
