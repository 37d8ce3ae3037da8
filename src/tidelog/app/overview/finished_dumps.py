"""Which dumps of a status document have ended, and which of their tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog.capture.dumps.state_machine import FINISHED, UNFINISHED


def dump_goes_on(dump: Mapping[str, Any]) -> bool:
    """Is the dump queued, running or paused?"""
    return dump.get("status") in UNFINISHED


def table_has_ended(table: Mapping[str, Any]) -> bool:
    """Is the dump's table done, failed or cancelled?"""
    return table.get("status") in FINISHED
