"""Maintains the event log and the state of a leading capture, and checks its source."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from tidelog.app.sources.keys import discard_unused
from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.config import Config
from tidelog.control.mailbox import Mailbox
from tidelog.errors import ConsumerFileCorruptError, StorageError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.model.option_values import is_url
from tidelog.ports import StateStore
from tidelog.sources.findings import Finding
from tidelog.system.processes import unix_ms

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
        """Run one round. Raises StorageError, of a directory. A damaged file of a consumer stops
        retention alone, and `tidelog status` names it.
        """
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
            except ConsumerFileCorruptError as error:
                self._due_at = now + AT_LEAST_EVERY_S if self._on_object_store else now
                logger.warning("maintenance: %s", error)
            except StorageError as error:
                if not self._on_object_store:
                    raise
                # Appends find out whether the store is unavailable: this round waits.
                logger.warning("maintenance: %s", error)
        if now >= self._delete_at:
            self._delete_old_state()
            self._delete_at = now + DELETE_EVERY_S

    def _delete_old_state(self) -> None:
        now_ms = unix_ms()
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


# The checks of `tidelog check`, repeated while capture leads.

BEGIN_AFTER_S: Final = 2.0
"""What capture creates at its start, as its slot and publication, exists then."""
AGAIN_AFTER_S: Final = 5.0
"""Errors are reported if two checks find them: one may fall into a failover or a table change."""
EVERY_S: Final = 3600.0
EVERY_S_WITH_ERRORS: Final = 15.0
"""What somebody has fixed must not be reported for long."""
MAX_TIME_SHARE: Final = 0.001
MAX_TIME_SHARE_WITH_ERRORS: Final = 0.02
"""The greatest share of time for checks: with thousands of tables one takes many seconds."""
JOIN_S: Final = 1.0


class SourceCheck:
    """Checks the source as `tidelog check` does, in a thread that nothing waits for.

    One for all leaderships of a process: a lost connection is no reason to check again.

    Args:
        check: `tidelog.app.sources.kinds.SourceKind.check`, of any kind of source.
    """

    def __init__(self, check: Callable[[], Sequence[Finding]]) -> None:
        self._check = check
        self._errors: tuple[Finding, ...] = ()
        self._checked: dict[str, Any] | None = None
        self._due_at = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start, because this process leads."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=[self._stopped], name="tidelog-source-check", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Stop after the release, because it leads no more: a check may take another second."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def summary(self) -> dict[str, Any]:
        """Return errors for the status document (``check``, ``message``, ``fix``), and when the
        source was checked, with how many findings of each level.
        """
        errors = [
            {"check": each.name, "message": each.message, "fix": each.remedy}
            for each in self._errors
        ]
        return {"check_errors": errors, "source_checked": self._checked}

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(max(BEGIN_AFTER_S, self._due_at - time.monotonic())):
            begun = time.monotonic()
            errors = self._find_errors()
            took_s = time.monotonic() - begun
            if errors and not ended.wait(AGAIN_AFTER_S):
                names = {each.name for each in errors}
                again = self._find_errors()
                errors = again and [each for each in again if each.name in names]
            if ended.is_set():
                return
            if errors is not None:
                self._report(errors)
            every_s, share = EVERY_S, MAX_TIME_SHARE
            if self._errors:
                every_s, share = EVERY_S_WITH_ERRORS, MAX_TIME_SHARE_WITH_ERRORS
            self._due_at = time.monotonic() + max(every_s, took_s / share)

    def _find_errors(self) -> list[Finding] | None:
        """Return the errors; None: the check failed, and earlier results stay valid."""
        try:
            findings = self._check()
        except Exception as error:  # noqa: BLE001 - capture runs on without
            # Its text may contain anything.
            logger.warning("the source could not be checked (%s)", type(error).__name__)
            return None
        errors = [each for each in findings if each.level == "error"]
        if any(each.name == "connection" for each in errors):
            return None  # capture reports that itself
        counts = Counter(str(each.level) for each in findings)
        self._checked = {"at_ms": unix_ms(), "counts": dict(counts)}
        return errors

    def _report(self, errors: Sequence[Finding]) -> None:
        known = {(each.name, each.message) for each in self._errors}
        now = {(each.name, each.message) for each in errors}
        for each in errors:
            if (each.name, each.message) not in known:
                fix = " ".join(each.remedy.split())
                logger.warning(
                    "check finds an error in %s: %s%s", each.name, each.message, fix and f"; {fix}"
                )
        for name, message in sorted(known - now):
            logger.info("over: check finds an error in %s: %s", name, message)
        self._errors = tuple(errors)
