"""PostgreSQL's log reader and checks, with defaults for what a test does not care about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.ports import SchemaRegistry
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.catalogue.schemas import PostgresSchemaFinder
from tidelog.sources.postgres.connect import Connection
from tidelog.sources.postgres.preflight.checks import PostgresPreflight
from tidelog.sources.postgres.stream.log_reader import PostgresLogReader

OF_PUBLICATIONS = ("watermark_schema", "strategy", "signal_table")


def _publications(
    slot: str, tables: Sequence[str], options: dict[str, Any], exclude_columns: Sequence[str] = ()
) -> Publications:
    """Takes the options of the publications out of ``options``."""
    own = {name: options.pop(name) for name in OF_PUBLICATIONS if name in options}
    name = options.pop("publication", "tidelog")
    return Publications(name, tables, slot=slot, exclude_columns=exclude_columns, **own)


def _finder(publications: Publications, options: dict[str, Any]) -> PostgresSchemaFinder:
    keys, excluded = options.pop("keys", None), options.pop("exclude_columns", ())
    return PostgresSchemaFinder(keys, publications.names, excluded)


def publication_sql(publications: Publications, connection: Connection) -> list[str]:
    """The SQL that publishes what is not published; empty if all is."""
    return [sql for step in publications.planner(connection).steps() for sql in step.statements]


def log_reader(
    dsn: str,
    registry: SchemaRegistry,
    *,
    slot: str = "tidelog",
    tables: Sequence[str] = ("*.*",),
    **options: Any,
) -> PostgresLogReader:
    publications = _publications(slot, tables, options)
    finder = _finder(publications, options)
    return PostgresLogReader(dsn, registry, publications, slot=slot, finder=finder, **options)


def preflight(
    dsn: str, *, slot: str = "tidelog", tables: Sequence[str] = ("*.*",), **options: Any
) -> PostgresPreflight:
    publications = _publications(slot, tables, options, options.get("exclude_columns", ()))
    finder = _finder(publications, options)
    return PostgresPreflight(dsn, publications, slot=slot, finder=finder, **options)
