"""What a run of the history oracle is: its configuration, faults and size; and runs of any kind."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.e2e.engine_program import FORMS
from tests.support.oracle.source import OracleSource
from tests.support.oracle.workload import PARTS, Mix

ROOT = Path(__file__).parents[2]

# A place and at which hit of it at most, so that the process does some work before it dies.
FAILPOINTS = {
    "put.before_write": 60,
    "put.after_write": 60,
    "put.before_link": 60,
    "put.after_link": 60,
    "put.after_fsync": 60,
    "replace.before_write": 1,
    "replace.after_write": 1,
    "replace.before_rename": 1,
    "replace.after_rename": 1,
    "replace.after_fsync": 1,
    "writer.before_fence": 1,
    "chunk.after_low": 9,
    "chunk.after_read": 9,
    "chunk.after_high": 9,
    "window.closed": 9,
    "chunk.durable_before_progress": 9,
    "blocking.held": 1,
    "blocking.read": 4,
    "capture.before_acknowledge": 30,
    "rollup.before_replace": 2,
    "rollup.after_replace": 2,
    "rollup.after_delete": 2,
    "retention.after_head": 1,
    "retention.after_delete": 1,
    "sweep.after_file": 1,
}
ELSEWHERE = {
    "slot.created": "tests/faults/test_slot_owner.py",
    "command.begun": "tests/faults/test_commands_that_crash.py",
    "signals.kept": "tests/faults/test_commands_that_crash.py",
    "signals.delivered_one": "tests/faults/test_commands_that_crash.py",
    "kafka_signals.taken_one": "tests/integration/kafka/test_kafka_signals.py",
    "keyless.begun": "tests/behaviours/dumps/test_keyless_tables.py",
    "keyless.read": "tests/behaviours/dumps/test_keyless_tables.py",
    "unlogged.due": "tests/behaviours/dumps/test_rows_without_events.py",
    "unlogged.requested": "tests/behaviours/dumps/test_rows_without_events.py",
}
"""Points of a first start, of commands and signals, and the test that kills capture there."""
BY_MAINTENANCE = ("replace.", "rollup.", "retention.")
"""Points that only roll-up and retention come to."""
BY_CHANCE = ("sweep.",)
"""Points that are only come to after another fault."""
CAPTURE_FAULTS = ("kill", "failpoint", "freeze", "stop")
FAULTS = (*CAPTURE_FAULTS, "terminate", "restart")
"""What befalls capture, and every kind of source; a source may know more."""
COMMANDS = ("dump", "pause", "cancel", "options")


NO_PARTS = Mix(("app.ints", "app.pairs", "app.nums", "app.wide", "app.full", "app.coded"))
"""Of an engine's program: that a partition was truncated is told by a dump's end alone, which is no
event.
"""


_OF_OUTPUTS = ("output.", "files.", "iceberg.", "lake.", "delta.")


def failpoints_in_source() -> set[str]:
    """Every failpoint of capture that the source names; outputs are killed by other tests."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for prefix, name in re.findall(r'failpoints\.hit\((f?)"([^"]+)"\)', path.read_text()):
            steps = ("put", "replace") if prefix else ("",)
            found |= {name.replace("{step}", step) for step in steps}
    return {name for name in found if not name.startswith(_OF_OUTPUTS)}


@dataclass(frozen=True)
class Spec:
    """A run, repeatable as far as threads and processes are.

    Attributes:
        seed: of all that is random.
        seconds: of faults and commands.
        rounds: of so many seconds each; only of a run with outputs.
        writers, mix: the workload.
        transactions: at most; of a run with outputs, in each round and before each kill.
        watermarks, parallelism, chunk_rows, delay_ms: as in the configuration.
        window_ms: that chunks wait for at most, between low watermark and rows, and rows and high
            watermark, so that much is written in between.
        commands: what is done beside dumps of tables, see `COMMANDS`; empty: no dump but the first.
        blocking: whether dumps may be blocking.
        initial: how the first dump reads.
        pause_s: dumps are paused for so long at most, and half a second at least.
        faults, fault_every_s: which, and how often.
        maintenance: roll-up and retention with tiny limits.
        failpoints: where processes are killed, one after the other, if ``failpoint`` is a fault.
        each_failpoint: ends once they were killed at each of them, under two dumps a time; until
            then it waits for as long as ``seconds``.
        mutation: of `oracle_mutations`, for the oracle's own test.
        engine: a form of `tests.e2e.engine_program`; empty: captures alone, without a program.
        kills_amid: how often a program is killed that applies events, at least; or a pipeline, in
            each round.
        log, storage_options: where the event log is; below it, each run has a place of its own.
    """

    seed: int
    seconds: float = 6.0
    writers: int = 3
    mix: Mix = field(default_factory=Mix)
    transactions: float = math.inf
    rounds: int = 1
    watermarks: str = "table"
    parallelism: int = 1
    chunk_rows: int = 23
    delay_ms: int = 0
    window_ms: int = 0
    commands: tuple[str, ...] = COMMANDS
    blocking: bool = True
    initial: str = "incremental"
    pause_s: float = 3.0
    faults: tuple[str, ...] = FAULTS
    fault_every_s: float = 2.0
    maintenance: bool = False
    failpoints: tuple[str, ...] = tuple(FAILPOINTS)
    each_failpoint: bool = False
    mutation: str = ""
    engine: str = ""
    kills_amid: int = 3
    log: str = "./log"
    storage_options: tuple[tuple[str, str], ...] = ()


def reachable(maintenance: bool, blocking: bool = True) -> tuple[str, ...]:
    """Failpoints that a run comes to by itself."""
    skipped = BY_CHANCE if maintenance else (*BY_CHANCE, *BY_MAINTENANCE)
    skipped = skipped if blocking else (*skipped, "blocking.")
    return tuple(name for name in FAILPOINTS if not name.startswith(skipped))


def random_spec(seed: int, source: OracleSource) -> Spec:
    """A run of any kind; strategies and parallelism take turns, so that a short soak has them."""
    rng = random.Random(f"spec {seed}")
    tables = () if rng.random() < 0.6 else tuple(rng.sample(sorted(source.tables), 2))
    maintenance = rng.random() < 0.4
    spec = Spec(
        seed,
        seconds=rng.choice((5.0, 10.0, 20.0)),
        writers=rng.choice((1, 3, 6)),
        mix=Mix(
            tables,
            bulk=rng.random() < 0.7,
            truncate=rng.random() < 0.6,
            ddl=rng.random() < 0.6 and source.alters,
            prepared=source.prepares and rng.random() < 0.6,
            vanish=seed % 2 == 0,
        ),
        watermarks=source.strategies[seed % len(source.strategies)],
        parallelism=(4, 1, 16)[seed // 3 % 3],
        chunk_rows=rng.choice((2, 7, 23, 200, 5000)),
        delay_ms=rng.choice((0, 0, 5, 60)),
        blocking=rng.random() < 0.7,
        initial=rng.choice(
            ("incremental", "incremental", "blocking" if source.blocking else "incremental")
        ),
        faults=(*CAPTURE_FAULTS, *source.faults),
        maintenance=maintenance,
        fault_every_s=rng.choice((0.7, 2.0, 4.0)),
        failpoints=reachable(maintenance, source.blocking),
    )
    if rng.random() < 0.3:
        spec = replace(spec, faults=("failpoint",))
    spec = replace(spec, window_ms=rng.choice((0, 30, 150)))
    return _with_engine(spec, source, rng) if rng.random() < 0.25 else spec


def _with_engine(spec: Spec, source: OracleSource, rng: random.Random) -> Spec:
    """Two engines of one name are not allowed, so no capture is frozen; and the log is kept, which
    the program's journal is held against.
    """
    tables = tuple(name for name in spec.mix.tables or source.tables if name != PARTS)
    return replace(
        spec,
        engine=rng.choice(FORMS),
        mix=replace(spec.mix, tables=tables or ("app.ints",)),
        faults=tuple(fault for fault in spec.faults if fault != "freeze"),
        maintenance=False,
        failpoints=tuple(name for name in spec.failpoints if not name.startswith(BY_MAINTENANCE)),
    )
