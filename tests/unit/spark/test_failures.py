import pytest

from tidelog.errors import (
    AccessRefusedError,
    DecodeError,
    OffsetGoneError,
    OutputError,
    OutputRefusedError,
    StorageError,
    TidelogError,
    UsageError,
)
from tidelog.spark.sessions.errors import (
    HostBusyError,
    SparkGoneError,
    find_error,
    known_error,
    start_failed_error,
)


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
def test_what_hadoop_says_of_a_storage_is_reported_as_what_to_do(
    java: str, kind: type[TidelogError], named: str
) -> None:
    found = known_error(RuntimeError(f"An error occurred while calling z:io.delta.\n: {java}"))
    assert type(found) is kind
    assert named in str(found)


@pytest.mark.parametrize(
    ("java", "advice"),
    [
        ("java.lang.NoClassDefFoundError: io/delta/kernel/Table", "Delta's jars are missing"),
        ("java.lang.ClassNotFoundException: org.apache.spark.sql.delta.catalog.DeltaCatalog",
         "Delta's jars are missing"),
        ("java.lang.ClassNotFoundException: delta.DefaultSource", "Delta's jars are missing"),
        ("java.lang.NoClassDefFoundError: Could not initialize class io.delta.storage.LogStore",
         "Delta's jars are missing, broken or of another version than Spark's (io.delta.storage"),
        ("java.lang.NoSuchMethodError: 'void org.apache.spark.sql.delta.X.<init>(int, long)'",
         "Delta's jars are missing"),
        ("java.lang.ClassNotFoundException: org.apache.iceberg.spark.SparkCatalog",
         "Iceberg's jars are missing"),
        ("java.lang.NoClassDefFoundError: software/amazon/awssdk/services/s3/model/S3Exception",
         "iceberg-aws-bundle"),
        ("org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme \"gs\"",
         "no class for this storage (gs)"),
        ("java.lang.ClassNotFoundException: org.apache.kafka.clients.Client",
         "Spark has no class org.apache.kafka.clients.Client: a jar"),
        ("java.lang.NoSuchMethodError: 'scala.Option org.apache.spark.sql.Dataset.x(int)'",
         "Spark has no class org.apache.spark.sql.Dataset"),
    ],
)  # fmt: skip
def test_a_class_that_is_missing_is_reported_by_whose_it_is(java: str, advice: str) -> None:
    found = known_error(RuntimeError(f"An error occurred while calling o1.save.\n: {java}\n"))
    assert type(found) is UsageError
    assert advice in str(found)


def test_an_error_of_the_jvm_that_is_no_storage_s_is_not_known() -> None:
    assert known_error(RuntimeError("java.lang.IllegalStateException: 500 rows")) is None


class _JavaError(RuntimeError):
    """As PySpark makes one of a query that ended."""

    def __init__(self, text: str, stack: str = "") -> None:
        super().__init__(text)
        self._stackTrace = stack
        self.java_exception = text.partition("\n: ")[2]


# As Spark 4.2 reported them on Java 17.
_PLANNER = "org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner"
_FACTORY = "org.apache.spark.api.python.PythonWorkerFactory"
_READ = "\n\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)"
_FLUSH = "\n\tat java.base/java.io.DataOutputStream.flush(DataOutputStream.java:128)"


@pytest.mark.parametrize(
    ("java", "kind", "named"),
    [
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider",
         OutputError, "was killed or ended by itself"),
        (f"java.io.EOFException{_READ}\n\tat {_PLANNER}.latestOffset(PythonStreamingSourceRunner"
         ".scala:235)", OutputError, "was killed or ended by itself"),
        (f"java.net.SocketException: Connection reset{_READ}\n\tat {_PLANNER}.latestOffset(X:1)",
         OutputError, "was killed or ended by itself"),
        ("java.io.IOException: Broken pipe\n\tat java.base/sun.nio.ch.SocketDispatcher.write0(Na"
         f"tive Method){_FLUSH}\n\tat {_PLANNER}.partitions(X:1)",
         OutputError, "was killed or ended by itself"),
        (f"java.io.IOException: Stream closed{_FLUSH}\n\tat {_FACTORY}.$anonfun$stopWorker$1(X:1)"
         f"\n\tat scala.Option.foreach(Option.scala:437)\n\tat {_FACTORY}.stopWorker(X:2)",
         OutputError, "was killed or ended by itself"),
        (f"java.io.IOException: Stream closed{_FLUSH}\n\tat scala.Option.foreach(Option.scala:437)"
         f"\n\tat {_FACTORY}.stopWorker(X:2)", OutputError, "was killed or ended by itself"),
        ("java.lang.IllegalStateException: Python daemon failed to launch worker with code -1",
         OutputError, "was killed or ended by itself"),
        ("org.apache.spark.SparkException: EOFException occurred while reading the port number from"
         " tidelog.spark.datasource.daemon's stdout", OutputError, "was killed or ended by itself"),
        ("java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect"
         " back after 60000 ms", HostBusyError, "within 60 s"),
        ('java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory'
         f"\n\tat java.base/java.lang.ProcessBuilder.start(X:1)\n\tat {_FACTORY}.startDaemon(X:2)",
         UsageError, "can't run /opt/python"),
        ("org.apache.spark.SparkException: \nError from python worker:\n  /usr/bin/python3: Error "
         "while finding module specification for 'tidelog.spark.datasource.daemon' (ModuleNotFound"
         "Error: No module named 'tidelog')\nSparkException: EOFException occurred "
         "while reading the port number from tidelog.spark.datasource.daemon's stdout.",
         UsageError, "has no module tidelog: set PYSPARK_PYTHON"),
        ("org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
         "  File \"x.py\", line 11, in <module>\nModuleNotFoundError: No module named 'pyarrow'\n",
         UsageError, "has no module pyarrow: set PYSPARK_PYTHON"),
    ],
)  # fmt: skip
def test_a_python_process_of_spark_that_is_gone_is_reported_wherever_spark_finds_it(
    java: str, kind: type[TidelogError], named: str
) -> None:
    """Also where it made an output fail."""
    killed = _JavaError("An error occurred\n: " + java)
    output = OutputError("output files: writing offsets 1 to 2 failed")
    output.__cause__ = killed
    for error in (killed, _JavaError("[STREAM_FAILED] Query terminated", java), output):
        found = known_error(error)
        assert type(found) is kind
        assert named in str(found)


def test_what_a_task_reads_over_the_network_is_no_python_process() -> None:
    reads = (
        "java.net.SocketException: Connection reset\n\tat java.base/sun.nio.ch.X.read(X:1)\n\tat "
        "org.apache.hadoop.fs.s3a.S3AInputStream.read(X:1)\n\tat org.apache.spark.api.python.X(X:1)"
    )
    assert known_error(RuntimeError(reads)) is None


@pytest.mark.parametrize(
    "java",
    [
        "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis",
        "org.apache.spark.SparkException: Job 3 cancelled because SparkContext was shut down",
    ],
)
def test_an_application_that_the_master_removed_is_not_tried_for_ever(java: str) -> None:
    assert type(known_error(_JavaError("An error occurred\n: " + java))) is SparkGoneError


@pytest.mark.parametrize(
    ("java", "kind", "named"),
    [
        ("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis "
         "stopped SparkContext was created at:\n", HostBusyError, "spark://m:7077 does not answer"),
        ("java.lang.IllegalArgumentException: requirement failed: spark.network.timeoutInterval "
         "should be less than or equal to spark.network.timeout.\n\tat X", UsageError,
         "should be less than or equal to spark.network.timeout.): see pipeline.conf"),
        ("java.lang.ClassNotFoundException: org.apache.hadoop.fs.s3a.S3AFileSystem", UsageError,
         "Spark has no class for this storage"),
    ],
)  # fmt: skip
def test_a_session_that_does_not_start_says_what_to_do(
    java: str, kind: type[TidelogError], named: str
) -> None:
    error = _JavaError("An error occurred\n: " + java)
    found = start_failed_error("spark://m:7077", error)
    assert type(found) is kind
    assert named in str(found)
    assert "\n" not in str(found)


def test_an_error_that_no_retry_can_fix_stays_what_it_is() -> None:
    refused = OutputRefusedError("a record is refused")
    refused.__cause__ = RuntimeError("Python worker exited unexpectedly")
    assert known_error(refused) is refused
