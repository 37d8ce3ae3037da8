"""The messages for requests that an object store refuses."""

from __future__ import annotations

import socket

import pytest

from tidelog.eventlog.object_storage import storage_error

TOKEN = (
    "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 2.3s, "
    "after 6 retries, max_retries: 6, retry_timeout: 20s  - HTTP error: error sending request"
)
METADATA = (
    "Generic GCS error: Error performing GET http://metadata.google.internal/computeMetadata/v1/"
    "instance/service-accounts/default/token in 1s - HTTP error: error sending request"
)


@pytest.mark.parametrize("text", [TOKEN, METADATA])
def test_a_host_without_credentials_is_named(text: str) -> None:
    """As of an executor, whose environment is not the driver's."""
    told = str(storage_error("cannot read s3://b/log.json", RuntimeError(text)))
    assert f"host {socket.gethostname()} has credentials" in told
    assert "executors have an environment of their own: give `storage_options`" in told


def test_a_store_that_is_away_is_no_lack_of_credentials() -> None:
    away = RuntimeError("Generic S3 error: Error performing GET http://s3.example/b/k in 1s")
    assert "credentials for it" not in str(storage_error("cannot read", away))
