"""The section that all outputs into a lake share."""

from __future__ import annotations

from datetime import timedelta

from pydantic import field_validator

from tidelog.kinds.sections import Duration
from tidelog.outputs.base.sections import SteppedSection


class LakeSection(SteppedSection):
    """Tables of a lake, one for each source table."""

    vacuum_after: Duration | None = None

    @field_validator("vacuum_after")
    @classmethod
    def _vacuum_is_safe(cls, after: timedelta | None) -> timedelta | None:
        if after is not None and after < timedelta(days=7):
            raise ValueError("vacuum_after: readers may still need younger files; at least 7d")
        return after
