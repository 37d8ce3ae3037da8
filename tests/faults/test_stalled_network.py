"""A network that stops between two messages holds up who waits for them, and nobody else."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.faults.silent_proxy import SilentProxy
from tests.support.postgres import PostgresServer

from tidelog.errors import ConnectionLostError
from tidelog.sources.postgres import connect as connecting

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
FOR_GOOD_S = 600.0
"""So long the client waits where a test is about its waiting."""


class Client:
    """`tests.faults.stalled_client` in a process of its own, and the lines that it writes."""

    def __init__(self, what: str, proxy: SilentProxy, end_s: float) -> None:
        dsn = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.stalled_client", what, dsn, str(end_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())

    def go_on(self) -> None:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def says(self, *beginnings: str, within_s: float = PATIENCE_S) -> str:
        """Its next line that begins so."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"none of {beginnings} within {within_s} s") from None
            if line.startswith(beginnings):
                return line

    def lives(self) -> None:
        """Its other threads run."""
        while not self._lines.empty():
            self._lines.get_nowait()
        for _ in range(5):
            self.says("tick", within_s=10.0)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def client(what: str, proxy: SilentProxy, end_s: float = FOR_GOOD_S) -> Iterator[Client]:
    one = Client(what, proxy, end_s)
    try:
        one.says("ready")
        yield one
    finally:
        one.kill()


@pytest.mark.parametrize(
    ("what", "behind"),
    [
        ("copy that fails", b"E"),  # no ReadyForQuery
        ("copy that ends", b"c"),  # CopyDone, and no CommandComplete
        ("copy that ends", b"d"),  # a row, and not its end
        ("identify", b"D"),
    ],
)
def test_who_waits_for_an_answer_holds_up_nobody(
    postgres: PostgresServer, what: str, behind: bytes
) -> None:
    with SilentProxy(postgres.port) as proxy, client(what, proxy) as one:
        proxy.stall_behind(behind)
        one.go_on()
        assert proxy.stalled.wait(PATIENCE_S)
        one.lives()
        proxy.cut()
        one.says("ended")


def test_who_ends_a_copy_at_its_limit_holds_up_nobody(postgres: PostgresServer) -> None:
    """That takes another connection. Where it can't be had the rest of the rows comes."""
    with SilentProxy(postgres.port) as proxy, client("copy that is cut", proxy) as one:
        proxy.refuses.set()
        one.go_on()
        assert proxy.stalled.wait(PATIENCE_S)
        one.lives()
        one.says("done")


@pytest.mark.parametrize(("what", "behind"), [("copy that fails", b"E"), ("identify", b"D")])
def test_an_answer_whose_end_does_not_come_is_given_up(
    postgres: PostgresServer, what: str, behind: bytes
) -> None:
    with SilentProxy(postgres.port) as proxy, client(what, proxy, end_s=0.5) as one:
        proxy.stall_behind(behind)
        one.go_on()
        assert "did not end in time" in one.says("ended")


@pytest.mark.parametrize(
    ("what", "behind"),
    [
        ("copy within a time", b"d"),
        ("copy within a time, plainly", b"d"),
        ("copy within a time", b"2"),  # BindComplete, and no CopyOutResponse
        ("statement within a time", b"D"),
    ],
)
def test_an_answer_that_stops_is_given_up_once_the_server_would_have_ended_it(
    postgres: PostgresServer, what: str, behind: bytes
) -> None:
    with SilentProxy(postgres.port) as proxy, client(what, proxy, end_s=0.5) as one:
        proxy.stall_behind(behind)
        one.go_on()
        assert proxy.stalled.wait(PATIENCE_S)
        one.lives()
        assert "did not end in time" in one.says("ended")


def test_an_answer_that_is_slow_and_moves_is_waited_for(postgres: PostgresServer) -> None:
    """Its rows take longer than the server may be silent."""
    what = "small copy within a time"
    with SilentProxy(postgres.port) as proxy, client(what, proxy, end_s=0.5) as one:
        proxy.pause_s = 0.25
        began = time.monotonic()
        one.go_on()
        one.says("done")
        assert time.monotonic() - began > 2.0


def test_a_server_that_falls_silent_once_we_are_let_in_is_given_up(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "CONNECT_TIMEOUT_S", 1)
    with SilentProxy(postgres.port) as proxy:
        proxy.stall_behind(b"Z")  # ReadyForQuery
        dsn = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
        began = time.monotonic()
        with pytest.raises(ConnectionLostError, match="did not end in time"):
            connecting.connect(dsn, purpose="test")
        assert time.monotonic() - began < 30
