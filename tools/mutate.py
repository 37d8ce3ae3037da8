"""Breaks each rule of docs/INVARIANTS.md by a patch, and reports whether a quick test fails.

    python tools/mutate.py [--write] [NAME...]

A patch of `tests/mutants` names its rule in the first line and its test in the second. It is applied
to a copy of the sources. Exits with 1 if a test passes with a broken rule, or fails without one.
``--write`` renews the table in docs/internals/mutants.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATCHES = ROOT / "tests" / "mutants"
PAGE = ROOT / "docs" / "internals" / "mutants.md"
TIMEOUT_S = 60
HEADER = re.compile(r"Rule (\d+): (.+)\nTest: (\S+)\n")
ABOUT = """\
# Broken rules, and the tests that notice

`make mutate` breaks each of these rules of the [invariants](../INVARIANTS.md) by a patch of `tests/mutants`, one at a time, in a copy of the sources, and runs
the quick test named for it. All are noticed. This table is written by `python tools/mutate.py --write`.

| invariant | what is broken | the test that fails |
|---|---|---|
"""


@dataclass(frozen=True)
class Mutant:
    """A patch, the number of the invariant and the rule that it breaks, and the test."""

    patch: Path
    invariant: int
    rule: str
    test: str


def mutants() -> list[Mutant]:
    found = []
    for patch in sorted(PATCHES.glob("*.patch")):
        header = HEADER.match(patch.read_text(encoding="utf-8"))
        if header is None:
            raise SystemExit(f"{patch}: the first lines must be 'Rule N: …' and 'Test: …'")
        found.append(Mutant(patch, int(header[1]), header[2], header[3]))
    return found


def test_passes(source: Path, test: str) -> bool:
    """Return True if the test passes with ``source`` in place of the sources."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        test,
    ]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:  # threads of a failed test may run on
        return b" failed" not in (error.stdout or b"")
    if done.returncode not in (0, 1):
        raise SystemExit(f"{test} could not be run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of patches' names; none: all")
    parser.add_argument("--write", action="store_true", help="renew the page")
    given = parser.parse_args()
    chosen = [
        m for m in mutants() if not given.names or any(n in m.patch.stem for n in given.names)
    ]
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        whole = Path(directory) / "whole"
        shutil.copytree(ROOT / "src", whole / "src")
        for test in sorted({mutant.test for mutant in chosen}):
            if not test_passes(whole / "src", test):
                failed += 1
                print(f"{test} fails without a mutant")
        for mutant in chosen:
            broken = Path(directory) / mutant.patch.stem
            shutil.copytree(ROOT / "src", broken / "src")
            apply = ["patch", "-p1", "--silent", "-i", str(mutant.patch)]
            if subprocess.run(apply, cwd=broken).returncode:  # noqa: S603
                raise SystemExit(f"{mutant.patch} does not apply any more: write it again")
            noticed = not test_passes(broken / "src", mutant.test)
            failed += not noticed
            print(f"{'noticed' if noticed else 'NOT NOTICED'}: {mutant.patch.stem}", flush=True)
            shutil.rmtree(broken)
    if given.write:
        rows = [f"| {m.invariant} | {m.rule} | `{m.test}` |" for m in mutants()]
        PAGE.write_text(ABOUT + "\n".join(rows) + "\n", encoding="utf-8")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
