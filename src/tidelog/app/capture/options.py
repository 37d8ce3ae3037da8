"""Sizes and times of capture and dumps, as the configuration has them."""

from __future__ import annotations

from tidelog.capture.engine import CaptureOptions
from tidelog.config import Config
from tidelog.model.dump_options import DumpOptions


def capture_options(config: Config) -> CaptureOptions:
    """Of ``capture``."""
    capture = config.capture
    return CaptureOptions(
        flush_bytes=capture.flush_bytes,
        flush_s=capture.flush_ms / 1000,
        buffer_bytes=capture.buffer_bytes,
        read_bytes_per_s=capture.read_bytes_per_second,
    )


def dump_options(config: Config) -> DumpOptions:
    """Of ``dump``, for dumps that say nothing else."""
    dump = config.dump
    return DumpOptions(**{name: getattr(dump, name) for name in DumpOptions.model_fields})
