"""What operators do to dumps in a run, at random, and what must stand still afterwards."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

from tests.e2e.history_spec import Spec
from tests.support.oracle.dumps import Asked, DumpError, Standstill
from tests.support.oracle.source import OracleSource
from tests.support.oracle.values import Key
from tests.support.oracle.workload import Table

from tidelog import app
from tidelog.capture.dumps.store import AUTOMATIC, DUMP_PREFIX
from tidelog.capture.session.start import STATUS_KEY
from tidelog.config import Config
from tidelog.control.commands import (
    CancelDump,
    Command,
    PauseDump,
    ResumeDump,
    SetDumpOptions,
    StartDump,
)
from tidelog.errors import TidelogError
from tidelog.state.opening import open_state
from tidelog.system.processes import unix_ms

MOST_PARALLEL = 16
ACT_S = 3.0


class Commander:
    """Sends commands and remembers what they ask for.

    Args:
        spec: of the run.
        source: what the run is about.
        config: of capture.
        note: takes a line about what is done.
    """

    def __init__(
        self, spec: Spec, source: OracleSource, config: Config, note: Callable[[str], None]
    ) -> None:
        self._spec = spec
        self._source = source
        self._tables = spec.mix.tables or tuple(source.tables)
        self._config = config
        self._note = note
        self._rng = random.Random(f"commands {spec.seed}")
        self._next_at = time.monotonic() + 0.3
        self.number = 0
        self._to_dump_again = False
        self._resume_at: float | None = None
        self._paused: list[Standstill] = []
        self.asked: dict[str, Asked] = {}
        self.keys_of: dict[str, tuple[str, tuple[Key, ...]]] = {}
        self.standstills: list[Standstill] = []

    def turn(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if self._resume_at is not None and now >= self._resume_at:
            self.resume()
        if self._spec.commands and now >= self._next_at:
            self._next_at = now + 0.2 + self._rng.random() * 1.2
            act = getattr(self, self._rng.choice(("dump", "dump", *self._spec.commands)))
            act()

    # ------------------------------------------------------------ dumps

    def dump(self, mode: str | None = None) -> None:
        """Ask for a dump of any kind."""
        rng = self._rng
        dump_id = f"d{self.number}"
        self.number += 1
        table = self._source.tables[rng.choice(self._tables)]
        choice = rng.random()
        ask: dict[str, Any] = {"tables": (table.name,)}
        blocking = self._spec.blocking and self._source.blocking
        if blocking and (mode == "blocking" or choice < 0.12):
            ask = {"mode": "blocking", "tables": ask["tables"] if choice < 0.06 else ()}
        elif choice < 0.4 or mode is not None:
            ask = {}
        elif choice < 0.6:
            pass
        elif choice < 0.65:
            ask = {"tables": ("app.ints",), "where": "id % 2 = 0"}
        elif choice < 0.7:
            ask = {"conditions": {"app.ints": "id % 2 = 0"}}
        else:
            ask = self._keys(dump_id, table)
        if "where" in ask or "conditions" in ask:
            self.asked[dump_id] = Asked(where=_even)
        self._send(StartDump(dump_id=dump_id, **ask))

    def _keys(self, dump_id: str, table: Table) -> dict[str, Any]:
        rng = self._rng
        drawn = [table.random_key(rng) for _ in range(rng.choice((3, 40)))]
        keys = {table.lock(key): tuple(str(part) for part in key) for key in drawn}
        given = tuple(keys.values())
        lists = table.exact and rng.random() < 0.4
        self.asked[dump_id] = Asked(keys=given, lists=lists)
        self.keys_of[dump_id] = (table.name, given)
        return {
            "tables": (table.name,),
            "keys": given,
            "key_columns": table.key,
            "missing": "list" if lists else "delete",
        }

    # ------------------------------------------------------------ pause, cancel, options

    def pause(self) -> None:
        """Pause one dump or all; they are resumed soon."""
        if self._resume_at is not None:
            return
        dump_id = self._some_dump() if self._rng.random() < 0.5 else None
        self._resume_at = time.monotonic() + 0.5 + self._rng.random() * (self._spec.pause_s - 0.5)
        outcome = self._send(PauseDump(dump_id=dump_id), ACT_S)
        for paused in (outcome or {}).get("dumps", ()):
            under_way = self._being_read()
            self._paused.append(
                Standstill(paused, (), "paused", self._source.mark(), under_way=under_way)
            )

    def resume(self) -> None:
        """Let all go on. Raises DumpError if one has gone on before, by itself."""
        self._resume_at = None
        paused, self._paused = self._paused, []
        until = self._source.mark() if paused else 0
        statuses = {dump["dump_id"]: dump["status"] for dump in self._dumps()}
        for still in paused:
            status = statuses.get(still.dump_id)
            if status not in ("paused", "aborted", "completed"):
                raise DumpError(f"dump {still.dump_id} was paused, and is {status}", "")
            self.standstills.append(
                Standstill(still.dump_id, (), "paused", still.since, until, still.under_way)
            )
        self._send(ResumeDump(), 1.0)

    def cancel(self) -> None:
        """Cancel a dump, some of its tables, or now and then all dumps."""
        dump_id = self._some_dump()
        if dump_id is None or self._rng.random() < 0.4:
            return
        choice, tables = self._rng.random(), ()
        if choice < 0.15:
            dump_id = None
            self._to_dump_again = True
        elif choice < 0.6:
            tables = (self._rng.choice(self._tables),)
        if dump_id is not None and dump_id.startswith(AUTOMATIC):
            self._to_dump_again = True  # what it was to mend stays wrong until the next dump
        outcome = self._send(CancelDump(dump_id=dump_id, tables=tables), ACT_S)
        for cancelled in (outcome or {}).get("dumps", ()):
            self.standstills.append(Standstill(cancelled, tables, "cancelled", self._source.mark()))

    def options(self) -> None:
        """Change how chunks are read."""
        rng = self._rng
        changes: dict[str, int] = {
            "chunk_rows": rng.choice((1, 5, 40, 1000)),
            "parallelism": rng.choice((1, 2, 4, MOST_PARALLEL)),
            "delay_ms": rng.choice((0, 0, 20)),
            "rows_per_second": rng.choice((0, 0, 500)),
        }
        chosen = rng.sample(sorted(changes), rng.randint(1, 3))
        self._send(SetDumpOptions(**{name: changes[name] for name in chosen}))

    def read_by(self, **options: int) -> None:
        """Set options of how chunks are read."""
        self._send(SetDumpOptions(**options), ACT_S)

    def quicken(self) -> None:
        """The end of a run: let everything come to its end soon."""
        self.resume()
        self.read_by(chunk_rows=500, delay_ms=0, rows_per_second=0, parallelism=4)
        if self._to_dump_again:
            self.dump("all")  # or the run may show nothing

    # ------------------------------------------------------------ inside

    def _send(self, command: Command, timeout_s: float = 0.0) -> dict[str, Any] | None:
        """What came of it, if that is known in time and it was not refused."""
        shown = command.to_json()
        keys = shown["data"].pop("keys", None)
        told = f"{shown['type']} {shown['data']}" + (f" {len(keys)} keys" if keys else "")
        outcome: dict[str, Any] = {}
        with contextlib.suppress(TidelogError):
            outcome = app.send_command(self._config, command, timeout_s=timeout_s).to_dict()
        done = outcome.get("state") == "done" and outcome.get("error") is None
        self._note(f"{told}{'' if done or not timeout_s else ': ' + str(outcome)}")
        return outcome.get("details") if done else None

    def _some_dump(self) -> str | None:
        going = [d["dump_id"] for d in self._dumps() if d["status"] in ("queued", "running")]
        return self._rng.choice(going) if going else None

    def _dumps(self) -> list[dict[str, Any]]:
        return [document for _, document in self._documents(DUMP_PREFIX)]

    def _documents(self, prefix: str) -> list[tuple[str, Any]]:
        state = open_state(self._config.state.location)
        try:
            found = [(key, state.get(key)) for key in state.keys(prefix)]
            return [(key, document.value) for key, document in found if document is not None]
        finally:
            state.close()

    def _being_read(self) -> int:
        """Wait a while until no reader has a chunk any more; how many have one then."""
        asked_ms = unix_ms()
        deadline = time.monotonic() + 1.5
        busy = MOST_PARALLEL
        while busy and time.monotonic() < deadline:
            fresh = [s for k, s in self._documents(STATUS_KEY) if k == STATUS_KEY]
            if fresh and fresh[0]["updated_ms"] > asked_ms:
                busy = int(fresh[0].get("readers_busy", MOST_PARALLEL))
            time.sleep(0.1)
        return busy


def _even(table: str, key: Key) -> bool:
    return table != "app.ints" or int(key[0] or 0) % 2 == 0
