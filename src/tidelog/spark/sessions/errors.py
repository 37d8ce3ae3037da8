"""Finds the cause of an error of Spark: a Python process of Spark returns our errors as text."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pyarrow as pa

from tidelog import errors
from tidelog.system.compilation import cache_error

_OURS = re.compile(
    r"tidelog\.errors\.(\w+): (.+?)(?=\n\s*\n|\n\s*at |\n[^\n]*SQLSTATE|\Z)", re.DOTALL
)

# Texts of operating systems, word for word, without values of rows.
_SYSTEMS = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Permission denied"
    r"|Too many open files|Cannot allocate memory|Input/output error|Java heap space"
)


# A process for planning starts within 10 s, one for tasks within 60 (Spark's PythonWorkerFactory).
_NOT_STARTED = re.compile(
    r"Python worker (?:failed to connect back|to connect back after (\d+) ms)"
)

# Spark's messages for a Python process that was killed: one that runs a task, or the daemon that
# starts those; then the errors where Spark's own code finds a pipe or a socket to it closed.
_ENDED = re.compile(
    r"Python worker exited unexpectedly"
    r"|Python (?:daemon )?failed to launch worker"
    r"|EOFException occurred while reading the port number"
    r"|java\.(?:io\.(?:EOF|IO)|net\.Socket|nio\.channels\.\w+)Exception[^\n]*"
    r"(?:\n\s+at (?:java|jdk|sun|scala)[./][^\n]*)*"
    r"\n\s+at org\.apache\.spark\.(?:api|sql\.execution)\.python\.",
)

# Java's message where it can't run the program at all.
_NO_PYTHON = re.compile(
    r"Cannot run program \"([^\"\n]+)\"[^\n]*"
    r"(No such file or directory|Permission denied|Exec format error)"
)


# The last line of a Python process of Spark's, or of its task.
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


# The JVM's errors for a class that is missing, or does not fit another one.
_MISSING_CLASS = re.compile(
    r"(?:ClassNotFoundException: (?:Class )?|NoClassDefFoundError: (?:Could not initialize class )?"
    r"|NoSuch(?:Method|Field)Error: '?(?:[\w.$\[\]]+ )*"
    r")(?P<name>\w+[./][\w./$]+)"
    r"|No FileSystem for scheme \"?(?P<scheme>\w+)"
)
_OWN_JARS = (
    "{product}'s jars are missing, broken or of another version than Spark's ({name}): "
    "`pipeline.conf` must not set others on spark.jars or the class path; in a session of your own "
    "take those of {function}() (docs/how-to/spark.md)"
)
_STORAGE_JARS = (
    "Spark has no class for this storage ({name}): give it the jars of the file system by "
    "pipeline.conf: {{spark.jars: …}}, for s3a those of hadoop-aws, in the version of Spark's "
    "Hadoop, and of the AWS SDK (docs/how-to/spark.md); for a client of Iceberg's own its bundle, "
    "e.g. iceberg-aws-bundle (docs/outputs/iceberg.md)"
)
_JARS = (  # whose class it is, and what to do; the first match
    (re.compile(r"(?:io|org\.apache\.spark\.sql)\.delta\b|delta\."),
     _OWN_JARS.replace("{product}", "Delta").replace("{function}", "delta_jars")),
    (re.compile(r"org\.apache\.iceberg\b|iceberg\."),
     _OWN_JARS.replace("{product}", "Iceberg").replace("{function}", "iceberg_jars")),
    (re.compile(r"org\.apache\.hadoop\b|software\.amazon\b|com\.(?:amazonaws|azure|microsoft\.azure"
                r"|google)\b|\w+\Z"), _STORAGE_JARS),
    (re.compile(""), "Spark has no class {name}: a jar that it needs is missing, or is of another "
     "version; check that spark.jars in pipeline.conf names all, each for this version of Spark"),
)  # fmt: skip

# Errors of Hadoop's file systems, by which Spark reads and writes tables and checkpoints.
_DENIED = re.compile(
    r"\w*(?:AccessDenied|UnknownStore|NoSuchBucket|NoAuthWithAWS|CredentialInitialization)"
    r"Exception\b|Status Code: 40[13]\b"
)
_AWAY = re.compile(
    r"\b(?:ConnectException|UnknownHostException|NoRouteToHostException|SocketTimeoutException"
    r"|ConnectTimeoutException|NoHttpResponseException|AWSServiceIOException"
    r"|AWSStatus500Exception|SdkClientException)\b|Status Code: 5\d\d\b"
)


# What the JVM answers, and what jobs end with, once a cluster's master has ended the application.
_STOPPED = re.compile(r"stopped SparkContext|SparkContext was shut down")


# What a server of Spark Connect answers to a session that it has ended, or never had since it
# started, and what its client raises for that.
SESSION_ENDED = re.compile(
    r"INVALID_HANDLE\.SESSION_\w+|NO_ACTIVE_SESSION|incorrect server side session identifier"
)
_CONNECT_AWAY = re.compile(r"StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED)|INVALID_HANDLE\.\w+")
_CONNECT_DENIED = re.compile(r"StatusCode\.(UNAUTHENTICATED|PERMISSION_DENIED)|\bUNAUTHENTICATED\b")
_OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH\]?.*?(?P<text>Python in [^\n]*)", re.DOTALL)


try:
    from py4j.protocol import Py4JError as Py4JError
    from py4j.protocol import Py4JJavaError as Py4JJavaError
    from py4j.protocol import Py4JNetworkError as Py4JNetworkError
except ModuleNotFoundError:  # pragma: no cover - pyspark-client, which reaches no JVM

    class Py4JError(Exception):  # type: ignore[no-redef]
        """Never raised."""

    class Py4JJavaError(Exception):  # type: ignore[no-redef]
        """Never raised."""

    class Py4JNetworkError(Exception):  # type: ignore[no-redef]
        """Never raised."""


class SparkGoneError(errors.EventLogError):
    """The JVM of Spark has ended, or all it can do."""


class HostBusyError(errors.OutputBusyError):
    """A process of Spark did not start in time: the output itself is fine."""


def known_error(error: BaseException) -> errors.TidelogError | None:
    """Return the cause of a failed Spark job; None: it is unknown here."""
    ours = error if isinstance(error, errors.TidelogError) else find_error(str(error))
    if ours is not None and ours.policy is not errors.Policy.RETRY:
        return ours
    text = _whole_text(error)
    if _STOPPED.search(text):
        return application_ended_error()
    # This may be the cause of an output's error.
    return connect_error(error) or _process_error(text) or ours or jvm_error(error)


def _process_error(text: str) -> errors.TidelogError | None:
    """Return the error to raise for a Python process of Spark's that can't run, is late, or was
    killed.
    """
    if (no_cache := cache_error(text)) is not None:
        return no_cache
    if late := _NOT_STARTED.search(text):
        return HostBusyError(
            f"Spark's Python worker did not start within {int(late[1] or 10_000) // 1000} s: the "
            "host is busy, or PYSPARK_PYTHON names no Python that has Tidelog"
        )
    if missing := _NO_PYTHON.search(text):
        return errors.UsageError(
            f"Spark can't run {missing[1]} ({missing[2]}): set PYSPARK_PYTHON to a Python that has "
            "Tidelog, on each host of Spark's"
        )
    if other := _OTHER_PYTHON.search(text):
        return errors.UsageError(
            f"Spark's workers run another Python ({' '.join(other['text'].split())[:200]}): give "
            "them the same minor version by PYSPARK_PYTHON, or spark.pyspark.python"
        )
    if missing := _NO_MODULE.search(text):
        return errors.UsageError(
            f"the Python of Spark's workers has no module {missing[1]}: set PYSPARK_PYTHON, or "
            "spark.pyspark.python, to one that has Tidelog with the extras in use, on each host of "
            "Spark's"
        )
    if _ENDED.search(text):
        return errors.OutputError(
            "a Python process that Spark runs was killed or ended by itself: check whether the "
            "host has enough memory"
        )
    return None


def connect_error(error: BaseException) -> errors.TidelogError | None:
    """Return the error to raise where a server of Spark Connect is away, denies access or has
    ended the session.
    """
    if not type(error).__module__.startswith(("pyspark.errors", "grpc")):
        return None
    text = str(error)
    if SESSION_ENDED.search(text):
        return HostBusyError("the Spark Connect server has ended the session: it is opened again")
    if _CONNECT_AWAY.search(text):
        return HostBusyError(
            "the Spark Connect server does not answer: see that it runs, and that this host "
            "reaches it at pipeline.remote"
        )
    if _CONNECT_DENIED.search(text):
        return errors.AccessRefusedError(
            "the Spark Connect server denies access: the token of pipeline.remote is wrong, or has "
            "expired"
        )
    return None


def jvm_error(error: BaseException) -> errors.TidelogError | None:
    """Return the error to raise for an error of the JVM: a UsageError if a class is missing; for
    Hadoop's file systems an AccessRefusedError if they deny access, a StorageError if they can't be
    reached; None for any other error. Classes, paths and hosts are shown, never other parts of
    Spark's message.
    """
    text = _whole_text(error)
    if missing := _MISSING_CLASS.search(text):
        name = (missing["name"] or missing["scheme"]).replace("/", ".").rstrip(".")
        advice = next(advice for whose, advice in _JARS if whose.match(name))
        return errors.UsageError(advice.format(name=name))
    if found := _DENIED.search(text):
        return errors.AccessRefusedError(
            f"the storage denies Spark access ({found.group()}): check the path or the bucket's "
            "name, the endpoint, and that the credentials may read, list, write and delete there"
        )
    if found := _AWAY.search(text):
        return errors.StorageError(
            f"the storage can't be reached by Spark ({found.group()}): check the endpoint and the "
            "network"
        )
    return None


def start_failed_error(master: str, error: BaseException) -> errors.TidelogError:
    """The error to raise for a session that did not start: a HostBusyError if the cluster's
    ``master`` does not answer, else one that needs a person.
    """
    text = _whole_text(error)
    if _STOPPED.search(text):
        return HostBusyError(
            f"Spark's master {master} does not answer: see that it runs, and that this host "
            "reaches it by that name and port"
        )
    reason = str(getattr(error, "java_exception", error)).partition("\n")[0]
    return jvm_error(error) or errors.UsageError(
        f"Spark does not start ({reason}): see pipeline.conf, pipeline.master and SPARK_MASTER"
    )


def _whole_text(error: BaseException) -> str:
    """Return the texts of an error and its causes, with the stack of those that come from
    the JVM.
    """
    texts = []
    found: BaseException | None = error
    while found is not None:
        texts.append(f"{found}\n{getattr(found, '_stackTrace', '')}")
        found = found.__cause__ or getattr(found, "_cause", None)  # the second is PySpark's own
    return "\n".join(texts)


def system_error(error: BaseException) -> str:
    """Return the text of the operating system or the JVM for the cause, e.g. that a disk is full;
    empty if unknown.
    """
    found = _SYSTEMS.search(str(error))
    return found.group() if found else ""


# Errors that the same rows and the same code cause at every retry.
_MISTAKES = (TypeError, NotImplementedError, AttributeError, NameError, AssertionError,
             ArithmeticError, pa.ArrowInvalid)  # fmt: skip
# SQL's states of data that an expression can't process, and of `raise_error` (SQLSTATE 22xxx,
# P0001).
_DATA = re.compile(r"\[([A-Z][A-Z0-9_.]*)\][^\[]*?SQLSTATE: (?:22|P0)\w{3}")


def lasting_reason(error: BaseException) -> str:
    """Return why no retry can help, without values; empty if a retry may help."""
    if isinstance(error, _MISTAKES):
        return f"{type(error).__name__}, a mistake in Tidelog's code or yours"
    found = _DATA.search(str(error))
    if found is not None:
        return (
            f"{found[1]}: an expression of a step does not take a row's value; change the step, "
            "e.g. to `try_cast`, or `filter` such rows out"
        )
    return ""


def output_error(what: str, error: BaseException) -> errors.TidelogError:
    """Return the error of an output that failed: a permanent or a transient one."""
    if (known := connect_error(error)) is not None:
        return type(known)(f"{what}: {known}")
    lasting = lasting_reason(error)
    if lasting:
        return errors.OutputRefusedError(f"{what} failed, and every retry will fail:  {lasting}")
    return errors.OutputError(f"{what} failed with {describe_error(error)}")


def spark_gone_error() -> SparkGoneError:
    """Return the error of a call that no JVM answers."""
    return SparkGoneError(
        "the JVM of Spark was killed or ended by itself: check whether the host has enough memory"
    )


def application_ended_error() -> SparkGoneError:
    """Return the error of a session whose application was ended by the cluster's master."""
    return SparkGoneError(
        "Spark's application has ended. A cluster's master removes one whose executors end "
        "again and again, as where they can't reach the driver (spark.driver.host) or have no "
        "memory: read their stderr on the workers (docs/how-to/cluster.md)"
    )


def describe_error(error: BaseException) -> str:
    """Describe an error without its own text, which may contain values."""
    reason = system_error(error)
    found = f"{error_classes(error)}{f': {reason}' if reason else ''}"
    if type(error).__module__.startswith(("pyspark", "py4j")):
        return (
            f"{found}; run it with `tidelog --log-level info`: Spark's log, on standard error, "
            "then has more"
        )
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{found} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else found
    )


def error_classes(error: BaseException) -> str:
    """Return an error's type and Spark's error class, or Java's classes; not its text, which may
    contain values.
    """
    get_condition = getattr(error, "getCondition", None)
    condition = get_condition() if get_condition is not None else None
    if isinstance(error, Py4JJavaError):
        names, cause = [], error.java_exception
        while cause is not None:
            names.append(cause.getClass().getSimpleName())
            cause = cause.getCause()
        condition = ": ".join(names)
    return f"{type(error).__name__}{f' ({condition})' if condition else ''}"


def find_error(text: str) -> errors.TidelogError | None:
    """Return the TidelogError at a Python traceback's end in ``text``; else None."""
    found = _OURS.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.TidelogError)):
        return None
    if kind is errors.MissingExtraError:
        return errors.UsageError(message.strip())
    return kind(message.strip())
