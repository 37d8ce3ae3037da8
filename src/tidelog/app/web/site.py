"""One Tidelog as the page shows it: what it reads, and the commands that it gives."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, Final

from tidelog.app.dumps.plan import plan
from tidelog.app.overview import Overview, overview
from tidelog.app.overview.reader import StatusReader
from tidelog.app.schema_versions import schemas
from tidelog.app.web import audit
from tidelog.app.web.history import SAMPLE_S, History
from tidelog.app.web.settings import settings_of
from tidelog.config import Config
from tidelog.control.commands import Command
from tidelog.control.mailbox import Mailbox, Outcome
from tidelog.errors import TidelogError, UsageError
from tidelog.state.opening import look_every_s, open_state

logger = logging.getLogger(__name__)

READ_EVERY_S: Final = 1.0
LOG_EVERY_S: Final = 2.0
WAIT_S: Final = 5.0
_SAY_AGAIN_S: Final = 60.0


class Site:
    """Thread-safe. ``name``: what it is called where several are on one page."""

    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        self._config = config
        self._lock = threading.Lock()
        self._planning = threading.Lock()
        self._reader: StatusReader | None = None
        self._found: Overview | None = None
        self._read_at = float("-inf")
        self._every_s = max(READ_EVERY_S, 2 * look_every_s(config.state.place))
        self._history = History()
        self._loaded = False
        self._closed = threading.Event()
        self._sampling: threading.Thread | None = None

    @property
    def kind(self) -> str:
        """What the source is."""
        return self._config.source.kind

    def start(self) -> None:
        """Begin to remember throughput and lag."""
        self._sampling = threading.Thread(
            target=self._sample, name="tidelog-web-history", daemon=True
        )
        self._sampling.start()

    def close(self) -> None:
        self._closed.set()
        if self._sampling is not None:
            self._sampling.join(2 * SAMPLE_S)
        with self._lock:
            self._drop_reader()

    def look(self) -> Overview:
        """The overview, at most a second old: anybody who looks costs no more than the first.

        Raises:
            TidelogError: state store or event log can't be read.
        """
        with self._lock:
            now = time.monotonic()
            if self._found is not None and now < self._read_at + self._every_s:
                return self._found
            try:
                if self._reader is None:
                    self._reader = StatusReader(self._config, log_every_s=LOG_EVERY_S)
                found = self._reader.read()
            except BaseException:
                self._found = None
                self._drop_reader()
                raise
            self._found, self._read_at = overview(found, time.time_ns() // 1_000_000), now
            return self._found

    def _drop_reader(self) -> None:
        if self._reader is not None:
            with contextlib.suppress(TidelogError, OSError):
                self._reader.__exit__()
            self._reader = None

    # ------------------------------------------------------------ on demand

    def history(self) -> dict[str, Any]:
        """What `History` remembers."""
        return self._history.to_json()

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
        with contextlib.closing(open_state(self._config.state.place)) as state:
            return audit.entries(state)

    def send(self, command: Command, who: dict[str, str], about: str) -> dict[str, Any]:
        """Give the command to whoever leads, and wait a little for what becomes of it. It is noted
        before it is given: nothing is done that is not on the list.
        """
        with contextlib.closing(open_state(self._config.state.place)) as state:
            audit.note(state, **who, action=command.type, about=about)
            mailbox = Mailbox(state)
            command_id = mailbox.send(command)
            outcome = mailbox.wait(command_id, WAIT_S)
        if outcome is None:
            return {"state": "waiting", **Outcome(command_id, {}).to_json()}
        return {"state": "done" if outcome.error is None else "failed", **outcome.to_json()}

    # ------------------------------------------------------------ history

    def _sample(self) -> None:
        """Capture goes on whatever happens here."""
        told_at = float("-inf")
        while not self._closed.wait(max(SAMPLE_S, self._every_s)):
            try:
                complete = self._history.note(self.look())
                if complete or not self._loaded:
                    self._keep(complete)
            except (TidelogError, OSError) as error:
                if time.monotonic() > told_at + _SAY_AGAIN_S:
                    told_at = time.monotonic()
                    logger.warning("the web page's history lacks what is now: %s", error)

    def _keep(self, complete: bool) -> None:
        with contextlib.closing(open_state(self._config.state.place)) as state:
            self._history.load(state)
            self._loaded = True
            if complete and self.leads:
                self._history.store(state)

    leads: bool = False
    """Does the capture of this process lead? It alone stores the history."""
