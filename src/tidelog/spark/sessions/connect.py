"""Sessions of Spark Connect: on a server, by a client without a JVM.

A server that restarts, or that ends an idle session, does not know the client's session any more.
`RemoteSession` opens another one then, and brings it what the first one had.
"""

from __future__ import annotations

import json
import logging
import tempfile
import threading
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

from pyspark.errors import PySparkException

from tidelog.errors import OutputError, UsageError
from tidelog.spark.sessions.errors import SESSION_ENDED, known_error
from tidelog.spark.sessions.local import DriverTasks, LocalSession
from tidelog.spark.sessions.versions import is_local
from tidelog.system import version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_CHECK_S: Final = 0.5
"""Seconds for which a session that has answered is used without asking the server again."""
_STOP_S: Final = 5.0
_CORES_S: Final = 60.0
"""Seconds for which the number of the server's cores is known: executors come and go."""
RETRIES: Final = 25
_MOST_WAIT_MS: Final = 2_000
"""The client retries what a server that is away does not answer for a minute, at most two seconds
apart: by default it waits a minute between two tries."""
_NEEDED: Final = ("numba", "numpy", "pyarrow", "pydantic", "re2", "yaml")
"""Modules that every task of an output imports."""


def is_remote(spark: object) -> bool:
    """Is it a session of Spark Connect?"""
    is_connect = type(spark).__module__.startswith("pyspark.sql.connect")
    return is_connect or isinstance(spark, RemoteSession)


def place_of(remote: str) -> str:
    """Return the address without its parameters, which may have a token."""
    return remote.partition(";")[0].rstrip("/")


def default_parallelism(spark: SparkSession | RemoteSession) -> int:
    """Return the number of tasks that run at once now."""
    if isinstance(spark, RemoteSession):
        return spark.cores()
    if isinstance(spark, LocalSession):
        return max(1, spark.cores)
    return max(1, spark.sparkContext.defaultParallelism)


def cancel_own_tasks(spark: SparkSession | RemoteSession | LocalSession) -> None:
    """Cancel what this process does in place of Spark's jobs, which is nobody else's."""
    if isinstance(spark, LocalSession):
        spark.tasks.cancel()


def start_failure(spark: SparkSession | RemoteSession | LocalSession) -> BaseException | None:
    """Return the error of a session that did not start."""
    return spark.failure if isinstance(spark, LocalSession) else None


def by_jobs_alone(spark: SparkSession) -> SparkSession:
    """Return the session for work that needs a process of its own, however small it is."""
    if not isinstance(spark, LocalSession):
        return spark
    return cast("SparkSession", spark.beside(lambda opened: opened, DriverTasks(0)))


def is_open(spark: SparkSession | RemoteSession | LocalSession) -> bool:
    """Is there a session already?"""
    return not isinstance(spark, LocalSession) or spark.is_open


def runs_on_this_machine(spark: SparkSession | RemoteSession | LocalSession) -> bool:
    """Does the driver itself run the tasks?"""
    if isinstance(spark, LocalSession):
        return True
    return not is_remote(spark) and is_local(str(spark.sparkContext.master))


def cancel_jobs(spark: SparkSession) -> None:
    """Cancel what the session's driver runs; of a Spark Connect server, what the session runs."""
    if isinstance(spark, RemoteSession | LocalSession):
        spark.cancel_jobs()
    else:
        spark.sparkContext.cancelAllJobs()


def session_beside(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of the same driver with ``settings`` of its own. One of Spark Connect is
    returned itself: it is nobody else's, and has these settings already.
    """
    if is_remote(spark):
        return spark
    if isinstance(spark, LocalSession):
        return cast("SparkSession", spark.beside(lambda opened: session_beside(opened, settings)))
    found = spark.newSession()
    for name, value in settings.items():
        found.conf.set(name, value)
    return found


def current_session(spark: SparkSession | RemoteSession | LocalSession) -> SparkSession:
    """Return PySpark's own session, which is opened if it was not."""
    return spark.current() if isinstance(spark, RemoteSession | LocalSession) else spark


class RemoteSession:
    """A SparkSession of Spark Connect for one pipeline: whatever is called on it is called on the
    session that the server has now.

    Args:
        remote: ``sc://host[:port][/;parameters]``.
        settings: Spark SQL's settings of each session.
        token_file: has the token, which may be replaced; None: ``remote`` has it, or there is none.
        retries: how often a call is retried while the server is away.

    Raises UsageError if executors lack what Tidelog needs, OutputError if the server is away.
    """

    def __init__(
        self,
        remote: str,
        settings: Mapping[str, str],
        token_file: Path | None = None,
        retries: int = RETRIES,
    ) -> None:
        self._remote = remote
        self._token_file = token_file
        self._token = ""
        self._settings = dict(settings)
        self._retries = retries
        self._lock = threading.RLock()
        self._session: SparkSession | None = None
        self._stopped = False
        self._policy: Any = None
        """How often PySpark's client retries a call; its threads read it before each try."""
        self._checked_at = 0.0
        self._cores = (0, 0.0)
        self.current()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of the JVM, which there is none of
            raise AttributeError(name)
        return getattr(self.current(), name)

    def current(self) -> SparkSession:
        """Return the session; another one if the server does not know the last one. Raises
        OutputError once it was stopped: the thread of a batch that is given up may still run.
        """
        with self._lock:
            if self._stopped:
                raise OutputError("the session of Spark Connect was stopped")
            if self._session is not None and self._is_known(self._session):
                return self._session
            if self._session is not None:
                logger.warning(
                    "the Spark Connect server %s has ended the session, or refuses its token: a "
                    "new one is opened",
                    place_of(self._remote),
                )
                self._release()
            self._session = self._open()
            self._checked_at = time.monotonic()
            return self._session

    def cores(self) -> int:
        """Return the number of tasks that the server runs at once."""
        with self._lock:
            count, known_at = self._cores
            if not count or time.monotonic() - known_at > _CORES_S:
                from pyspark.sql import functions as f

                parts = self.current().range(100_000).select(f.spark_partition_id().alias("part"))
                count = max(1, parts.distinct().count())
                self._cores = (count, time.monotonic())
            return count

    def cancel_jobs(self) -> None:
        """Cancel what this session runs, if the server answers."""
        if self._session is not None:
            with suppress(Exception):
                self._session.interruptAll()

    def stop(self) -> None:
        """Release the session for good, if the server answers at once."""
        self._stopped = True
        self._policy.max_retries = 0  # else the process waits for what waits for the server
        if self._lock.acquire(timeout=_STOP_S):
            try:
                self._release()
            finally:
                self._lock.release()

    def _release(self) -> None:
        session: Any = self._session
        self._session, self._cores = None, (0, 0.0)
        if session is not None:
            session.client.set_retry_policies([])
            session.stop()

    def _is_known(self, session: SparkSession) -> bool:
        if time.monotonic() - self._checked_at < _CHECK_S:
            return True
        try:
            session.conf.get("spark.sql.session.timeZone")
        except Exception as error:
            if SESSION_ENDED.search(str(error)) or self._has_other_token():
                return False
            raise
        self._checked_at = time.monotonic()
        return True

    def _has_other_token(self) -> bool:
        """Has the file another token than the session?"""
        return self._token_file is not None and self._read_token() != self._token

    def _read_token(self) -> str:
        assert self._token_file is not None
        try:
            token = self._token_file.read_text("utf-8").strip()
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise OutputError(f"pipeline.remote_token_file: {self._token_file}: {why}") from None
        if not token:
            raise OutputError(f"pipeline.remote_token_file: {self._token_file} is empty")
        return token

    def _address(self) -> str:
        """Return the address with the token that there is now."""
        if self._token_file is None:
            return self._remote
        self._token = self._read_token()
        place, _, parameters = self._remote.partition("/;")
        parts = [*filter(None, [parameters]), f"token={quote(self._token, safe='')}"]
        return f"{place.rstrip('/')}/;{';'.join(parts)}"

    def _open(self) -> SparkSession:
        from pyspark.sql import SparkSession
        from pyspark.sql.connect.client.retries import DefaultPolicy

        warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # an error is raised besides
        try:
            session: Any = SparkSession.builder.remote(self._address()).create()
            self._policy = DefaultPolicy(max_retries=self._retries, max_backoff=_MOST_WAIT_MS)
            session.client.set_retry_policies([self._policy])
            _check_version(session)
            self._set_all(session)
            _prepare_executors(session)
        except UsageError:
            raise
        except Exception as error:
            known = known_error(error)
            if known is None:  # PySpark's text may have the whole address
                why = f"no session is opened ({type(error).__name__} {_condition(error)})"
                raise OutputError(f"Spark Connect, {place_of(self._remote)}: {why}") from None
            raise type(known)(f"Spark Connect, {place_of(self._remote)}: {known}") from error
        found: SparkSession = session
        return found

    def _set_all(self, session: SparkSession) -> None:
        for name, value in self._settings.items():
            try:
                session.conf.set(name, value)
            except Exception as error:
                if "CANNOT_MODIFY" not in _condition(error):
                    raise
                raise UsageError(
                    f"pipeline.conf: a Spark Connect server takes {name} only at its own start: "
                    "set it there"
                ) from None


def _condition(error: Exception) -> str:
    """Return the name that Spark gives the kind of error; empty: none."""
    return str(error.getCondition() or "") if isinstance(error, PySparkException) else ""


def _check_version(session: Any) -> None:
    """Raise UsageError if the server is older than the client, which then asks it for settings
    that it does not have.
    """
    import pyspark

    ours, theirs = (
        ".".join(each.split(".")[:2]) for each in (pyspark.__version__, str(session.version))
    )
    if tuple(map(int, ours.split("."))) > tuple(map(int, theirs.split("."))):
        raise UsageError(
            f"the server is Spark {theirs}, older than this client, pyspark {ours}: pip install "
            f"'pyspark-client=={theirs}.*' (or pyspark)"
        )


# What executors need.


def _prepare_executors(session: SparkSession) -> None:
    """Send Tidelog to executors that have none, or another version. Raises UsageError if they lack
    packages.
    """
    found = _probe(session)
    if found["missing"]:
        raise UsageError(
            f"the Python of Spark's executors has no {', '.join(found['missing'])}: install "
            f"Tidelog there (pip install 'tidelog=={version.__version__}' with the extras of the "
            "outputs), or give the server's spark.pyspark.python an environment that has it "
            "(docs/how-to/spark-connect.md)"
        )
    if found["tidelog"] == version.__version__:
        return
    with tempfile.TemporaryDirectory(prefix="tidelog-connect-") as directory:
        session.addArtifacts(str(_package(Path(directory))), pyfile=True)
    if _probe(session)["tidelog"] != version.__version__:
        raise UsageError(
            f"executors have Tidelog {found['tidelog'] or '(none)'}, this process "
            f"{version.__version__}, and take no other one as an artifact: install this version "
            "there (docs/how-to/spark-connect.md)"
        )
    logger.info("Tidelog %s was sent to the executors", version.__version__)


def _probe(session: SparkSession) -> dict[str, Any]:
    """Return what an executor has: its ``tidelog`` and which modules are ``missing``."""
    needed, ours = _NEEDED, version.__version__

    # Pickled with its code, because it is no name of a module: it must run without Tidelog.
    def report(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib.util
        import json
        import sys
        from contextlib import suppress

        import pyarrow

        found: dict[str, Any] = {
            "tidelog": "",
            "missing": [each for each in needed if importlib.util.find_spec(each) is None],
        }
        with suppress(ImportError):
            from tidelog.system.version import __version__

            found["tidelog"] = __version__
        if found["tidelog"] != ours:  # this process may run tasks once it has ours
            for name in [name for name in sys.modules if name.partition(".")[0] == "tidelog"]:
                del sys.modules[name]
        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"found": [json.dumps(found)]})

    [row] = session.range(1).coalesce(1).mapInArrow(report, "found string").collect()
    result: dict[str, Any] = json.loads(row[0])
    return result


def _package(directory: Path) -> Path:
    """Return a new file in ``directory`` with the modules of this Tidelog, for `addArtifacts`."""
    root, path = Path(version.__file__).parents[1], directory / "tidelog.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for each in sorted(root.rglob("*")):
            if each.suffix in (".py", ".json"):
                file.write(each, each.relative_to(root.parent))
    return path
