"""Object stores besides S3, for suites that run over any: parameters that are names of fixtures."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

EMULATED = [
    pytest.param(each, marks=[pytest.mark.integration, pytest.mark.thorough])
    for each in ("azure", "gcs")
]


def is_created(request: urllib.request.Request) -> bool:
    """Send the request that creates a bucket: is the bucket there now?"""
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as refused:
        return refused.code == 409  # it was there
    except OSError:
        return False
    return True
