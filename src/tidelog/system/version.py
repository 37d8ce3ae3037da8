"""The release, for the package's metadata and for quick imports, and the number of its formats."""

from __future__ import annotations

from typing import Final

from tidelog.errors import NewerFormatError

__version__ = "0.2.0"

FORMAT: Final = 1
"""The greatest format number of stored data that this version reads (docs/how-to/upgrade.md)."""


def check_format(found: object, what: str) -> None:
    """Check the format number that is stored with ``what``; None: there is none, which means 1.

    Raises:
        NewerFormatError: if a newer version wrote it.
        ValueError: if it is no format number.
    """
    if found is None:
        return
    if not isinstance(found, int) or found < 1:
        raise ValueError("its format is not a number from 1 up")
    if found > FORMAT:
        raise NewerFormatError(
            f"{what} has format {found}, which a newer version of Tidelog wrote; {__version__} "
            f"reads formats up to {FORMAT}. Install that version here too, or put a backup back "
            "that was made before it ran."
        )
