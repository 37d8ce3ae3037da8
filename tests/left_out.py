"""Tests whose server, or Spark, needs what this machine lacks are left out, counted and reported.

So `make test` says on a developer's machine what to install, instead of failing hundreds of times
for one reason. `MissingProgramError` leaves a test out, or a skip whose reason begins with `SAID`;
a server that is there and fails is a failure. CI installs all of it (`.ci/run`) and runs what
`make test` left out before, so nothing is left out there unseen.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tidelog.errors import MissingProgramError

SAID = "not on this machine: "
"""So begins the reason of a skip that is to be counted as well."""
_PREFIX = f"Skipped: {SAID}"
SUMMARY = "TIDELOG_SUMMARY"
"""Environment: a file that the last lines are added to, for whoever runs several of us
(`tools/run_each.sh`).
"""
LEFT_OUT = "TIDELOG_LEFT_OUT"
"""Environment: a file that they are added to, one a line, for `make test-left-out`."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, MissingProgramError):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"{_PREFIX}{call.excinfo.value}")
    return report


_FILES = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Take the names of the files out of the environment, for tests that run pytest themselves."""
    config.stash[_FILES] = {name: os.environ.pop(name, "") for name in (SUMMARY, LEFT_OUT)}


def pytest_unconfigure(config: pytest.Config) -> None:
    """Behind pytest's own summary, so that it is the last that is read."""
    terminalreporter = config.pluginmanager.get_plugin("terminalreporter")
    if terminalreporter is None or hasattr(config, "workerinput"):  # a worker of xdist
        return
    left_out = [
        report
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple) and report.longrepr[2].startswith(_PREFIX)
    ]
    reasons = Counter(report.longrepr[2].removeprefix(_PREFIX) for report in left_out)
    told = []
    for reason, count in reasons.most_common():
        tests = "1 test was" if count == 1 else f"{count:,} tests were"
        told.append(f"{tests} left out: {reason}")
        terminalreporter.write_line(told[-1], yellow=True, bold=True)
    files = config.stash.get(_FILES, {})
    if files.get(LEFT_OUT):
        with Path(files[LEFT_OUT]).open("a", encoding="utf-8") as file:
            file.writelines(f"{report.nodeid}\n" for report in left_out)
    if files.get(SUMMARY):
        parts, _ = terminalreporter.build_summary_stats_line()
        counts = ", ".join(text for text, _ in parts)
        with Path(files[SUMMARY]).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in (counts, *told))
