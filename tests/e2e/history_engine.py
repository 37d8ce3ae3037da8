"""A history whose captures are engines in a program (`tests.e2e.engine_program`): what the program
was given is held against the event log, and what it made of that against the source.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.engine_program import NAME, PROCESSES, STORE
from tests.e2e.history_processes import Collector
from tests.e2e.history_run import SETTLE_S, Run
from tests.support.engines import committed
from tests.support.oracle.history import HistoryError, SourceHistory
from tests.support.oracle.values import Change

from tidelog.config import Config, load_config

BEGIN_S = 60.0
"""A loaded machine is no failure."""
_OPS = {"I": "c", "U": "u", "D": "d", "T": "t", "r": "r", "a": "d"}


@dataclass(frozen=True, slots=True)
class Given:
    """A line of the program's journal."""

    life: str
    version: int
    op: str
    table: str
    key: str | None
    seq: int | None


class EngineRun(Run):
    """See `Run`. ``spec.engine``: the program's form."""

    amid = 0
    """Kills of a program that had begun to apply events."""
    _committed = -1

    def __init__(self, *made_from: Any) -> None:
        super().__init__(*made_from)
        self._killed: set[str] = set()

    def _disturb(self) -> None:
        super()._disturb()
        for _attempt in range(self.spec.kills_amid if self.spec.faults else 0):
            if self.amid < self.spec.kills_amid:
                self._strike("kill")

    def _strike(self, fault: str) -> None:
        """Where it kills, it waits until the program applies events: some always come."""
        deadline = time.monotonic() + BEGIN_S
        life = ""
        while fault == "kill" and not life and time.monotonic() < deadline:
            time.sleep(0.005)
            self.commander.turn()
            self._watch_processes()
            self._look_at_the_offset()
            life = _newest_life(self.directory / STORE)
            life = "" if life in self._killed else life
        if life:
            self.amid += 1
            self._killed.add(life)
        super()._strike(fault)

    def _look_at_the_offset(self) -> None:
        """What was committed stays so, whoever is killed."""
        config = load_config(self.config_file, {})
        offset = committed(config.log.path, NAME) or 0
        if offset < self._committed:
            raise HistoryError(f"the offset went back from {self._committed} to {offset}")
        self._committed = offset

    def _settle(self, config: Config, collector: Collector) -> None:
        super()._settle(config, collector)
        deadline = time.monotonic() + SETTLE_S
        while True:
            last = max((r.offset for r in collector.records if r.op in _OPS), default=-1)
            if (committed(config.log.path, NAME) or 0) > last:
                return
            if time.monotonic() > deadline:
                tails = "\n".join(capture.tail for capture in self.captures)
                raise HistoryError(f"the program does not come to the log's end\n{tails}")
            time.sleep(0.1)
            self._watch_processes()

    def _check(self, config: Config, collector: Collector) -> SourceHistory:
        history = super()._check(config, collector)
        journal, seqs = _read(self.directory / STORE)
        form = self.spec.engine
        lives = len({given.life for given in journal})
        most = check_repeats(journal)
        again = check_journal(journal, expected(collector.records), form)
        self._note(
            f"{len(journal)} events in {lives} lives, {again} of them again, "
            f"at most {most} records at once; {self.amid} killed amid events"
        )
        for table in self.source.tables.values() if not form.startswith("any") else ():
            rows = self.source.rows(table)
            theirs = sorted(int(row["seq"] or 0) for row in rows.values())
            if seqs.get(table.name, []) != theirs:
                ours = set(seqs.get(table.name, []))
                raise HistoryError(
                    f"the program's {table.name} is not the source's: it lacks "
                    f"{sorted(set(theirs) - ours)[:5]}, has {sorted(ours - set(theirs))[:5]}"
                )
        return history


def _newest_life(path: Path) -> str:
    """The life that the last line of the journal is of; empty: there is none."""
    if not path.exists():
        return ""
    connection = sqlite3.connect(path)
    try:
        found = connection.execute("SELECT life FROM journal ORDER BY n DESC LIMIT 1").fetchone()
    except sqlite3.OperationalError:  # no table as yet
        return ""
    finally:
        connection.close()
    return str(found[0]) if found else ""


def _read(path: Path) -> tuple[list[Given], dict[str, list[int]]]:
    connection = sqlite3.connect(path)
    try:
        journal = connection.execute(
            "SELECT life, version, op, tbl, key, seq FROM journal ORDER BY n"
        ).fetchall()
        seqs: dict[str, list[int]] = {}
        for table, seq in connection.execute("SELECT tbl, seq FROM rows ORDER BY tbl, seq"):
            seqs.setdefault(table, []).append(seq)
    finally:
        connection.close()
    return [Given(*row) for row in journal], seqs


def expected(records: Sequence[Change]) -> list[tuple[int, str, int | None]]:
    """Version, op and sequence number of every event that the log's records are."""
    found: list[tuple[int, str, int | None]] = []
    for record in records:
        if record.op not in _OPS:
            continue
        seq = None if record.new is None else int(record.new["seq"] or 0)
        if record.op == "U" and record.old is not None and record.old_key != record.new_key:
            found += [(record.offset, "d", None), (record.offset, "c", seq)]
        else:
            found.append((record.offset, _OPS[record.op], seq))
    return found


def check_journal(
    journal: Sequence[Given], events: Sequence[tuple[int, str, int | None]], form: str
) -> int:
    """Was every event of the log given, in the order that the form promises? How many came again.

    Raises HistoryError, which names the first that was not.
    """
    place = {(version, op): at for at, (version, op, _) in enumerate(events)}
    told = {(version, op): seq for version, op, seq in events}
    for each in journal:
        which = each.version, each.op
        if which not in place:
            raise HistoryError(f"{each} is not among the log's events")
        if told[which] != each.seq:
            raise HistoryError(f"{each} has another row than the log, with {told[which]}")
    lost = place.keys() - {(each.version, each.op) for each in journal}
    if lost:
        raise HistoryError(f"{len(lost)} of {len(place)} events were lost, first {min(lost)}")
    again = len(journal) - len(place)
    mode = form.removesuffix(PROCESSES)
    if mode == "once" and again:
        raise HistoryError(f"{again} events were applied twice")
    if mode in ("once", "batches", "single"):
        _check_total(journal, place)
    elif mode == "key":
        _check_by_key(journal, place)
    return again


def check_repeats(journal: Sequence[Given]) -> int:
    """After a kill no more comes again than a batch: an offset is committed behind each. How many
    records did at most. A life ends with its batch size.
    """
    numbers = {version: at for at, version in enumerate(sorted({g.version for g in journal}))}
    lives: dict[str, set[int]] = {}
    for each in journal:
        lives.setdefault(each.life, set()).add(numbers[each.version])
    done: set[int] = set()
    least = most = 0
    for life, given in lives.items():
        if min(given) < least:
            raise HistoryError(f"the life {life} begins more than a batch behind the one before")
        most = max(most, len(given & done))
        least = max(least, max(given) + 1 - int(life.rpartition(" ")[2]))
        done |= given
    return most


def _check_total(journal: Sequence[Given], place: dict[tuple[int, str], int]) -> None:
    """Each life is a piece of the log without a gap, and none begins behind what was done."""
    last: Given | None = None
    done = -1
    for each in journal:
        at = place[each.version, each.op]
        if last is not None and each.life == last.life:
            if at != place[last.version, last.op] + 1:
                raise HistoryError(f"{each} follows {last}")
        elif at > done + 1:
            raise HistoryError(f"a life begins with {each}, behind what was not done")
        last, done = each, max(done, at)


def _check_by_key(journal: Sequence[Given], place: dict[tuple[int, str], int]) -> None:
    """In each life no key goes back, and a truncate stands where the log has it."""
    newest: dict[tuple[str, str, str | None], int] = {}
    for each in journal:
        at = place[each.version, each.op]
        table = each.life, each.table, None
        key = each.life, each.table, each.key
        before = max(newest.get(key, -1), newest.get(table, -1))
        if each.op == "t":
            of_table = [n for (life, name, _), n in newest.items() if (life, name) == table[:2]]
            before = max(of_table, default=-1)
        if at <= before:
            raise HistoryError(f"{each} stands behind a later event of its key")
        newest[key] = at
