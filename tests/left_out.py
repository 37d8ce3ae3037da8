"""Tests whose server, or Spark, needs what this machine lacks are left out, counted and told.

So `make test` says on a developer's machine what to install, instead of failing hundreds of times
for one reason. Only `MissingProgramError` leaves a test out: a server that is there and fails is a
failure. CI installs all of it (`.ci/run`), so nothing is left out there unseen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

import pytest

from tidelog.errors import MissingProgramError

_PREFIX = "Skipped: not on this machine: "


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, MissingProgramError):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"{_PREFIX}{call.excinfo.value}")
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """Behind pytest's own summary, so that it is the last that is read."""
    terminalreporter = config.pluginmanager.get_plugin("terminalreporter")
    if terminalreporter is None:  # a worker of xdist
        return
    reasons = Counter(
        report.longrepr[2].removeprefix(_PREFIX)
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple) and report.longrepr[2].startswith(_PREFIX)
    )
    for reason, count in reasons.most_common():
        tests = "1 test was" if count == 1 else f"{count:,} tests were"
        terminalreporter.write_line(f"{tests} left out: {reason}", yellow=True, bold=True)
