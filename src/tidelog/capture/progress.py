"""How far a capture is, for status."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.records import Resume


@dataclass(slots=True)
class CaptureProgress:
    """What an engine did, for status.

    ``covered``: all that was committed before this position in the source is durable in the event
    log, whether or not a record of it says so. ``bytes``: of the records' payloads;
    ``append_s``: how long appending took, until each segment was durable.
    """

    position: int = 0
    covered: int = 0
    durable: Resume | None = None
    records: int = 0
    segments: int = 0
    bytes: int = 0
    append_s: float = 0.0
    next_offset: int = 0
    last_commit_ts: int = 0
    buffer_bytes: int = 0
    buffer_waited_s: float = 0.0
    open_windows: int = 0
    retained_bytes: int = 0
    unseen_transactions: int = 0
    held: bool = False
