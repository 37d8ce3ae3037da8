"""Ways to break what keeps two leaders apart; see `tests.e2e.oracle_mutations`.

The rules stand behind each other, so that breaking one alone changes nothing that a reader of the
event log could see: a leader that does not look at its lease is stopped by the fence, and without
the fence a segment's name is still given once. Each of these breaks all that stand in one way.
"""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.capture import leadership
from tidelog.eventlog.storage import local

Patch = pytest.MonkeyPatch


def late_appends_overwrite(patch: Patch) -> None:
    """No look at the lease before an append, and a segment's name is given twice."""

    def put(self: local.LocalStorage, name: str, data: Any, guard: Any = None) -> bool:
        self.replace(name, data)
        return True

    patch.setattr(leadership.LeaseKeeper, "check", lambda self: None)
    patch.setattr(local.LocalStorage, "put_if_absent", put)
