"""Maintains the event log and the state of a leading capture."""

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
DELETE_EVERY_S: Final = 600.0
"""What is deleted is a week old."""


class LogMaintenanceTask:
    """Rolls up segments, applies retention, quarantines strays, deletes old state.

    Used by one thread. On an object store, where each round is some twenty requests that cost
    money, a log that hardly grows is maintained seldom.

    Args:
        config: the configuration of the capture.
        log: the event log.
        maintenance: its maintenance; it remembers the segments' contents from round to round.
        state: the store of mailbox and key sets.
        mailbox: the mailbox whose old outcomes are deleted.
        coordinator: knows which key sets are in use.
        segments: returns the number of segments appended so far.
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
        self._due_at = self._delete_at = 0.0
        self._due_at_segments = 0

    def act(self) -> None:
        """Run one round. Raises StorageError, of a directory."""
        now = time.monotonic()
        if (
            not self._on_object_store
            or now >= self._due_at
            or self._segments() >= self._due_at_segments
        ):
            try:
                self._maintain()
                self._due_at = now + AT_LEAST_EVERY_S
                self._due_at_segments = self._segments() + WORTHWHILE_SEGMENTS
            except StorageError as error:
                if not self._on_object_store:
                    raise
                # Appends find out whether the store is unavailable: this round waits.
                logger.warning("maintenance: %s", error)
        if now >= self._delete_at:
            self._delete_old_state()
            self._delete_at = now + DELETE_EVERY_S

    def _delete_old_state(self) -> None:
        now_ms = int(time.time() * 1000)
        self._mailbox.forget_old_outcomes(now_ms)
        unfinished = [dump for dump in self._coordinator.dumps() if not dump.finished]
        self._coordinator.flush()  # ended dumps need their keys until their end is stored
        used = {table.key_set for dump in unfinished for table in dump.tables if table.key_set}
        discard_unused(self._state, used, now_ms)

    def _maintain(self) -> None:
        log = self._config.log
        consumers = Consumers(self._log.storage)
        if self._config.outputs and not consumers.all():
            # The pipeline has not run yet: retention must keep what it will need.
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
