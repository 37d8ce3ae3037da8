"""Runs capture as processes against a real server while a workload writes and faults strike, and
holds the event log against the truth afterwards; shrinks what fails.
"""

from __future__ import annotations

import json
import math
import random
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.e2e.history_commands import Commander
from tests.e2e.history_processes import CaptureProcess, Collector
from tests.e2e.history_spec import FAILPOINTS, Spec
from tests.support.oracle.dumps import (
    REFETCH,
    Asked,
    ChunkRules,
    DumpError,
    check_chunks,
    check_standstills,
)
from tests.support.oracle.history import (
    HistoryError,
    LeftOut,
    SourceHistory,
    TableDump,
    check_audit,
)
from tests.support.oracle.log import read_event_log
from tests.support.oracle.source import OracleSource
from tests.support.oracle.workload import OracleWorkload

from tidelog.app.sources.kinds import source_kind
from tidelog.capture.catalogue_watch import SHAPES_KEY
from tidelog.capture.dumps.refetch_queue import KeySets, missing_set
from tidelog.config import Config, load_config
from tidelog.errors import OffsetGoneError
from tidelog.eventlog.reader import EventLog
from tidelog.ports import Catalogue, StateStore
from tidelog.state.opening import open_state

LEASE_S = 1.0
SETTLE_S = 240.0
"""Generous: a loaded machine is no failure."""
REACH_S = 5.0
"""How long a capture has to come to the failpoint that it is to die at."""


class NothingShownError(HistoryError):
    """The log is a true history, but no dump was completed that could be held against it."""


class Run:
    """One history: build it, then check it."""

    most: float = math.inf
    """Transactions that the writers begin with."""

    def __init__(self, spec: Spec, source: OracleSource, directory: Path) -> None:
        self.spec = spec
        self.source = source
        self.directory = directory
        self.rng = random.Random(f"faults {spec.seed}")
        self.name = f"history_{spec.seed}_{directory.name[-6:]}".lower().replace("-", "_")
        self.captures: list[CaptureProcess] = []
        self.died_at: list[str] = []
        self.rolled_back: set[str] = set()
        """Dumps that a state which was put back does not know as done, or not at all."""
        self.left_out: list[LeftOut] = []
        self._failpoints = list(spec.failpoints)
        self.rng.shuffle(self._failpoints)
        self.events: list[str] = []
        self._started = time.monotonic()

    # ------------------------------------------------------------ building a history

    def __call__(self) -> SourceHistory:
        """Raise HistoryError if the event log is not a true history."""
        try:
            return self._run()
        finally:
            for capture in self.captures:
                if not capture.died:
                    capture.kill()
            self.source.drop()

    def _run(self) -> SourceHistory:
        spec = self.spec
        self.source.create(self.name, spec.seed)
        self.config_file = self._write_config()
        config = load_config(self.config_file, {})
        self.source.prepare(config)
        self.commander = Commander(spec, self.source, config, self._note)
        collector = Collector(config.log.path)
        collector.start()
        self.workload = OracleWorkload(
            self.source.writers, spec.seed, spec.mix, writers=spec.writers, most=self.most
        )
        self.workload.start()
        self._launch()
        try:
            self._await_capture(collector)
            self._disturb()
        finally:
            self.workload.stop()
        self._note(f"{self.workload.committed} transactions")
        self._settle(config, collector)
        self._note("at rest")
        collector.stop()
        for capture in self.captures:
            if not capture.died and capture.stop() != 0:
                raise HistoryError(f"capture ended with an error\n{capture.tail}")
        collector.read(EventLog.open(config.log.path))
        return self._check(config, collector)

    def _write_config(self) -> Path:
        log: dict[str, Any] = {"path": self.spec.log, "rollup_bytes": 0}
        if self.spec.storage_options:
            log["path"] += f"/{secrets.token_hex(4)}"
            log["storage_options"] = dict(self.spec.storage_options)
        if self.spec.maintenance:
            log |= {"rollup_bytes": "200KiB", "retention": "4s"}
        path = self.directory / "tidelog.yaml"
        path.write_text(
            f"source: {self.source.section(self.spec.watermarks, self.spec.initial)}\n"
            f"log: {json.dumps(log)}\n"
            f"state: {{url: 'sqlite:///{self.directory}/state.db'}}\n"
            f"capture: {{flush_bytes: 16KiB, flush_ms: 20, buffer_bytes: 128KiB, "
            f"lease_ms: {int(LEASE_S * 1000)}}}\n"
            f"dump: {{chunk_rows: {self.spec.chunk_rows}, delay_ms: {self.spec.delay_ms}, "
            f"parallelism: {self.spec.parallelism}}}\n"
        )
        return path

    def _launch(self, failpoint: str = "") -> CaptureProcess:
        log_file = self.directory / f"capture-{len(self.captures)}.log"
        capture = CaptureProcess(
            self.config_file,
            log_file,
            failpoint,
            self.spec.mutation,
            self.spec.window_ms,
            self.spec.engine,
        )
        self.captures.append(capture)
        return capture

    def _note(self, what: str) -> None:
        self.events.append(f"{time.monotonic() - self._started:7.2f} s {what}")

    def _await_capture(self, collector: Collector) -> None:
        deadline = time.monotonic() + SETTLE_S
        while collector.begin is None and time.monotonic() < deadline:
            time.sleep(0.02)
            self._watch_processes()
        if collector.begin is None:
            raise HistoryError(f"no capture leads within {SETTLE_S} s\n{self.captures[-1].tail}")
        self._note("capture leads")

    # ------------------------------------------------------------ faults and dumps

    def _disturb(self) -> None:
        spec, rng = self.spec, self.rng
        end = time.monotonic() + spec.seconds
        fault_at = time.monotonic() + rng.random() * spec.fault_every_s
        while time.monotonic() < end and not self._killed_everywhere():
            time.sleep(0.05)
            self._watch_processes()
            self.commander.turn()
            if spec.faults and time.monotonic() >= fault_at:
                self._strike(rng.choice(spec.faults))
                fault_at = time.monotonic() + rng.random() * 2 * spec.fault_every_s
        for capture in self.captures:
            if capture.frozen:
                capture.send(signal.SIGCONT)

    def _killed_everywhere(self) -> bool:
        return self.spec.each_failpoint and set(self.spec.failpoints) <= set(self.died_at)

    def _watch_processes(self) -> None:
        """Replace captures that died of a failpoint; any other death is a bug."""
        for capture in [c for c in self.captures if c.died]:
            if capture.code == -signal.SIGKILL and capture.failpoint:
                self._note(f"died at {capture.failpoint}")
                self.died_at.append(capture.failpoint.split(":")[0])
                self.captures.remove(capture)
            else:
                raise HistoryError(f"capture ended by itself with {capture.code}\n{capture.tail}")
        if not self.captures:
            self._launch()

    def _strike(self, fault: str) -> None:
        rng = self.rng
        self._note(f"fault {fault}")
        if fault == "kill":
            victim = rng.choice(self.captures)
            victim.kill()
            self.captures.remove(victim)
            self._launch()
        elif fault == "failpoint":
            self._kill_at(self._failpoints[0])
            self._failpoints.append(self._failpoints.pop(0))
        elif fault == "stop":
            victim = rng.choice(self.captures)
            self.captures.remove(victim)
            if victim.stop() not in (0, -signal.SIGTERM):  # before it heeded signals
                raise HistoryError(f"capture ended with an error\n{victim.tail}")
            self._launch()
        elif fault == "freeze":
            self._launch()
            time.sleep(1.5)  # it stands by
            victim = self.captures[0]
            victim.send(signal.SIGSTOP)
            time.sleep(LEASE_S * (1.3 + rng.random()))
            victim.send(signal.SIGCONT)
            time.sleep(0.5)
            self._watch_processes()
            if len(self.captures) > 2 or rng.random() < 0.5:
                victim = self.captures.pop(0)
                victim.kill()
        else:
            self.source.strike(fault, rng)

    def _kill_at(self, name: str) -> None:
        """Have the only capture die there."""
        for capture in self.captures:
            capture.kill()
        self.captures.clear()
        # Where each must be died at, the first time will do: there may be no tenth.
        times = 1 if self.spec.each_failpoint else self.rng.randint(1, FAILPOINTS[name])
        capture = self._launch(f"{name}:kill:{times}")
        if self.spec.commands or self.spec.each_failpoint:
            self.commander.dump("blocking" if name.startswith("blocking.") else "all")
        if self.spec.each_failpoint:
            self.commander.dump()
        deadline = time.monotonic() + (self.spec.seconds if self.spec.each_failpoint else REACH_S)
        while not capture.died and time.monotonic() < deadline:
            time.sleep(0.02)
            self.commander.turn()
        self._watch_processes()

    # ------------------------------------------------------------ the end of a history

    def _settle(self, config: Config, collector: Collector) -> None:
        """Wait until all is captured, every change of a table's shape was noticed, and no dump is
        under way.
        """
        mark = self.source.last_write(self.rng)
        self.commander.quicken()
        deadline = time.monotonic() + SETTLE_S
        calm = 0
        state = open_state(config.state.location)
        catalogue = source_kind(config).catalogue()
        try:
            while calm < 4:
                time.sleep(0.25)
                self._watch_processes()
                if collector.failure is not None:
                    collector.stop()
                seen = self.source.reached(mark, collector.xids)
                dumps = [state.get(key).value for key in state.keys("dump/")]  # type: ignore[union-attr]
                waiting = state.keys("commands/")
                busy = [d["dump_id"] for d in dumps if d["status"] not in ("completed", "aborted")]
                reread = state.keys("dump-reread")
                same = self._shapes_are_known(state, catalogue, config)
                idle = not busy and not waiting and not reread and same
                calm = calm + 1 if seen and idle else 0
                if time.monotonic() > deadline:
                    raise HistoryError(
                        f"capture does not come to rest: last transaction seen: {seen}, dumps "
                        f"{busy}, commands {waiting}, shapes known: {same}, rereads "
                        f"{reread}\n"
                        + "\n".join(c.tail for c in self.captures)
                        + f"\n{[t for d in dumps if d['dump_id'] in busy for t in d['tables']]}"[
                            :2000
                        ]
                    )
            self.dumps = dumps
            key_sets = KeySets(state)
            self.listed = {
                dump_id: list(key_sets.all(missing_set(dump_id)))
                for dump_id, asked in self.commander.asked.items()
                if asked.lists
            }
        finally:
            catalogue.close()
            state.close()

    def _shapes_are_known(self, state: StateStore, catalogue: Catalogue, config: Config) -> bool:
        stored = state.get(SHAPES_KEY)
        for table in catalogue.tables(config.source.tables):
            shape = catalogue.shape(table)
            assert shape is not None
            found = f"{shape.storage} {','.join(shape.schema.match_key)}"
            if stored is None or stored.value.get(str(table)) != found:
                return False
        return True

    # ------------------------------------------------------------ checking

    def _check(self, config: Config, collector: Collector) -> SourceHistory:
        source = self.source
        truth = source.truth(collector.xids)
        check_audit(truth)
        assert collector.begin is not None
        placed = sorted(collector.placed.values(), key=lambda chunk: chunk.first)
        blocking = {dump["dump_id"] for dump in self.dumps if dump["mode"] == "blocking"}
        rules = ChunkRules(placed, self.commander.asked, source.place, source.sight, blocking)
        rules.read_again = self.rolled_back
        history = SourceHistory(truth, collector.records, collector.begin, source.same, rules)
        history.refetch, history.left_out = collector.refetch, self.left_out
        history.check_order()
        self._check_stable(config, collector)
        rows = {table.name: source.rows(table) for table in source.tables.values()}
        checked = 0
        for dump in self._completed():
            history.check_replay(dump, rows[dump.table])
            checked += 1
        metas = [c for c in collector.chunks.values() if c.dump_id not in self.rolled_back]
        chunks = check_chunks(metas, self.commander.asked, source.place, blocking)
        still = check_standstills(metas, self.commander.standstills, source.begun)
        unknown = {c.dump_id for c in metas} - {d["dump_id"] for d in self.dumps} - {REFETCH}
        if unknown:
            raise HistoryError(f"chunks of dumps that no one knows: {sorted(unknown)}")
        self._note(f"{len(truth)} transactions, {len(collector.records)} records, {chunks} chunks")
        self._note(
            f"{checked} dumped tables replayed, {rules.checked} chunks held against their place, "
            f"{rules.superseded} rows superseded, {still} standstills"
        )
        if not checked:
            raise NothingShownError("no dump was completed: the run shows nothing")
        return history

    def _completed(self) -> Iterator[TableDump]:
        for dump in self.dumps:
            dump_id = dump["dump_id"]
            asked = self.commander.asked.get(dump_id, Asked())
            for progress in dump["tables"]:
                table = progress["table"]
                if progress["status"] == "failed":
                    raise HistoryError(f"dump {dump_id} failed: {progress['reason']}")
                if progress["status"] != "done":
                    continue
                wanted: Callable[[Any], bool] | None = None
                if asked.keys is not None:
                    # a dump by keys finds them however they are spelled
                    wanted = self._asked(table, asked.keys)
                elif asked.where is not None:
                    wanted = _where(table, asked.where)
                yield TableDump(
                    dump_id,
                    table,
                    progress["first_offset"],
                    progress["finalized_until"],
                    wanted,
                    asked.keys or (),
                    self.listed.get(dump_id),
                )

    def _asked(self, table: str, keys: Sequence[Any]) -> Callable[[Any], bool]:
        places = {self.source.place(table, key) for key in keys}
        return lambda key: self.source.place(table, key) in places

    def _check_stable(self, config: Config, collector: Collector) -> None:
        """What was read while it was written is what the log holds: offsets never change hands."""
        log = EventLog.open(config.log.path)
        try:
            head = log.head_offset
            again = read_event_log(log, head, log.latest_offset())
        except OffsetGoneError:
            return
        seen = [record for record in collector.records if record.offset >= head]
        if [(r.offset, r.payload) for r in again] != [(r.offset, r.payload) for r in seen]:
            raise HistoryError(
                f"the log from {head} on holds {len(again)} records, a reader saw {len(seen)}"
            )


def _where(table: str, where: Callable[[str, Any], bool]) -> Callable[[Any], bool]:
    return lambda key: where(table, key)


# ---------------------------------------------------------------- running and shrinking


def run(spec: Spec, source: OracleSource, directory: Path, make: Callable[..., Run] = Run) -> Run:
    """Run and check; on failure the error tells seed and events."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    this = make(spec, source, directory)
    try:
        this()
    except NothingShownError:
        raise
    except (HistoryError, DumpError) as error:
        logs = "\n".join(this.events)
        raise HistoryError(f"{spec}\n{logs}\n{error}") from None
    return this


def _without(spec: Spec, command: str) -> Spec:
    return replace(spec, commands=tuple(c for c in spec.commands if c != command))


def shrunk(
    spec: Spec,
    source: OracleSource,
    error: HistoryError,
    attempt: Callable[[Spec], None],
    budget_s: float,
) -> str:
    """Try smaller runs while they fail, for ``budget_s``; the smallest failure's text.

    Threads make a run not wholly repeatable, so each smaller one is tried twice.
    """
    deadline = time.monotonic() + budget_s
    smaller: list[Callable[[Spec], Spec]] = [
        lambda s: replace(s, faults=()),
        *[lambda s, f=f: replace(s, faults=(f,)) for f in spec.faults],
        lambda s: replace(s, mix=replace(s.mix, ddl=False)),
        lambda s: replace(s, mix=replace(s.mix, bulk=False)),
        lambda s: replace(s, mix=replace(s.mix, truncate=False)),
        lambda s: replace(s, mix=replace(s.mix, vanish=False)),
        lambda s: replace(s, mix=replace(s.mix, prepared=False)),
        lambda s: replace(s, mix=replace(s.mix, long=False)),
        lambda s: replace(s, maintenance=False),
        lambda s: replace(s, commands=("dump",) if s.commands else ()),
        *[lambda s, c=c: _without(s, c) for c in spec.commands],
        lambda s: replace(s, blocking=False, initial="incremental"),
        lambda s: replace(s, parallelism=1),
        lambda s: replace(s, window_ms=0),
        lambda s: replace(s, watermarks="table"),
        *[
            lambda s, t=t: replace(s, mix=replace(s.mix, tables=(t,)))
            for t in spec.mix.tables or source.tables
        ],
        lambda s: replace(s, writers=1),
        lambda s: replace(s, seconds=s.seconds / 2),
    ]
    text = str(error)
    for change in smaller:
        candidate = change(spec)
        if candidate == spec:
            continue
        for _ in range(2):
            if time.monotonic() > deadline:
                return text
            try:
                attempt(candidate)
            except HistoryError as found:
                spec, text = candidate, str(found)
                break
    return text
