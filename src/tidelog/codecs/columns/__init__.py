"""Cells of a column and Arrow arrays, either way."""
