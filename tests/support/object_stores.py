"""Object stores besides S3, for suites that run over any: parameters that are names of fixtures."""

from __future__ import annotations

import pytest

EMULATED = [
    pytest.param(each, marks=[pytest.mark.integration, pytest.mark.thorough])
    for each in ("azure", "gcs")
]
