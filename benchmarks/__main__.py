"""Run every benchmark, one after the other: ``python -m benchmarks [--quick] [NAME]...``.

Each is a program of its own, so that peak memory and CPU are its own; see its ``--help``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.table import HEADER

HERE = Path(__file__).parent

# What another one runs: not by default.
WITHIN = {"delta"}  # lake

# Little data: shows that a benchmark runs. One that is not listed is run with --quick.
QUICK = {
    "binlog_scan": ["--rows", "20000"],
    "decode": ["--seconds", "0.2", "--batch-rows", "8192"],
    "engine": ["whole", "--quick"],
    "delta_sources": ["fold", "--quick"],  # Spark's part is the same as that of "delta"
    "scan": ["--transactions", "10"],
    "stream": ["--rows", "20000", "--runs", "1"],
}


def main() -> int:
    known = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"default: all but delta of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    arguments = parser.parse_args()
    failed, table = [], []
    for name in arguments.names or [each for each in known if each not in WITHIN]:
        print(f"\n== {name}", flush=True)
        options = QUICK.get(name, ["--quick"]) if arguments.quick else []
        command = [sys.executable, "-m", f"benchmarks.bench_{name}", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                if line.startswith("| "):
                    table.append(line)
        if process.returncode:
            failed.append(name)
    print(f"\n{HEADER}{''.join(table)}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
