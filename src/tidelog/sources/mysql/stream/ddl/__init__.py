"""Parses the effects of logged statements on tables, with only as much SQL as that needs.

The log holds DDL as text. The parser finds the tables that a statement names, whether their columns
may change, and whether rows changed without row events. Everything else (defaults, types) comes
from the catalogue. In doubt a statement counts as doing more.
"""
