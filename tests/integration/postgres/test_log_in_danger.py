"""What capture does when the server keeps too much of its log for it: `source.when_log_in_danger`.

An old transaction holds the slot: so the server keeps all that is written after it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tidelog import app
from tidelog.capture import log_guard
from tidelog.config import Config, parse_config
from tidelog.control.commands import SetDumpOptions, StartDump
from tidelog.errors import GapError, LogInDangerError

pytestmark = pytest.mark.integration

ROWS = 3000
MUCH_MIB = 4


class Captured:
    """A database with the table ``t``, and a capture of it in this process."""

    def __init__(self, dsn: str, directory: Path, wanted: str) -> None:
        self.dsn = dsn
        self.slot = "danger_" + dsn.rsplit("/", 1)[1]
        self.config: Config = parse_config(
            f"source: {{kind: postgres, url: {json.dumps(dsn)}, slot: {self.slot}, tables: "
            f"[public.t], snapshot: no_data, when_log_in_danger: {wanted}, "
            f"log_danger_bytes: {MUCH_MIB}MiB}}\n"
            "log: {path: ./log}\nstate: {url: 'sqlite:///state.db'}\n"
            "capture: {flush_ms: 10, lease_ms: 1500}\n"
            "dump: {chunk_rows: 50, parallelism: 1, rows_per_second: 300}\n",
            "tidelog.yaml",
            directory,
            {},
        )
        self.sql = psycopg.connect(dsn, autocommit=True)
        self.sql.execute(
            "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE others (x text); "
            "CREATE TABLE held (x int)"
        )
        self.sql.execute(f"INSERT INTO t SELECT generate_series(1, {ROWS})")
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread()

    def start(self) -> None:
        self._stop.clear()
        self.failure = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            app.run_capture(self.config, stop_event=self._stop)
        except BaseException as failure:  # noqa: BLE001 - looked at by the test
            self.failure = failure

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self.sql.close()

    def ended_by(self, kind: type[Exception]) -> str:
        self._thread.join(60)
        assert isinstance(self.failure, kind), self.failure
        return str(self.failure)

    def wait_for(self, what: Callable[[dict[str, Any]], Any], timeout_s: float = 60) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := what(status := app.status(self.config).document)):
            assert time.monotonic() < deadline, (self.failure, status)
            time.sleep(0.1)
        return found

    def send(self, command: Any) -> None:
        answer = app.send_command(self.config, command, timeout_s=30).to_dict()
        assert answer["error"] is None, answer

    @contextmanager
    def danger(self) -> Iterator[None]:
        """As long as this lasts the server lets go of nothing."""
        with psycopg.connect(self.dsn) as old:
            old.execute("INSERT INTO held VALUES (1)")
            for _ in range(MUCH_MIB + 1):
                self.write()
            yield
            old.rollback()

    def write(self) -> None:
        """A MiB of log."""
        self.sql.execute(
            "INSERT INTO others SELECT string_agg(md5(i::text || n), '') "
            "FROM generate_series(1, 1024) i, generate_series(1, 32) n GROUP BY i"
        )
        self.sql.execute("TRUNCATE others")

    def slots(self) -> int:
        row = self.sql.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (self.slot,)
        ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def make(database: str, tmp_path: Path) -> Iterator[Callable[[str], Captured]]:
    made: list[Captured] = []

    def captured(wanted: str) -> Captured:
        made.append(Captured(database, tmp_path, wanted))
        return made[-1]

    yield captured
    for each in made:
        each.close()


def rows_read(status: dict[str, Any]) -> int:
    return sum(t["rows_read"] for dump in status.get("dumps", ()) for t in dump["tables"])


def test_dumps_wait_while_the_log_is_in_danger_and_the_log_does_not(
    make: Callable[[str], Captured],
) -> None:
    captured = make("pause_dumps")
    captured.start()
    captured.send(StartDump(dump_id="d1", tables=("public.t",)))
    captured.wait_for(rows_read)
    with captured.danger():
        status = captured.wait_for(lambda s: s if s.get("dumps_held") else None)
        time.sleep(1)  # what was being read is delivered
        held = rows_read(app.status(captured.config).document)
        captured.sql.execute(f"INSERT INTO t VALUES ({ROWS + 1})")
        captured.wait_for(
            lambda _: any(
                event["op"] == "c" and event["after"]["id"] == ROWS + 1
                for event in app.read_log(captured.config)
            )
        )
        captured.send(StartDump(dump_id="d2", tables=("public.t",)))
        time.sleep(1)
        assert rows_read(app.status(captured.config).document) == held < ROWS
        found = app.status(captured.config).document["overview"]
        assert {(each["status"], each["paused_by"]) for each in found["dumps"]} == {
            ("paused", "capture")
        }
        told = {each["kind"]: each["sentence"] for each in found["problems"]}
        assert set(told) == {"log-fills-disk", "dumps-held"}
        assert all("more than source.log_danger_bytes (" in sentence for sentence in told.values())
        assert status["log_guard"]["wanted"] == "pause_dumps"
    captured.send(SetDumpOptions(rows_per_second=0))

    def goes_on(status: dict[str, Any]) -> bool:
        captured.sql.execute("CHECKPOINT")  # says what runs: so the slot moves on
        captured.sql.execute("INSERT INTO others VALUES ('')")
        time.sleep(0.3)
        return not status["dumps_held"]

    captured.wait_for(goes_on)
    for dump_id in ("d1", "d2"):
        report = app.dump_wait(captured.config, dump_id, timeout_s=60).to_dict()
        assert (report["status"], report["paused_by"]) == ("completed", "")
        assert report["tables"][0]["rows_read"] >= ROWS


@pytest.mark.parametrize("wanted", ["stop", "drop_slot"])
def test_capture_stops_when_nothing_helps_and_drops_its_slot_only_if_asked_to(
    make: Callable[[str], Captured], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_guard, "STOP_AFTER_S", 1.5)
    captured = make(wanted)
    captured.start()
    captured.wait_for(lambda s: s.get("log_guard"))
    captured.sql.execute(f"INSERT INTO t VALUES ({ROWS + 1})")
    with captured.danger():
        said = captured.ended_by(LogInDangerError)
    assert f"source.when_log_in_danger: {wanted} says" in said
    assert app.status(captured.config).document["leader"] is None
    # In order: what was read by then is in the event log.
    assert [event["after"]["id"] for event in app.read_log(captured.config)] == [ROWS + 1]
    assert captured.slots() == (wanted == "stop")
    if wanted == "stop":
        return
    captured.sql.execute(f"INSERT INTO t VALUES ({ROWS + 2})")
    captured.start()
    assert "Capture dropped it itself" in captured.ended_by(GapError)
    app.reset(captured.config)
    captured.start()
    captured.send(SetDumpOptions(rows_per_second=0))
    captured.wait_for(
        lambda s: any(
            dump["dump_id"].startswith("gap-") and dump["status"] == "completed"
            for dump in s.get("dumps", ())
        )
    )
    assert captured.slots() == 1
