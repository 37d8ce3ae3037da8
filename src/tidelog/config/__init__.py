"""Loads ``tidelog.yaml`` as a `Config`."""

from tidelog.config.control import Rest
from tidelog.config.loading import load_config, parse_config
from tidelog.config.models import SECTIONS, Config, Dump

__all__ = ["SECTIONS", "Config", "Dump", "Rest", "load_config", "parse_config"]
