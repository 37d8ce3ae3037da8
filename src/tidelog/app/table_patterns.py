"""Which of the configured patterns name no table."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidelog.errors import TidelogError
from tidelog.ports import Catalogue

logger = logging.getLogger(__name__)


def unmatched(patterns: Sequence[str], catalogue: Catalogue) -> list[str]:
    """Patterns that match no table of the source: misspelled, or of tables to come."""
    return [pattern for pattern in patterns if not catalogue.tables([pattern])]


def tell_unmatched(patterns: Sequence[str], catalogue: Catalogue) -> None:
    """In the log lines."""
    try:
        lost = unmatched(patterns, catalogue)
    except TidelogError:
        return  # what needs the catalogue next will tell
    for pattern in lost:
        logger.warning(
            "source.tables: no table matches %r; one that is created later is captured", pattern
        )
