import pytest

from tidelog.errors import (
    AccessRefusedError,
    DecodeError,
    OffsetGoneError,
    StorageError,
    TidelogError,
    UsageError,
)
from tidelog.spark.failures import find_error, known_failure


def test_our_error_is_found_in_sparks_text() -> None:
    text = (
        "[STREAM_FAILED] Query failed: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "tidelog.errors.OffsetGoneError: offset 1 is gone; dump again\n"
        "\nSQLSTATE: 38000"
    )
    found = find_error(text)
    assert isinstance(found, OffsetGoneError)
    assert str(found) == "offset 1 is gone; dump again"


def test_the_last_error_of_a_chain_counts() -> None:
    text = "tidelog.errors.OffsetGoneError: a\n\ntidelog.errors.DecodeError: b\n\n at java"
    assert isinstance(find_error(text), DecodeError)


def test_other_errors_are_not_ours() -> None:
    assert find_error("java.lang.OutOfMemoryError: heap") is None
    assert find_error("tidelog.errors.Nonsense: x") is None


# As Spark 4.2 with hadoop-aws 3.5.0 reported them to Python.
_S3A = "getFileStatus on s3a://bucket/lake/t: software.amazon.awssdk."


@pytest.mark.parametrize(
    ("java", "kind", "named"),
    [
        (
            f"java.net.ConnectException: {_S3A}core.exception.SdkClientException: Unable to "
            "execute HTTP request: Connect to 127.0.0.1:9 [/127.0.0.1] failed: Connection refused",
            StorageError,
            "ConnectException",
        ),
        (
            f"java.net.UnknownHostException: {_S3A}core.exception.SdkClientException: Received an "
            "UnknownHostException when attempting to interact with a service.",
            StorageError,
            "UnknownHostException",
        ),
        (
            "org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://bucket/lake/t/_delta_log': "
            f"{_S3A}services.s3.model.NoSuchBucketException: The specified bucket does not exist "
            "(Service: S3, Status Code: 404, Request ID: B7E2594946C8906F)",
            AccessRefusedError,
            "UnknownStoreException",
        ),
        (
            f"java.nio.file.AccessDeniedException: s3a://bucket/lake/t: {_S3A}services"
            ".s3.model.S3Exception: Forbidden (Service: S3, Status Code: 403)",
            AccessRefusedError,
            "AccessDeniedException",
        ),
        (
            "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class "
            "org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            UsageError,
            "S3AFileSystem",
        ),
        (
            "java.lang.NoClassDefFoundError: software/amazon/s3/analyticsaccelerator/request/X",
            UsageError,
            "analyticsaccelerator",
        ),
    ],
)
def test_what_hadoop_says_of_a_storage_is_told_as_what_to_do(
    java: str, kind: type[TidelogError], named: str
) -> None:
    found = known_failure(RuntimeError(f"An error occurred while calling z:io.delta.\n: {java}"))
    assert type(found) is kind
    assert named in str(found)


def test_an_error_of_the_jvm_that_is_no_storage_s_is_not_known() -> None:
    assert known_failure(RuntimeError("java.lang.IllegalStateException: 500 rows")) is None
