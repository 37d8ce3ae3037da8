"""Loads ``tidelog.yaml`` as a `Config`."""

from tidelog.config.control import RestSection
from tidelog.config.loading import AnyConfig, as_config, load_config, parse_config
from tidelog.config.models import SECTIONS, Config, DumpSection

__all__ = [
    "SECTIONS",
    "AnyConfig",
    "Config",
    "DumpSection",
    "RestSection",
    "as_config",
    "load_config",
    "parse_config",
]
