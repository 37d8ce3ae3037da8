"""The option ``types``: which columns get a type of their own in place of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ArrayTypes = Literal["native", "text"]


@dataclass(frozen=True, slots=True)
class ColumnTypes:
    """What to do with columns of types that not every reader has.

    Attributes:
        arrays: ``native``: columns of arrays are arrays, of one dimension. ``text``: they are text.
        numeric: (precision, scale) of the decimals that numbers without limits become; None: they
            are text.
    """

    arrays: ArrayTypes = "native"
    numeric: tuple[int, int] | None = None
