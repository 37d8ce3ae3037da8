"""Converts between the cells of a column and Arrow arrays."""
