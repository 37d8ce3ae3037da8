"""A process that appends to an event log until it is killed, frozen or fenced."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import tidelog

ROOT = Path(__file__).parents[2]

# Appends forever; prints each offset once the append has returned.
APPENDER = """
import sys
import tidelog
from tests.unit.eventlog.records import SOURCE, batch, register
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.writer import EventLogWriter

path, epoch, work = sys.argv[1], int(sys.argv[2]), sys.argv[3]
writer = EventLogWriter.create(path, SOURCE, epoch)
register(path)
position = writer.resume.position + 10 if writer.resume else 10
print("leads", flush=True)
for n in range(200):
    meta = writer.append_log([batch([b"%06d" % position], position)])
    print(meta.first, position, flush=True)
    position += 10
    if n % 8 == 7 and work != "append":
        maintenance = EventLogMaintenance(path)
        if work == "rollup":
            maintenance.rollup(min_age_s=-10, min_segments=2, target_bytes=200)
        else:
            maintenance.retain(-10, hard_cap_bytes=40)
"""


def start(place: Path | str, epoch: int, work: str, failpoint: str = "") -> subprocess.Popen[str]:
    """``work``: append, rollup or retain."""
    environment = {
        **os.environ,
        "TIDELOG_FAILPOINT": failpoint,
        "PYTHONPATH": f"{Path(tidelog.__file__).parents[1]}:{ROOT}",
    }
    return subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(place), str(epoch), work],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def appended_positions(output: str) -> dict[int, int]:
    """Offsets → positions of appends that had returned."""
    lines = [line.split() for line in output.splitlines() if line[0].isdigit()]
    return {int(offset): int(position) for offset, position in lines}


def wait_frozen(process: subprocess.Popen[str], timeout_s: float = 60) -> None:
    """Return once the process has stopped itself (SIGSTOP)."""
    stat = Path(f"/proc/{process.pid}/stat")
    deadline = time.monotonic() + timeout_s
    while stat.read_text().rsplit(")", 1)[1].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)
