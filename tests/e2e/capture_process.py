"""A nursery of captures, for tests: it imports Tidelog once and forks `tidelog capture CONFIG` from
that, so that a test may kill and start many. Housekeeping is frequent: seconds see all of it.

On stdin: a JSON line with the arguments of `_capture`. On stdout: ``started PID``, at once, and
``ended PID CODE`` when it has ended. At the end of stdin it kills what runs, and ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import random
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.campaign import switches  # it may have to put another time.sleep in place

# isort: split
from tests.campaign import sessions, witness
from tests.e2e import engine_program
from tests.support import namespaces

from tidelog import app
from tidelog.capture.session import session
from tidelog.cli import main
from tidelog.state.log_store import LogBackend
from tidelog.system import failpoints, processes

session.STATUS_EVERY_S = 0.2
session.POLL_EVERY_S = 0.4
session.POLL_SHARE = 1.0
session.MAINTAIN_EVERY_S = 0.7
LogBackend.poll_interval_s = 0.4
TURN_S = 0.02
IN_WINDOWS = ("chunk.after_low", "chunk.after_read")


def _capture(
    config: str,
    log_file: str,
    failpoint: str,
    mutation: str,
    window_ms: str,
    engine: str,
    host: str,
    namespace: str,
) -> int:
    """In the fork; its exit code.

    Args:
        config: of capture.
        log_file: takes what it says.
        failpoint: as in the environment.
        mutation: of `tests.e2e.oracle_mutations`, or nothing.
        window_ms: see `tests.e2e.history_spec.Spec`.
        engine: as there; not a capture but a program with one.
        host: as if it ran on a host of this name, of a campaign; empty: on this one.
        namespace: of the network, which it is moved to; empty: that of this process.
    """
    log = os.open(log_file, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    null = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, null), (1, null), (2, log)):
        os.dup2(source, target)
    try:
        if mutation:
            from tests.e2e import oracle_mutations

            oracle_mutations.apply(mutation)
        if namespace:
            namespaces.enter(namespace)
        if host:
            _move_to(host)
            witness.install(Path(config).parent)
            switches.install(Path(config).parent)
            sessions.install(Path(config).parent)
            faulthandler.register(signal.SIGUSR1)  # what it does, for whoever finds it stuck
        if int(window_ms):
            _widen_windows(_wait(int(window_ms) / 1000))
        failpoints._armed.update(failpoints.parse(failpoint))
        if engine:
            logging.basicConfig(level=logging.INFO)
            engine_program.run(config, engine)
            return 0
        sys.argv = ["tidelog", "--log-level", "info", "capture", config]
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent would
        traceback.print_exc()
        return 70
    return 0


def _move_to(host: str) -> None:
    """Captures on other hosts don't see whether this one has ended, nor it whether they have."""
    here = processes._here()
    processes._here = lambda: f"{here} {host}"


def _wait(most_s: float) -> failpoints.Action:
    return lambda: time.sleep(random.random() * most_s)


def _widen_windows(wait: failpoints.Action) -> None:
    """Also where no watermark is written, and a window lasts from what a snapshot surely sees to
    the log's end when it is taken.
    """
    from tidelog.sources.mysql.chunks import reader

    failpoints._armed.update(dict.fromkeys(IN_WINDOWS, wait))
    visible_before, binlog_end = reader.MySqlChunkReader._visible_before, reader.binlog_end

    def seen_late(self: reader.MySqlChunkReader, connection: Any) -> int:
        visible = visible_before(self, connection)
        wait()
        return visible

    def ended_late(connection: Any) -> int:
        wait()
        return binlog_end(connection)

    reader.MySqlChunkReader._visible_before = seen_late  # type: ignore[method-assign]
    reader.binlog_end = ended_late


def _serve() -> None:
    running: set[int] = set()
    while True:
        if select.select([sys.stdin], [], [], TURN_S)[0]:
            line = sys.stdin.readline()
            if not line:
                break
            pid = os.fork()
            if not pid:
                os._exit(_capture(**json.loads(line)))
            running.add(pid)
            print(f"started {pid}", flush=True)
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.remove(pid)
                print(f"ended {pid} {os.waitstatus_to_exitcode(status)}", flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    assert app.run_capture  # all that a capture needs is imported
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test ends it
    with contextlib.suppress(BrokenPipeError):
        _serve()
    time.sleep(TURN_S)
