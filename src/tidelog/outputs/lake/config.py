"""What outputs into a lake have in common."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, model_validator

from tidelog.kinds.sections import Duration
from tidelog.outputs.base.sections import SteppedSection


class LakeSection(SteppedSection):
    """Tables of a lake, one for each source table, kept by MERGE."""

    optimize_every: Duration | None = Field(
        default=None,
        description="After so long the small files of tables that were written are rewritten as "
        "large ones, between two batches. Unset: never.",
        examples=["1h"],
    )
    vacuum_after: Duration | None = Field(
        default=None,
        description="With `optimize_every`: then files are removed that no version of the last so "
        "long has. At least a week. Unset: never.",
        examples=["7d"],
    )
    parallelism: int = Field(default=2, ge=1, le=256, description="Tables that are merged at once.")

    @model_validator(mode="after")
    def _vacuum_is_safe(self) -> LakeSection:
        if self.vacuum_after is None:
            return self
        if self.optimize_every is None:
            raise ValueError("vacuum_after needs optimize_every")
        if self.vacuum_after < timedelta(days=7):
            raise ValueError("vacuum_after: readers may still need younger files; at least 7d")
        return self
