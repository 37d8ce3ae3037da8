"""Which tables a list of patterns names: see `tidelog.model.patterns`."""

from tidelog.model.patterns import matches

__all__ = ["matches"]
