"""The section ``types``, of outputs and of the Spark source."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from tidelog.kinds.sections import Section
from tidelog.model.column_types import ArrayTypes, ColumnTypes


def _check_limits(limits: tuple[int, int]) -> tuple[int, int]:
    precision, scale = limits
    if not 0 <= scale <= precision <= 38 or precision < 1:
        raise ValueError("a decimal has 1 to 38 digits, and 0 to that many after the point")
    return limits


class DecimalLimits(Section):
    """The digits of a decimal."""

    decimal: Annotated[tuple[int, int], AfterValidator(_check_limits)] = Field(
        description="Digits in all, at most 38, and digits after the point.", examples=[[38, 18]]
    )


class TypesSection(Section):
    """The types of columns for which not every reader has one; of PostgreSQL's columns that belong
    to no key. They are for new columns and tables: a column that exists keeps its type.
    """

    arrays: ArrayTypes = Field(
        default="native",
        description="`native`: arrays of built-in types are arrays. A table with a value of "
        "several dimensions, or whose first index is not 1, is left out. `text`: they are "
        "PostgreSQL's text, such as `{1,2}`.",
    )
    numeric: Literal["text"] | DecimalLimits = Field(
        default="text",
        description="Of `numeric` without limits or of more than 38 digits. `text`: all digits. "
        "`{decimal: [38, 18]}`: a decimal. A table with a value that it does not hold exactly "
        "(more digits, `NaN`, `Infinity`) is left out: nothing is rounded.",
        examples=[{"decimal": [38, 18]}],
    )

    def column_types(self) -> ColumnTypes:
        """Return the types without the section's form."""
        limits = None if self.numeric == "text" else self.numeric.decimal
        return ColumnTypes(self.arrays, limits)


TYPES: Any = Field(
    default={},
    description="Types of arrays and of numbers without limits, in new columns; see *types*.",
    examples=[{"arrays": "text"}],
)
