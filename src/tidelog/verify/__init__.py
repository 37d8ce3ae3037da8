"""Compares the rows of outputs with those of the source."""
