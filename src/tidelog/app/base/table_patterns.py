"""Selects tables by the patterns of a command, and finds patterns that match no table."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from tidelog.config import Config
from tidelog.errors import (
    ConfigError,
    ExcludedKeyError,
    TidelogError,
    UnsupportedTableError,
    UsageError,
)
from tidelog.model.patterns import (
    EXCLUDE,
    all_but,
    check_listed,
    matches,
    matching_columns,
    named_tables,
    patterns_without_table,
    similar_table,
    unmatched_column_text,
    unmatched_columns,
    unmatched_text,
)
from tidelog.model.schema import TableName
from tidelog.ports import Catalogue, SchemaRegistry

logger = logging.getLogger(__name__)

SOURCE_TABLES, SOURCE_KEYS = "source.tables", "source.keys"
WRONG_EXCLUSION = "Correct it, or leave it out; with * in the column's name it may match none"


def choose_tables(
    catalogue: Catalogue, captured: Sequence[TableName], patterns: Sequence[str]
) -> list[TableName]:
    """Return the captured tables that the patterns select; none: all. Raises UsageError if a
    pattern has another tool's syntax, or matches no captured table.
    """
    for pattern in patterns:
        try:
            check_listed(pattern)
        except ValueError as error:
            raise UsageError(f"{error}, not {pattern!r}") from None
    for pattern in patterns_without_table(patterns, captured):
        listed = ", ".join(map(str, captured)) or "none"
        advice = similar_table(pattern, captured, catalogue.partitioned)
        raise UsageError(
            f"{unmatched_text(pattern, 'captured table')}; {advice or f'captured are {listed}'}"
        )
    return [table for table in captured if not patterns or matches(all_but(patterns), table)]


def unmatched_patterns(config: Config, catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    """Yield the configured patterns that match no table: misspelled, or for future tables.

    Each with its place: `SOURCE_TABLES`, whose patterns are about all tables of the source, or
    `SOURCE_KEYS` and the ``tables`` of an output, about those that are captured. What an output
    excludes may as well be excluded from capture.
    """
    for pattern in dict.fromkeys(config.source.tables):
        if not catalogue.tables([pattern.removeprefix(EXCLUDE)]):
            yield SOURCE_TABLES, pattern
    captured = catalogue.tables(config.source.tables)
    for pattern in patterns_without_table(config.source.keys, captured):
        yield SOURCE_KEYS, pattern
    for output in config.outputs:
        for pattern in patterns_without_table(output.tables, captured):
            if pattern.startswith(EXCLUDE) and catalogue.tables([pattern.removeprefix(EXCLUDE)]):
                continue
            yield f"tables of output {output.name}", pattern


def log_unmatched(config: Config, catalogue: Catalogue) -> None:
    """Log a warning for each pattern that matches no table."""
    try:
        found = [
            (place, pattern, similar_table(pattern, (), catalogue.partitioned))
            for place, pattern in unmatched_patterns(config, catalogue)
        ]
    except TidelogError:
        return  # the next user of the catalogue reports the error
    for place, pattern, advice in found:
        of = "table" if place == SOURCE_TABLES else "captured table"
        does = {SOURCE_TABLES: "captured", SOURCE_KEYS: "read by this key"}.get(place, "delivered")
        does = "left out" if pattern.startswith(EXCLUDE) else does
        text = unmatched_text(pattern, of)
        advice = advice or f"one that is created later is {does}"
        logger.warning("%s: %s; %s", place, text, advice)


def unmatched_exclusions(
    config: Config, columns: Mapping[TableName, Sequence[str]]
) -> dict[str, tuple[str, list[TableName]]]:
    """Return the patterns of `source.exclude_columns` that match none of the captured tables'
    ``columns``, each with the sentence about it, and the tables of which it names a column.
    """
    fold = config.source.ignores_case_of_columns
    return {
        pattern: (
            f"source.exclude_columns: {unmatched_column_text(pattern, columns)}",
            named_tables(pattern, columns),
        )
        for pattern in unmatched_columns(config.source.exclusions, columns, ignore_case=fold)
    }


def check_exclusions(config: Config, catalogue: Catalogue, registry: SchemaRegistry) -> None:
    """Log a warning for each pattern of excluded columns that matches none.

    Raises ConfigError if one names a column that its table does not have, and no table was captured
    before: the values that it should keep out would be delivered. Also if a column is
    newly excluded by which a table's rows are matched. If it was excluded before, the table's key
    has changed since: then that table alone is refused.
    """
    source = config.source
    if not source.exclusions:
        return
    try:
        columns = catalogue.columns(catalogue.tables(source.tables))
    except TidelogError:
        return  # the next user of the catalogue reports the error
    fold = source.ignores_case_of_columns
    begins = all(registry.latest(table) is None for table in columns)
    for pattern, (text, named) in unmatched_exclusions(config, columns).items():
        if named and begins:
            raise ConfigError(f"{text}. {WRONG_EXCLUSION}")
        does = "captured" if pattern.startswith(EXCLUDE) else "excluded"
        logger.warning("%s; one that is added later is %s", text, does)
    for table, names in columns.items():
        excluded = set(matching_columns(source.exclusions, table, names, ignore_case=fold))
        known = registry.latest(table) if excluded else None
        if not excluded - {each.column.name for each in (known.excluded if known else ())}:
            continue
        try:
            catalogue.shape(table)
        except ExcludedKeyError as error:
            raise ConfigError(str(error)) from None
        except UnsupportedTableError:
            continue  # it is reported as refused
