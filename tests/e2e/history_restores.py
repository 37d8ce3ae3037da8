"""Faults of operators, for the history oracle: log, state or both are put back from an older copy,
the log's directory is not mounted, tables are left out for a while, tables are created.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from tests.e2e.history_processes import Collector
from tests.e2e.history_run import Run
from tests.e2e.history_spec import Spec
from tests.support.oracle.history import HistoryError, LeftOut, SourceHistory, TableDump
from tests.support.oracle.log import read_event_log
from tests.support.oracle.source import OracleSource

from tidelog.app.base.log_location import event_log_path
from tidelog.capture.dumps.store import DUMP_PREFIX
from tidelog.config import Config, load_config
from tidelog.errors import OffsetAheadError
from tidelog.eventlog.reader import EventLog
from tidelog.state.opening import open_state

RESTORES = ("log", "state", "both")
OPERATORS = (*(f"restore {what}" for what in RESTORES), "unmount", "leave tables out", "new table")
ALL_TABLES = "tables: ['app.*']"
NEW = "app.new_"
UNMOUNTED = "holds no event log, but the state store knows"
"""Says a capture that finds an empty place where the log should be."""
NOT_REFUSED = "of the log that was put back is not refused"
NOT_DUMPED = "was not dumped without a command, although the log lacks changes of it"
LIVE_S = 60.0
LIVE_RECORDS = 20


class OperatedRun(Run):
    """See `Run`. Knows what operators did, and judges accordingly."""

    _collector: Collector

    def __init__(self, spec: Spec, source: OracleSource, directory: Path) -> None:
        super().__init__(spec, source, directory)
        self.lost: list[tuple[int, int]] = []
        """Ranges of offsets whose records a restored log does not hold."""
        self._new_tables: dict[str, dict[int, int]] = {}
        self._to_be_dumped: list[tuple[Collection[str], int]] = []
        """Tables that have to be dumped without a command, from an offset on."""

    # ------------------------------------------------------------ what operators did

    def _restored(self, log: EventLog, ahead: int) -> int:
        """The log that ended at ``ahead`` was put back; where it ends now. To be called with the
        collector's lock. Raises HistoryError if readers that were ahead are not refused.
        """
        end = log.latest_offset()
        if not end < ahead:
            raise HistoryError("nothing was appended between copy and restore")
        self.lost.append((end, ahead))
        self.left_out = [
            replace(each, until=min(each.until, end)) for each in self.left_out if each.begin < end
        ]
        self._to_be_dumped = [each for each in self._to_be_dumped if each[1] < end]
        self._collector.rewind(end)
        return end

    def _differ(self, parts: Collection[str], end: int) -> None:
        """Log and state are of different times: all tables are dumped again."""
        if len(parts) == 1:
            self._to_be_dumped.append((tuple(self.source.tables), end))

    def _check_refused(self, log: EventLog, ahead: int) -> None:
        """A reader that stands where the log ended before it was put back is told so."""
        try:
            log.check_offsets(ahead)
        except OffsetAheadError:
            return
        raise HistoryError(f"a reader at {ahead} {NOT_REFUSED}")

    def _unfinished(self, config: Config) -> set[str]:
        """Dumps that the state does not know as done: they are read again, in part or wholly."""
        state = open_state(config.state.location)
        try:
            found = [state.get(key) for key in state.keys(DUMP_PREFIX)]
        finally:
            state.close()
        done = {d.value["dump_id"] for d in found if d and d.value["status"] == "completed"}
        mine = {f"d{number}" for number in range(self.commander.number)}
        return (mine | {chunk.dump_id for chunk in self._collector.chunks.values()}) - done

    def _leave_out(self, tables: Collection[str], begin: int, until: int) -> None:
        self.left_out.append(LeftOut(frozenset(tables), begin, until))
        self._to_be_dumped.append((tables, until))

    def _split_tables(self) -> tuple[list[str], list[str]]:
        """Those that a narrower configuration keeps, and those that it leaves out."""
        tables = sorted(self.source.tables)
        return tables[: len(tables) // 2], tables[len(tables) // 2 :]

    def _make_table(self) -> None:
        """With rows from its first moment on."""
        name = f"{NEW}{len(self._new_tables)}"
        self.source.run(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)")
        for number in range(40):
            self.source.run(f"INSERT INTO {name} VALUES ({number}, {number})")
        self.source.run(f"UPDATE {name} SET v = -1 WHERE id < 10")
        self.source.run(f"DELETE FROM {name} WHERE id >= 30")
        self._new_tables[name] = {key: -1 if key < 10 else key for key in range(30)}

    # ------------------------------------------------------------ the judge

    def _settle(self, config: Config, collector: Collector) -> None:
        super()._settle(config, collector)
        deadline = time.monotonic() + LIVE_S
        while wrong := self._new_tables_lack(config):
            if time.monotonic() > deadline:
                raise HistoryError(wrong)
            time.sleep(0.2)
            self._watch_processes()

    def _new_tables_lack(self, config: Config) -> str:
        if not self._new_tables:
            return ""
        log = EventLog.open(event_log_path(config))
        records = read_event_log(log, log.head_offset, log.latest_offset())
        for name, rows in self._new_tables.items():
            copy: dict[int, int] = {}
            for record in (each for each in records if each.table == name):
                if record.old_key is not None:
                    copy.pop(int(record.old_key[0] or 0), None)
                if record.new is not None:
                    copy[int(record.new["id"] or 0)] = int(record.new["v"] or 0)
            if copy != rows:
                return f"{name}: the log makes {len(copy)} rows of it, it has {len(rows)}"
        return ""

    def _check(self, config: Config, collector: Collector) -> SourceHistory:
        collector.drop(lambda table: table.startswith(NEW))
        issued = collector.forgotten & {record.offset for record in collector.records}
        if issued:
            raise HistoryError(f"{len(issued)} offsets were issued twice, as {min(issued)}")
        self._check_dumped(collector)
        return super()._check(config, collector)

    def _check_dumped(self, collector: Collector) -> None:
        """A dump that somebody asked for may make good what nobody else would have."""
        asked = {f"d{number}" for number in range(self.commander.number)}
        controls = [json.loads(each.payload) for each in collector.records if each.op == "c"]
        dumped = [
            (control["table"], control["first_offset"])
            for control in controls
            if control["type"] == "dump-completed" and control["dump_id"] not in asked
        ]
        for tables, begin in self._to_be_dumped:
            for name in tables:
                if not any(table == name and first >= begin for table, first in dumped):
                    raise HistoryError(f"{name} {NOT_DUMPED}, from the offset {begin} on")

    def _check_stable(self, config: Config, collector: Collector) -> None:
        if not self._new_tables:  # whose records were dropped
            super()._check_stable(config, collector)

    def _completed(self) -> Iterator[TableDump]:
        """Without those whose records a restored log does not hold."""
        for dump in super()._completed():
            if dump.table.startswith(NEW):
                continue
            places = (dump.first_offset, (dump.finalized_until or 0) - 1)
            if not any(end <= at < ahead for end, ahead in self.lost for at in places):
                yield dump


class RestoreRun(OperatedRun):
    """See `OperatedRun`. Each fault strikes once, in the order of the spec."""

    def __init__(self, spec: Spec, source: OracleSource, directory: Path) -> None:
        super().__init__(spec, source, directory)
        self.struck: list[str] = []
        self._log = directory / "log"

    def _write_config(self) -> Path:
        path = super()._write_config()
        mode = "when_needed"  # a slot that is ahead of a restored log is a gap
        if "new table" in self.spec.faults:
            mode = "no_data"
        path.write_text(path.read_text().replace(ALL_TABLES, f"{ALL_TABLES}, snapshot: {mode}"))
        return path

    def _await_capture(self, collector: Collector) -> None:
        super()._await_capture(collector)
        self._collector = collector
        for fault in self.spec.faults:
            self._live()
            self._note(f"fault {fault}")
            what = fault.removeprefix("restore ")
            if what in RESTORES:
                self._restore(what)
            else:
                getattr(self, "_" + fault.replace(" ", "_"))()
            self.struck.append(fault)
        self._live()

    def _disturb(self) -> None:
        """All of it was done."""

    # ------------------------------------------------------------ faults

    def _restore(self, what: str) -> None:
        saved = self.directory / f"saved-{len(self.struck)}"
        self._kill()
        shutil.copytree(self._log, saved / "log")
        for each in self.directory.glob("state.db*"):
            shutil.copy2(each, saved / each.name)
        self._launch()
        self._live()
        self.commander.dump("all")
        self._live()
        self._kill()
        collector = self._collector
        with collector.lock:
            ahead = EventLog.open(self._log).latest_offset()
            if what in ("log", "both"):
                shutil.rmtree(self._log)
                shutil.copytree(saved / "log", self._log)
                self._restored(EventLog.open(self._log), ahead)
            self._differ(("log", "state") if what == "both" else (what,), self._end())
            if what in ("state", "both"):
                for each in self.directory.glob("state.db*"):
                    each.unlink()
                for each in saved.glob("state.db*"):
                    shutil.copy2(each, self.directory / each.name)
                self.rolled_back |= self._unfinished(load_config(self.config_file, {}))
        self._launch()
        self._live()
        if what != "state":
            self._check_refused(EventLog.open(self._log), ahead)

    def _unmount(self) -> None:
        self._kill()
        away = self.directory / "away"
        with self._collector.lock:
            self._log.rename(away)
            refused = self._launch()
            code = refused.wait(LIVE_S)
            self.captures.remove(refused)
            if code != 2 or UNMOUNTED not in refused.tail:
                raise HistoryError(f"capture ended with {code} without a log\n{refused.tail}")
            if self._log.exists():
                raise HistoryError("capture began another log")
            away.rename(self._log)
        self._launch()

    def _leave_tables_out(self) -> None:
        kept, left = self._split_tables()
        config = self.config_file.read_text()
        self._kill()
        begin = EventLog.open(self._log).latest_offset()
        self.config_file.write_text(config.replace(ALL_TABLES, f"tables: {kept}"))
        self._launch()
        self._live()
        self._kill()
        until = EventLog.open(self._log).latest_offset()
        self._leave_out(left, begin, until)
        self.config_file.write_text(config)
        self._launch()

    def _new_table(self) -> None:
        self._make_table()
        self.commander.dump("all")

    def _end(self) -> int:
        return EventLog.open(self._log).latest_offset()

    def _kill(self) -> None:
        for capture in self.captures:
            capture.kill()
        self.captures.clear()

    def _live(self) -> None:
        """Until capture has appended more, and a second and more has passed: a status was told."""
        begun, count = time.monotonic(), self._collector.count
        while self._collector.count < count + LIVE_RECORDS or time.monotonic() < begun + 1.5:
            time.sleep(0.05)
            if self._collector.failure is not None:
                self._collector.stop()
            self._watch_processes()
            self.commander.turn()
            if time.monotonic() > begun + LIVE_S:
                raise HistoryError("\n".join(c.tail for c in self.captures) + "\nno records come")
