"""What went wrong in a Python process of Spark comes back as text: find our error in it."""

from __future__ import annotations

import re

import pyarrow as pa

from tidelog import errors

_OURS = re.compile(
    r"tidelog\.errors\.(\w+): (.+?)(?=\n\s*\n|\n\s*at |\n[^\n]*SQLSTATE|\Z)", re.DOTALL
)

# What an operating system says, word for word: no value of a row.
_SYSTEMS = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Permission denied"
    r"|Too many open files|Cannot allocate memory|Input/output error|Java heap space"
)


# A process for planning within 10 s, one for tasks within 60 (Spark's PythonWorkerFactory).
_NOT_STARTED = re.compile(
    r"Python worker (?:failed to connect back|to connect back after (\d+) ms)"
)

# What Spark reports of a Python process that was killed: one that runs a task, or the daemon that
# starts those; then where Spark's own code finds a pipe or a socket to one closed.
_ENDED = re.compile(
    r"Python worker exited unexpectedly"
    r"|Python (?:daemon )?failed to launch worker"
    r"|EOFException occurred while reading the port number"
    r"|java\.(?:io\.(?:EOF|IO)|net\.Socket|nio\.channels\.\w+)Exception[^\n]*"
    r"(?:\n\s+at (?:java|jdk|sun|scala)[./][^\n]*)*"
    r"\n\s+at org\.apache\.spark\.(?:api|sql\.execution)\.python\.",
)

# What Java reports where it can't run the program at all.
_NO_PYTHON = re.compile(
    r"Cannot run program \"([^\"\n]+)\"[^\n]*"
    r"(No such file or directory|Permission denied|Exec format error)"
)


# What a Python process of Spark's ends with, or its task.
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


# What the JVM raises for a class that is missing, or that another one does not fit.
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
_JARS = (  # whose class it is, and what to do; the first that fits
    (re.compile(r"(?:io|org\.apache\.spark\.sql)\.delta\b|delta\."),
     _OWN_JARS.replace("{product}", "Delta").replace("{function}", "delta_jars")),
    (re.compile(r"org\.apache\.iceberg\b|iceberg\."),
     _OWN_JARS.replace("{product}", "Iceberg").replace("{function}", "iceberg_jars")),
    (re.compile(r"org\.apache\.hadoop\b|software\.amazon\b|com\.(?:amazonaws|azure|microsoft\.azure"
                r"|google)\b|\w+\Z"), _STORAGE_JARS),
    (re.compile(""), "Spark has no class {name}: a jar that it needs is missing, or is of another "
     "version; see that spark.jars in pipeline.conf names all, each for this version of Spark"),
)  # fmt: skip

# What Hadoop's file systems raise, by which Spark reads and writes tables and checkpoints.
_NOT_LET_IN = re.compile(
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


class SparkGoneError(errors.EventLogError):
    """The JVM of Spark has ended, or all it can do."""


class HostBusyError(errors.OutputBusyError):
    """What Spark starts did not come up in time: nothing is wrong with the output."""


def known_failure(error: BaseException) -> errors.TidelogError | None:
    """What made a job of Spark fail; None: it is not known here."""
    ours = error if isinstance(error, errors.TidelogError) else find_error(str(error))
    if ours is not None and ours.policy is not errors.Policy.RETRY:
        return ours
    text = _whole_text(error)
    if _STOPPED.search(text):
        return application_ended()
    # Of an output that failed, it may be the cause.
    return _process_failure(text) or ours or jvm_failure(error)


def _process_failure(text: str) -> errors.TidelogError | None:
    """The error to raise for a Python process of Spark's that can't run, is late, or was killed."""
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
    if lacking := _NO_MODULE.search(text):
        return errors.UsageError(
            f"the Python of Spark's workers lacks the module {lacking[1]}: set PYSPARK_PYTHON, or "
            "spark.pyspark.python, to one that has Tidelog with the extras in use, on each host of "
            "Spark's"
        )
    if _ENDED.search(text):
        return errors.OutputError(
            "a Python process that Spark runs was killed or ended by itself: look whether the host "
            "lacks memory"
        )
    return None


def jvm_failure(error: BaseException) -> errors.TidelogError | None:
    """The error to raise for what the JVM failed with: a UsageError if a class is missing; of one
    of Hadoop's file systems an AccessRefusedError if it does not let us in, a StorageError if it
    can't be reached; None for any other error. Classes, paths and hosts are shown, never what
    Spark's message holds besides.
    """
    text = _whole_text(error)
    if missing := _MISSING_CLASS.search(text):
        name = (missing["name"] or missing["scheme"]).replace("/", ".").rstrip(".")
        advice = next(advice for whose, advice in _JARS if whose.match(name))
        return errors.UsageError(advice.format(name=name))
    if found := _NOT_LET_IN.search(text):
        return errors.AccessRefusedError(
            f"the storage does not let Spark in ({found.group()}): check the path or the bucket's "
            "name, the endpoint, and that the credentials may read, list, write and delete there"
        )
    if found := _AWAY.search(text):
        return errors.StorageError(
            f"the storage can't be reached by Spark ({found.group()}): check the endpoint and the "
            "network"
        )
    return None


def start_failed(master: str, error: BaseException) -> errors.TidelogError:
    """The error to raise for a session that did not start: a HostBusyError if the cluster's
    ``master`` does not answer, else one that needs a person.
    """
    text = _whole_text(error)
    if _STOPPED.search(text):
        return HostBusyError(
            f"Spark's master {master} does not answer: see that it runs, and that this host "
            "reaches it by that name and port"
        )
    told = str(getattr(error, "java_exception", error)).partition("\n")[0]
    return jvm_failure(error) or errors.UsageError(
        f"Spark does not start ({told}): see pipeline.conf, pipeline.master and SPARK_MASTER"
    )


def _whole_text(error: BaseException) -> str:
    """What an error and its causes say, with the stack of those that come from the JVM."""
    texts = []
    found: BaseException | None = error
    while found is not None:
        texts.append(f"{found}\n{getattr(found, '_stackTrace', '')}")
        found = found.__cause__ or getattr(found, "_cause", None)  # the second is PySpark's own
    return "\n".join(texts)


def system_error(error: BaseException) -> str:
    """What the operating system or the JVM said that made Spark fail, e.g. that a disk is full;
    empty if it is not known.
    """
    found = _SYSTEMS.search(str(error))
    return found.group() if found else ""


# What the same rows and the same code end with however often they are tried.
_MISTAKES = (TypeError, NotImplementedError, AttributeError, NameError, AssertionError,
             ArithmeticError, pa.ArrowInvalid)  # fmt: skip
# SQL's states of data that an expression can't take, and of `raise_error` (SQLSTATE 22xxx, P0001).
_DATA = re.compile(r"\[([A-Z][A-Z0-9_.]*)\][^\[]*?SQLSTATE: (?:22|P0)\w{3}")


def lasting_reason(error: BaseException) -> str:
    """Why no retry can help, without values; empty if one may."""
    if isinstance(error, _MISTAKES):
        return f"{type(error).__name__}, a mistake in code of Tidelog's or of yours"
    found = _DATA.search(str(error))
    if found is not None:
        return (
            f"{found[1]}: an expression of a step does not take a row's value; change the step, "
            "e.g. to `try_cast`, or `filter` such rows out"
        )
    return ""


def output_failed(what: str, error: BaseException) -> errors.OutputError:
    """The error of an output that failed: one that no retry can help, or one that may pass."""
    lasting = lasting_reason(error)
    if lasting:
        return errors.OutputRefusedError(f"{what} failed, and will whenever it is tried: {lasting}")
    return errors.OutputError(f"{what} failed with {failed_with(error)}")


def spark_gone() -> SparkGoneError:
    """The error of a call that no JVM answers."""
    return SparkGoneError(
        "the JVM of Spark was killed or ended by itself: look whether the host lacks memory"
    )


def application_ended() -> SparkGoneError:
    """The error of a session whose application is no more."""
    return SparkGoneError(
        "Spark's application has ended. A cluster's master removes one whose executors end "
        "again and again, as where they can't reach the driver (spark.driver.host) or have no "
        "memory: look at their stderr on the workers (docs/how-to/cluster.md)"
    )


def failed_with(error: BaseException) -> str:
    """How to tell an error of Spark, whose own text may hold values."""
    reason = system_error(error)
    return f"{type(error).__name__}{f': {reason}' if reason else ''}; Spark's log has more"


def find_error(text: str) -> errors.TidelogError | None:
    """The TidelogError that a Python traceback in ``text`` ends with, rebuilt; else None."""
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
