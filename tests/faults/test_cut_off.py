"""The leader alone loses something amid a dump, and another host that has it takes over."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.faults.two_captures import DATABASE, LOG, STATE, TwoCaptures

from tidelog.system.peer_check import ANSWER_S, CHECK_AFTER_S

pytestmark = [pytest.mark.integration, pytest.mark.slow]
ROWS, CHUNK_ROWS = 900, 25
FINISHED = 8
"""So many chunks, at least, are finished when the leader loses something."""
SOON_S = 8.0
"""Beyond the lease, or what tells it from a slow one: for a takeover on a busy machine."""
thorough = pytest.mark.thorough


@contextmanager
def writing(pair: TwoCaptures) -> Iterator[list[int]]:
    """One row after the other beside the dump; their ids."""
    written: list[int] = []
    stop = threading.Event()

    def write() -> None:
        number = ROWS
        while not stop.wait(0.05):
            number += 1
            pair.write(number, number)
            written.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        stop.set()
        writer.join(30)


@pytest.mark.parametrize(
    ("store", "loss", "path"),
    [
        ("postgresql", "killed", ""),
        ("postgresql", "refuse", STATE),
        *(
            pytest.param(store, loss, path, marks=thorough)
            for store, loss, path in [
                ("postgresql", "frozen", ""),
                ("postgresql", "refuse", LOG),
                ("postgresql", "refuse", DATABASE),
                ("postgresql", "silence", DATABASE),
                ("postgresql", "silence", STATE),
                ("postgresql", "silence", LOG),
                ("zookeeper", "killed", ""),
                ("zookeeper", "frozen", ""),
                ("zookeeper", "refuse", STATE),
                ("zookeeper", "silence", STATE),
                ("zookeeper", "refuse", LOG),
                ("zookeeper", "silence", LOG),
                ("zookeeper", "refuse", DATABASE),
                ("zookeeper", "silence", DATABASE),
                ("log", "killed", ""),
                ("log", "frozen", ""),
                ("log", "refuse", LOG),
                ("log", "silence", LOG),
                ("log", "refuse", DATABASE),
                ("log", "silence", DATABASE),
            ]
        ),
    ],
)
def test_the_other_host_continues_and_reads_no_finished_chunk_twice(
    request: pytest.FixtureRequest,
    database: str,
    tmp_path: Path,
    store: str,
    loss: str,
    path: str,
) -> None:
    with ExitStack() as opened:
        pair = TwoCaptures(
            request,
            store,
            database,
            tmp_path,
            opened,
            lease_s=3.0 if store == "zookeeper" else 2.0,
            rest=f"dump: {{chunk_rows: {CHUNK_ROWS}, delay_ms: 150}}",
        )
        pair.write(1, ROWS)
        a, b = pair.hosts
        a.start()
        pair.wait_for(lambda: pair.chunks())
        b.start()
        written = opened.enter_context(writing(pair))
        pair.wait_for(lambda: pair.stands_by(a) or pair.stands_by(b))
        pair.wait_for(lambda: len(pair.chunks()) >= FINISHED)
        if pair.leads(b):  # on a busy machine a lease ends by itself
            a, b = b, a
        assert a.capture is not None
        before = len(pair.epochs)
        if loss == "killed":
            a.kill()
        elif loss == "frozen":
            a.capture.send(signal.SIGSTOP)
        else:
            getattr(a.paths[path], loss)()
        finished = {chunk.chunk_id: chunk for chunk in pair.chunks()}
        assert len(finished) < ROWS / CHUNK_ROWS, "the dump is over"
        took_s = pair.wait_for(lambda: len(pair.epochs) > before)
        noticed_s = CHECK_AFTER_S + ANSWER_S if loss == "silence" and path != STATE else 0.0
        assert took_s < max(pair.lease_s, noticed_s) + SOON_S
        led = {note.epoch for note in b.notes.so_far() if note.what == "leads"}
        assert pair.epochs[-1] in led, "the other one leads"
        pair.wait_for(pair.is_dumped)
        # It comes back amid of it all, and does no harm.
        if loss == "frozen":
            a.capture.send(signal.SIGCONT)
        for one in a.paths.values():
            one.heal()
        time.sleep(1.0)
        last = written[-1]
        pair.wait_for(lambda: last in pair.inserted())
    assert finished.keys() <= {chunk.chunk_id for chunk in pair.chunks()}
    inserted = pair.inserted()
    assert inserted == written[: len(inserted)], "each change once"
    dumped = [number for number in pair.dumped() if number <= ROWS]
    assert sorted(dumped) == list(range(1, ROWS + 1)), "each row once"
    pair.judge()


def test_a_standby_that_can_t_reach_the_source_says_so_and_lets_another_lead(
    request: pytest.FixtureRequest, database: str, tmp_path: Path
) -> None:
    with ExitStack() as opened:
        names = ("a", "b", "c")
        pair = TwoCaptures(
            request, "postgresql", database, tmp_path, opened, lease_s=2.0, names=names
        )
        pair.write(1, 10)
        a, b, c = pair.hosts
        a.start()
        pair.wait_for(pair.chunks)
        b.paths[DATABASE].refuse()
        b.start()
        pair.wait_for(lambda: [one["holder"] for one in pair.status()["failing"]])
        assert b.capture is not None
        (told,) = pair.status()["failing"]
        assert told["holder"].endswith(f":{b.capture.pid}")
        assert "server closed the connection" in told["trouble"]
        c.start()
        pair.wait_for(lambda: pair.stands_by(c))
        a.kill()
        pair.wait_for(lambda: pair.leads(c))
        assert not [note for note in b.notes.so_far() if note.what == "leads"]
        c.kill()
        time.sleep(pair.lease_s + 2.0)
        assert not pair.leads(b)
        b.paths[DATABASE].heal()
        pair.wait_for(lambda: pair.leads(b))
