"""Compares what outputs hold with what the source holds."""
