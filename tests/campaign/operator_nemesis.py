"""Does what operators do, too: log and state are put back, a log is not mounted, tables are left
out, tables are made.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from tests.campaign.backups import LOG, STATE, Backup
from tests.campaign.hosts import Host
from tests.campaign.nemesis import SEEN_S, until
from tests.campaign.pipeline_nemesis import PipelineNemesis
from tests.campaign.witness import APPEND
from tests.e2e.history_restores import ALL_TABLES, UNMOUNTED
from tests.support.oracle.history import HistoryError

IN_FLIGHT_S = 1.0
"""What a killed capture had sent has arrived by then."""
REFUSED_S = 60.0
OPERATOR_KINDS = {
    "restore the log": "both captures end, and the log is put back as it was some seconds ago",
    "restore the state": "the same with the state",
    "restore both": "the same with log and state",
    "unmount the log": "a host has an empty directory where the log should be: it must not lead",
    "leave tables out": "a capture leads with half of the tables, and is killed after its first "
    "append",
    "create a table": "with rows from its first moment on, with `snapshot: no_data`",
}


class Operated(Protocol):
    """What a run knows of operators' faults, and does for them."""

    def live(self) -> None:
        """Wait until more is captured."""
        ...

    def restore(self, backup: Backup, parts: tuple[str, ...]) -> int:
        """Put back; where the log ended before. No capture runs."""
        ...

    def check_refused(self, ahead: int) -> None: ...

    def log_end(self) -> int: ...

    def split_tables(self) -> tuple[list[str], list[str]]: ...

    def leave_out(self, tables: list[str], begin: int) -> None:
        """Since that offset, until where the log ends now."""
        ...

    def make_table(self) -> None: ...


class OperatorNemesis(PipelineNemesis):
    """See `PipelineNemesis`. ``kinds`` may be of `OPERATOR_KINDS`, too; ``directory``: for copies.
    Before one strikes, what is away is given back.
    """

    def __init__(self, run: Operated, directory: Path, *rest: Any) -> None:
        super().__init__(*rest)
        self._run = run
        self._directory = directory

    def _restore_the_log(self) -> bool:
        return self._restore(LOG)

    def _restore_the_state(self) -> bool:
        return self._restore(STATE)

    def _restore_both(self) -> bool:
        return self._restore(LOG, STATE)

    def _restore(self, *parts: str) -> bool:
        self.heal()
        self._note(f"restore {' and '.join(parts)}: a copy is made")
        self._stop_captures()
        copy = self._directory / f"backup-{time.monotonic_ns()}"
        backup = Backup(self._place, self._config, copy)
        self._start_captures()
        self._run.live()
        self._stop_captures()
        ahead = self._run.restore(backup, parts)
        self._note(f"it is put back, the log ended at {ahead}, and ends at {self._run.log_end()}")
        self._start_captures()
        self._run.live()
        if LOG in parts:
            self._run.check_refused(ahead)
        return True

    def _unmount_the_log(self) -> bool:
        """Struck is only what had the lease, or would have: the other one is killed meanwhile."""
        self.heal()
        host = self._leading()
        if host is None or not self._place.on_disk:
            return False
        other = next(one for one in self._hosts if one is not host)
        empty = host.directory / f"unmounted-{time.monotonic_ns()}"
        empty.mkdir()
        self._note(f"{host.name} finds an empty directory where the log should be")
        host.kill()
        host.start({str(self._place.files()): str(empty)})
        other.kill()
        assert host.capture is not None
        code = host.capture.wait(REFUSED_S)
        if code != 2 or UNMOUNTED not in host.capture.tail:
            raise HistoryError(f"{host.capture.tail}\ncapture ended with {code} without a log")
        if any(empty.iterdir()):
            raise HistoryError("capture began another log where the log is not mounted")
        host.kill()
        seen = len(other.notes.so_far())
        other.start()
        led = until(lambda: _noted(other, seen, "leads"), SEEN_S)
        host.start()
        return led is not None

    def _leave_tables_out(self) -> bool:
        self.heal()
        kept, left = self._run.split_tables()
        host = self._rng.choice(self._hosts)
        self._note(f"{host.name} captures {', '.join(kept)} alone")
        self._stop_captures()
        begin, seen = self._run.log_end(), len(host.notes.so_far())
        host.start({ALL_TABLES: f"tables: {kept}"})
        appended = until(lambda: _noted(host, seen, "runs", APPEND), SEEN_S)
        host.kill()
        time.sleep(IN_FLIGHT_S)
        self._run.leave_out(left, begin)
        self._note(f"from {begin} to {self._run.log_end()}")
        self._start_captures()
        return appended is not None

    def _create_a_table(self) -> bool:
        self._note("create a table")
        self._run.make_table()
        return True

    def _stop_captures(self) -> None:
        for host in self._hosts:
            host.kill()
        time.sleep(IN_FLIGHT_S)

    def _start_captures(self) -> None:
        for host in self._hosts:
            host.start()


def _noted(host: Host, seen: int, *whats: str) -> bool | None:
    """Has it noted all of that, in this order, behind what it had noted before?"""
    wanted = list(whats)
    for note in host.notes.so_far()[seen:]:
        if wanted and note.what == wanted[0]:
            del wanted[0]
    return None if wanted else True
