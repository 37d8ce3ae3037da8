"""Finds configured table patterns that match no table."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidelog.errors import TidelogError
from tidelog.ports import Catalogue

logger = logging.getLogger(__name__)


def unmatched_patterns(patterns: Sequence[str], catalogue: Catalogue) -> list[str]:
    """Return the patterns that match no table of the source: misspelled, or for future tables."""
    return [pattern for pattern in patterns if not catalogue.tables([pattern])]


def log_unmatched(patterns: Sequence[str], catalogue: Catalogue) -> None:
    """Log a warning for each pattern that matches no table."""
    try:
        unused = unmatched_patterns(patterns, catalogue)
    except TidelogError:
        return  # the next user of the catalogue reports the error
    for pattern in unused:
        logger.warning(
            "source.tables: no table matches %r; one that is created later is captured", pattern
        )
