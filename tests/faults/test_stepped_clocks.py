"""The wall clock of a host of the campaign is stepped, and nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.campaign import switches
from tests.e2e.history_spec import ROOT
from tests.left_out import SAID

LATE_S = 1.5
"""Libfaketime looks at the file each second."""
NEAR_S = 5.0
TELLS = """
import ctypes, json, os, sys, threading, time
from pathlib import Path
from tests.campaign import switches
libc = ctypes.CDLL(None)
if not os.fork():  # as captures are
    switches.install(Path(sys.argv[1]))
    for line in sys.stdin:
        begun, condition = time.monotonic(), threading.Condition()
        with condition:
            condition.wait(0.2)
        time.sleep(0.2)
        waited = time.monotonic() - begun
        print(json.dumps([time.time(), libc.time(None), time.monotonic(), waited]), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.fixture(params=["faketime", "patched"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "patched":
        monkeypatch.setattr(switches, "LIBFAKETIME", "")
    elif not switches.LIBFAKETIME:
        pytest.skip(f"{SAID}libfaketime, for clocks that step: apt-get install faketime")
    return str(request.param)


@pytest.fixture
def process(library: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    switches.prepare(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", TELLS, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **switches.faketime()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


def clock_offsets(process: subprocess.Popen[str]) -> dict[str, float]:
    """How far each clock is ahead of ours, and how long it waits for 0.4 s."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("tell\n")
    process.stdin.flush()
    python, c, monotonic, waited = json.loads(process.stdout.readline())
    return {
        "python": python - time.time(),
        "c": c - time.time(),
        "monotonic": monotonic - time.monotonic(),
        "waited": waited,
    }


def test_the_clock_is_set_ahead_and_back(
    process: subprocess.Popen[str], tmp_path: Path, library: str
) -> None:
    clock_offsets(process)
    for offset_s in (0.0, 3600.0, -3600.0, 60.0, 0.0):
        switches.set_clock(tmp_path, offset_s)
        time.sleep(LATE_S)
        found = clock_offsets(process)
        assert abs(found["python"] - offset_s) < NEAR_S
        assert abs(found["c"] - (offset_s if library == "faketime" else 0)) < NEAR_S
        assert abs(found["monotonic"]) < NEAR_S
        assert 0.3 < found["waited"] < NEAR_S
