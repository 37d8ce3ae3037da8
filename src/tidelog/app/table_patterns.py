"""Which of the configured patterns name no table."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.ports import Catalogue


def unmatched(patterns: Sequence[str], catalogue: Catalogue) -> list[str]:
    """Patterns that name none of the source's tables: misspelled, or their tables are to come."""
    return [pattern for pattern in patterns if not catalogue.tables([pattern])]
