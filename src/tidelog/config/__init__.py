"""``tidelog.yaml``: what it says, as a `Config`."""

from tidelog.config.models import SECTIONS, Config, Dump, Rest, load_config, parse_config

__all__ = ["SECTIONS", "Config", "Dump", "Rest", "load_config", "parse_config"]
