"""``tidelog.yaml``: what it says, as a `Config`."""

from tidelog.config.loading import load_config, parse_config
from tidelog.config.models import SECTIONS, Config, Dump, Rest

__all__ = ["SECTIONS", "Config", "Dump", "Rest", "load_config", "parse_config"]
