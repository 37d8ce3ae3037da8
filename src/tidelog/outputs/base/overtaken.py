"""Another driver was faster."""

from __future__ import annotations

from tidelog.errors import OutputRefusedError


class OvertakenError(OutputRefusedError):
    """Another pipeline has committed to the destination meanwhile."""
