"""Loads ``tidelog.yaml`` as a `Config`."""

from tidelog.config.control import Rest
from tidelog.config.loading import AnyConfig, as_config, load_config, parse_config
from tidelog.config.models import SECTIONS, Config, Dump

__all__ = [
    "SECTIONS",
    "AnyConfig",
    "Config",
    "Dump",
    "Rest",
    "as_config",
    "load_config",
    "parse_config",
]
