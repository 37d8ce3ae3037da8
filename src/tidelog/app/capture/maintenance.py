"""The maintenance that a leading capture does on its event log and state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from tidelog.app.dumps.keys import discard_unused
from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.config import Config
from tidelog.control.mailbox import Mailbox
from tidelog.errors import StorageError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.model.log_locations import is_url
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)

WORTHWHILE_SEGMENTS: Final = 20
AT_LEAST_EVERY_S: Final = 600.0
FORGET_EVERY_S: Final = 600.0
"""What is forgotten is a week old."""


class LogMaintenanceTask:
    """Rolls up, retains, puts strays aside, and forgets. Used by one thread.

    On an object store, where each round is some twenty requests that somebody pays for, a log that
    hardly grows is looked after seldom.

    Args:
        config: of the capture.
        log: the event log.
        maintenance: of it; it remembers what the segments hold from round to round.
        state: of mailbox and key sets.
        mailbox: whose outcomes are forgotten.
        coordinator: knows which key sets are in use.
        segments: how many were appended so far.
    """

    def __init__(
        self,
        config: Config,
        log: EventLog,
        maintenance: EventLogMaintenance,
        *,
        state: StateStore,
        mailbox: Mailbox,
        coordinator: DumpCoordinator,
        segments: Callable[[], int],
    ) -> None:
        self._config = config
        self._log = log
        self._maintenance = maintenance
        self._state = state
        self._mailbox = mailbox
        self._coordinator = coordinator
        self._segments = segments
        self._on_object_store = is_url(config.log.path)
        self._due_at = self._forget_at = 0.0
        self._due_from = 0

    def act(self) -> None:
        """One round. Raises StorageError, of a directory."""
        now = time.monotonic()
        if not self._on_object_store or now >= self._due_at or self._segments() >= self._due_from:
            try:
                self._maintain()
                self._due_at = now + AT_LEAST_EVERY_S
                self._due_from = self._segments() + WORTHWHILE_SEGMENTS
            except StorageError as error:
                if not self._on_object_store:
                    raise
                # Appends are what tells whether the store is away: this round waits.
                logger.warning("maintenance: %s", error)
        if now >= self._forget_at:
            self._forget()
            self._forget_at = now + FORGET_EVERY_S

    def _forget(self) -> None:
        now_ms = int(time.time() * 1000)
        self._mailbox.forget_old_outcomes(now_ms)
        unfinished = [dump for dump in self._coordinator.dumps() if not dump.finished]
        self._coordinator.flush()  # those that ended need their keys until that is stored
        used = {table.key_set for dump in unfinished for table in dump.tables if table.key_set}
        discard_unused(self._state, used, now_ms)

    def _maintain(self) -> None:
        log = self._config.log
        consumers = Consumers(self._log.storage)
        if self._config.outputs and not consumers.all():
            # The pipeline has not run yet: what it will need must wait for it.
            consumers.register(self._config.pipeline.name, self._log.head_offset)
        swept = self._maintenance.quarantine_strays()
        for name in swept.quarantined:
            logger.warning("segment %s was not on the log's chain and is in quarantine", name)
        if log.rollup_bytes:
            self._maintenance.rollup(target_bytes=log.rollup_bytes)
        if log.retention is not None:
            cap = log.retention_cap
            self._maintenance.retain(
                log.retention.total_seconds(),
                hard_cap_age_s=None if cap is None else cap.total_seconds(),
            )
