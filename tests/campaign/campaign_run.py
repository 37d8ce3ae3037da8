"""One run of the campaign: a history whose captures are on two hosts, under a nemesis."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path

from tests.campaign import leaders
from tests.campaign.backups import LOG, STATE, Backup
from tests.campaign.copies import Copies
from tests.campaign.hosts import Host
from tests.campaign.machine_time import MachineTime
from tests.campaign.nemesis import COPY, DATABASE, HANDOVER_S, KINDS
from tests.campaign.operator_nemesis import OperatorNemesis
from tests.campaign.outcome import Gap, Outcome, find_gaps
from tests.campaign.places import Place
from tests.campaign.witness import Note
from tests.e2e.history_processes import CaptureProcess, Collector
from tests.e2e.history_restores import ALL_TABLES, LIVE_RECORDS, OperatedRun
from tests.e2e.history_spec import Spec
from tests.support.namespaces import Bridge, NotPermittedError
from tests.support.oracle.history import HistoryError, SourceHistory
from tests.support.oracle.source import OracleSource

from tidelog import app
from tidelog.app.base.log_location import event_log_path
from tidelog.capture.dumps.store import DUMP_PREFIX
from tidelog.config import Config, load_config
from tidelog.errors import TidelogError
from tidelog.eventlog.reader import EventLog
from tidelog.state.opening import open_state

LEASE_S = 3.0
LIVELY_S = 60.0
LAG_S = 5.0
DUMP_EVERY_S = 10.0
BEGIN_S = 300.0
PIPED_S = 120.0
"""Java begins anew after a kill, on a machine that has other work."""
RESTART_S = 1.0
LIVED_S = 1.5
"""A status is stored within this time."""
TOLD_S = 5.0
"""A leader's status tells of a new dump within this time."""
STANDS_BY = '{"role": "standby"'
LOST = "from what is durable: the lease"
"""Says a leader that lost it. Where the machine is busy enough none comes to its first batch."""
OpenPlace = Callable[[Path, ExitStack], Place]


def load() -> str:
    """For people."""
    return f"load is {os.getloadavg()} on {os.cpu_count()} cores"


class CampaignRun(OperatedRun):
    """See `OperatedRun`. ``kinds``: of faults, see `KINDS`; ``name``: of the source, for people;
    ``open_copies``: what pipelines deliver to, None: there are none; ``snapshot``: as in the
    configuration.

    Its limits are of the machine's time (`MachineTime`): what other work holds up is not stuck.
    """

    outcome: Outcome

    def __init__(
        self,
        spec: Spec,
        source: OracleSource,
        directory: Path,
        *,
        open_place: OpenPlace,
        name: str = "",
        kinds: Sequence[str] = tuple(KINDS),
        open_copies: Callable[[Path], Copies] | None = None,
        snapshot: str = "initial",
    ) -> None:
        super().__init__(spec, source, directory)
        self._open_place = open_place
        self._title = name
        self._kinds = tuple(kinds)
        self._open_copies = open_copies
        self._snapshot = snapshot
        self.gaps: list[Gap] = []
        self._era_begin = 0
        """Offset of the first segment that no restore has touched."""
        self._copies: Copies | None = None
        self._restarts: list[tuple[float, Host]] = []
        self._piped: dict[str, float] = {}
        self._opened = ExitStack()
        self.hosts: list[Host] = []

    def __call__(self) -> SourceHistory:
        with self._opened:
            self._machine = self._opened.enter_context(MachineTime())
            return super().__call__()

    def _write_config(self) -> Path:
        section = self.source.section(self.spec.watermarks, self.spec.initial)
        section = section.replace(ALL_TABLES, f"{ALL_TABLES}, snapshot: {self._snapshot}")
        self.place = self._open_place(self.directory, self._opened)
        database = self.source.port
        targets = {DATABASE: database, **self.place.ports}
        bridge = self._open_bridge()
        if self._open_copies is not None:
            self._copies = self._open_copies(self.directory)
            if bridge is not None:
                targets[COPY] = self._copies.port
        rest = (
            f"capture: {{flush_bytes: 16KiB, flush_ms: 20, buffer_bytes: 128KiB, "
            f"lease_ms: {int(LEASE_S * 1000)}}}\n"
            f"dump: {{chunk_rows: {self.spec.chunk_rows}, parallelism: {self.spec.parallelism}}}\n"
        )
        for name in ("a", "b"):
            host = Host(name, self.directory, targets, self._opened, self.spec.mutation, bridge)
            ports, address = host.ports, host.address
            through = section.replace(f"127.0.0.1:{database}/", f"{address}:{ports[DATABASE]}/")
            assert through != section
            piped = ""
            if self._copies is not None:
                piped = self._copies.sections(host.directory, address)
                if host.namespace is not None:
                    host.namespace.lead(self._copies.port, ports[COPY])
            host.config_file.write_text(
                f"source: {through}\n{self.place.sections(ports, address)}{rest}{piped}"
            )
            self.hosts.append(host)
            self._opened.callback(host.kill_pipeline)
        directly = self.directory / "tidelog.yaml"
        directly.write_text(
            f"source: {section}\n{self.place.sections(self.place.direct_ports, '127.0.0.1')}{rest}"
        )
        return directly

    def _open_bridge(self) -> Bridge | None:
        try:
            return self._opened.enter_context(Bridge())
        except NotPermittedError as lacks:
            self._note(f"hosts are on the loopback: {lacks}")
            return None

    def _launch(self, failpoint: str = "") -> CaptureProcess:
        for host in self.hosts:
            host.start()
        self._watch_processes()
        return self.captures[0]

    def _watch_pipelines(self) -> None:
        """One that ended by itself is started again, as by a service manager."""
        for host in self.hosts:
            pipeline = host.pipeline
            if pipeline is None or pipeline.code is None or host.pipeline_leaves:
                continue
            self._note(f"the pipeline of {host.name} ended by itself with {pipeline.code}")
            self._piped["ended"] = self._piped.get("ended", 0) + 1
            host.pipeline = None
            self._restarts.append((time.monotonic() + RESTART_S, host))
        for restart in [restart for restart in self._restarts if restart[0] <= time.monotonic()]:
            self._restarts.remove(restart)
            restart[1].start_pipeline()

    def _note(self, what: str) -> None:
        """Also for who looks on."""
        super()._note(what)
        with (self.directory / "events.txt").open("a") as events:
            events.write(self.events[-1] + "\n")

    def _watch_processes(self) -> None:
        """None ends by itself, whatever it can't reach."""
        self.captures = [host.capture for host in self.hosts if host.capture is not None]
        for capture in self.captures:
            if capture.died and not self._asked_to_end(capture):
                with contextlib.suppress(TidelogError):  # a broken rule says more than its end
                    self._judge_leaders(load_config(self.config_file, {}))
                raise HistoryError(f"capture ended by itself with {capture.code}\n{capture.tail}")
        self._watch_pipelines()

    def _asked_to_end(self, capture: CaptureProcess) -> bool:
        return any(host.capture is capture and host.leaves for host in self.hosts)

    def _await_capture(self, collector: Collector) -> None:
        """For as long as kernels may have to be compiled: that heeds no signal."""
        self._collector = collector
        deadline = self._machine() + BEGIN_S
        while collector.begin is None:
            time.sleep(0.05)
            self._watch_processes()
            if self._machine() > deadline:
                raise HistoryError(f"no capture leads {BEGIN_S:.0f} s after the start")
        self._note("capture leads")
        if self._copies is not None:
            self._await_pipelines(self._copies)

    def _await_pipelines(self, copies: Copies) -> None:
        """Until one delivers, and the other stands by: two that start at once on one machine may
        take each other's lease away before either comes to its first batch.
        """
        first, second = self.hosts
        first.start_pipeline()
        self._await_pipeline(copies.begun, "no pipeline delivers")
        self._note("a pipeline delivers")
        second.start_pipeline()
        self._await_pipeline(
            lambda: any(h.pipeline and STANDS_BY in h.pipeline.said for h in self.hosts),
            "no pipeline stands by",
        )

    def _await_pipeline(self, is_there: Callable[[], bool], lacks: str) -> None:
        deadline = self._machine() + BEGIN_S
        while not is_there():
            time.sleep(0.2)
            self._watch_processes()
            if self._machine() > deadline:
                said = "\n".join(h.pipeline.said[-4000:] for h in self.hosts if h.pipeline)
                lost = sum(h.pipeline.said.count(LOST) for h in self.hosts if h.pipeline)
                raise HistoryError(
                    f"{said}\n{lacks} {BEGIN_S:.0f} s after the start; leases of them ended {lost} "
                    f"times; the machine's {load()}"
                )

    def _disturb(self) -> None:
        self._nemesis = OperatorNemesis(
            self,
            self.directory,
            random.Random(f"nemesis {self.spec.seed}"),
            self.hosts,
            self.source,
            self.place,
            load_config(self.config_file, {}),
            LEASE_S,
            self.spec.fault_every_s,
            self._kinds,
            self._note,
        )
        end = time.monotonic() + self.spec.seconds
        dump_at = time.monotonic() + DUMP_EVERY_S
        while time.monotonic() < end:
            time.sleep(0.05)
            self._watch_processes()
            self._nemesis.turn()
            if time.monotonic() >= dump_at:
                dump_at = time.monotonic() + DUMP_EVERY_S
                self.commander.dump()
        self._nemesis.heal()

    # ------------------------------------------------------------ what operators do

    def live(self) -> None:
        begun, count = self._machine(), self._collector.count
        while self._collector.count < count + LIVE_RECORDS or self._machine() < begun + LIVED_S:
            time.sleep(0.05)
            self._watch_processes()
            if self._collector.failure is not None:
                self._collector.stop()
            if self._machine() > begun + LIVELY_S:
                raise HistoryError(f"{self._stacks()}\nno records come, for {LIVELY_S:.0f} s")

    def restore(self, backup: Backup, parts: tuple[str, ...]) -> int:
        """What leaders did before is judged by the log that they had."""
        config = load_config(self.config_file, {})
        with self._collector.lock:
            self._collector.read(EventLog.open(event_log_path(config)))
            ahead = self.log_end()
            self._judge_leaders(config)
            self.gaps += self._find_gaps(config)
            for host in self.hosts:
                host.notes.forget()
            backup.put_back(parts)
            if LOG in parts:
                self._restored(EventLog.open(event_log_path(config)), ahead)
            if STATE in parts:
                self.rolled_back |= self._unfinished(config)
            self._era_begin = self.log_end()
            self._differ(parts, self._era_begin)
        return ahead

    def check_refused(self, ahead: int) -> None:
        self._check_refused(EventLog.open(event_log_path(load_config(self.config_file, {}))), ahead)

    def log_end(self) -> int:
        return EventLog.open(event_log_path(load_config(self.config_file, {}))).latest_offset()

    def split_tables(self) -> tuple[list[str], list[str]]:
        return self._split_tables()

    def leave_out(self, tables: list[str], begin: int) -> None:
        self._leave_out(tables, begin, self.log_end())

    def make_table(self) -> None:
        self._make_table()

    def _settle(self, config: Config, collector: Collector) -> None:
        self._judge_leaders(config)
        self._lively_s = self._await_liveness(collector)
        self._have_late_dumps_done(config)
        super()._settle(config, collector)
        if self._copies is not None:
            self._settle_pipelines(self._copies, config, collector)

    def _have_late_dumps_done(self, config: Config) -> None:
        """A store that can't compare two documents at once (``log:``) lets a former leader's new
        document come late: a dump that it noted, of which who leads now knows nothing. The next one
        carries it out.
        """
        with closing(open_state(config.state.location)) as state:
            dumps = [state.get(key) for key in state.keys(DUMP_PREFIX)]
        going = {
            one.value["dump_id"]
            for one in dumps
            if one is not None and one.value["status"] not in ("completed", "aborted")
        }
        deadline = time.monotonic() + TOLD_S
        while late := going - {dump["dump_id"] for dump in app.status(config).document["dumps"]}:
            time.sleep(0.2)
            if time.monotonic() > deadline:
                self._note(f"a former leader noted late: {sorted(late)}")
                app.hand_over(config, None, timeout_s=HANDOVER_S)
                return

    def _settle_pipelines(self, copies: Copies, config: Config, collector: Collector) -> None:
        """All that was captured is delivered, once, without a hand; then they end in order."""
        begun, begun_at = time.monotonic(), self._machine()
        log = EventLog.open(event_log_path(config))
        while collector.next != log.latest_offset():  # it reads what capture has at rest
            time.sleep(0.1)
        while lacks := copies.lacking(self.source, collector.records):
            time.sleep(0.5)
            self._watch_processes()
            if self._machine() > begun_at + PIPED_S:
                said = "\n".join(h.pipeline.said[-4000:] for h in self.hosts if h.pipeline)
                raise HistoryError(f"{said}\n{PIPED_S:.0f} s after capture is at rest, {lacks}")
        self._piped |= {
            "seconds": round(time.monotonic() - begun, 2),
            "rows": copies.rows,
            "events": copies.events,
        }
        self._note(f"the outputs are whole: {self._piped}")
        for host in self.hosts:
            host.end_pipeline(PIPED_S)

    def _await_liveness(self, collector: Collector) -> float:
        """In seconds that passed. The limits are of the machine's time, and what is late because
        the machine has other work is told apart from what is stuck.
        """
        begun, healed = time.monotonic(), self._machine()
        came = [(0.0, len(collector.records))]
        while True:
            asked = self._machine()
            mark = self.source.last_write(self.rng)
            while not self.source.reached(mark, collector.xids):
                time.sleep(0.02)
                self._watch_processes()
                if collector.failure is not None:
                    collector.stop()
                passed, now = time.monotonic() - begun, self._machine() - healed
                if now >= came[-1][0] + LAG_S:
                    came.append((round(now), len(collector.records)))
                if now > LIVELY_S + LAG_S:
                    how = "is late" if came[-1][1] > came[-3][1] else "is stuck"
                    raise HistoryError(
                        f"{self._stacks()}\n{LIVELY_S:.0f} s after the last fault nothing is "
                        f"captured within {LAG_S:.0f} s, it {how}; records by the second: {came}; "
                        f"of {passed:.0f} s the machine gave {now:.0f}; its {load()}"
                    )
            if self._machine() - asked < LAG_S:
                passed, now = time.monotonic() - begun, self._machine() - healed
                self._note(f"captures again, without a hand; {now:.1f} s of {passed:.1f}")
                return passed

    def _stacks(self) -> str:
        """What each capture says that it does."""
        for capture in self.captures:
            capture.send(signal.SIGUSR1)
        time.sleep(1.0)
        return "\n".join(capture.log_file.read_text()[-20_000:] for capture in self.captures)

    def _judge_leaders(self, config: Config) -> None:
        """What the nemesis's faults made of them; the rest of the run is for the event log."""
        log = EventLog.open(event_log_path(config))
        leaders.judge(self._notes(), log.chain().segments)

    def _notes(self) -> list[Note]:
        return [note for host in self.hosts for note in host.notes.so_far()]

    def _check(self, config: Config, collector: Collector) -> SourceHistory:
        self._judge_leaders(config)
        self.gaps += self._find_gaps(config)
        history = super()._check(config, collector)
        self.outcome = Outcome(
            seed=self.spec.seed,
            source=self._title,
            state=self.place.name,
            seconds=self.spec.seconds,
            transactions=len({record.xid for record in collector.records}),
            records=len(collector.records),
            faults=dict(self._nemesis.counts),
            lively_s=round(self._lively_s, 2),
            leaderless_s=[gap.seconds for gap in self.gaps],
            gaps=[asdict(gap) for gap in self.gaps],
            piped=self._piped,
        )
        return history

    def _find_gaps(self, config: Config) -> list[Gap]:
        times = {
            int(path.name[:20]): path.stat().st_ctime_ns / 1e9
            for path in self.place.files().rglob("*")
            if path.name[:20].isdigit()
        }
        segments = EventLog.open(event_log_path(config)).chain().segments
        segments = [segment for segment in segments if segment.first >= self._era_begin]
        clock = time.time() - time.monotonic()
        found = find_gaps(segments, {at: when - clock for at, when in times.items()}, self._notes())
        for gap in found:
            self._note(f"no record from {gap.begun - self._started:.2f} s on: {gap.summary()}")
        return found
