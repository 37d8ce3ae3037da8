"""Sizes and times of capture and dumps, as the configuration has them."""

from __future__ import annotations

from dataclasses import replace

from tidelog.capture.engine import CaptureOptions
from tidelog.config import Config
from tidelog.model.dump_options import DumpOptions
from tidelog.model.log_locations import is_url

IDLE_POSITION_S = 60.0
"""Between two positions without records, in a log on an object store: each costs requests, here and
of all who read.
"""


def capture_options(config: Config) -> CaptureOptions:
    """Of ``capture``."""
    capture = config.capture
    options = CaptureOptions(
        flush_bytes=capture.flush_bytes,
        flush_s=capture.flush_ms / 1000,
        buffer_bytes=capture.buffer_bytes,
        read_bytes_per_s=capture.read_bytes_per_second,
    )
    paid = is_url(config.log.path)
    return replace(options, idle_position_s=IDLE_POSITION_S) if paid else options


def dump_options(config: Config) -> DumpOptions:
    """Of ``dump``, for dumps that say nothing else."""
    dump = config.dump
    return DumpOptions(**{name: getattr(dump, name) for name in DumpOptions.model_fields})
