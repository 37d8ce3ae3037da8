"""Runs the Spark pipeline, alone or together with capture."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from tidelog.app.base.elections import PipelineElection, acquire_lease, leader_of
from tidelog.app.base.instances import InstanceRegistration, pipeline_prefix, this_holder
from tidelog.app.base.last_results import PIPELINE, storing_end
from tidelog.app.base.log_location import (
    check_local_paths,
    event_log_path,
    read_at_startup,
    retry_until_available,
)
from tidelog.app.base.outputs import (
    check_installed,
    check_spark,
    colliding_outputs,
    misplaced_outputs,
    raise_first,
    remote_of,
    remote_settings,
)
from tidelog.app.base.service import BackgroundService
from tidelog.app.capture.run import run_capture
from tidelog.app.overview.remote_control import OnStatus, ignore_status
from tidelog.app.pipeline.idle_check import nothing_to_deliver
from tidelog.capture.leadership import LeaseKeeper, lead
from tidelog.capture.pauses import PipelinePause
from tidelog.config import AnyConfig, Config, as_config
from tidelog.config.loading import one_database_config
from tidelog.errors import (
    AnotherLeaderError,
    EventLogError,
    IncompleteDumpError,
    OutputError,
    TidelogError,
)
from tidelog.outputs.base.lease_file import LeaseFile
from tidelog.ports import StateStore
from tidelog.state.opening import open_state
from tidelog.system.callbacks import refuse_coroutine_function
from tidelog.system.compilation import compilations
from tidelog.system.processes import suspended_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.app.pipeline.session import PipelineSession

logger = logging.getLogger(__name__)


def session(config: Config, stop: threading.Event | None = None) -> SparkSession:
    """Return the Spark session of the configuration, with at least one executor; or the running
    session. Raises as `spark_session` and `await_executors` do, which waits until ``stop``.
    """
    from tidelog.spark.session import remote_session, spark_session
    from tidelog.spark.sessions.versions import await_executors

    lake = check_spark(config)
    if (remote := remote_of(config)) is not None:
        return remote_session(remote, remote_settings(config), config.pipeline.remote_token_file)
    settings = {name: str(value) for name, value in config.pipeline.conf.items()}
    delta, iceberg = lake == "delta", lake == "iceberg"
    spark = spark_session(
        config.pipeline.master,
        conf=settings,
        delta=delta,
        iceberg=iceberg,
        source=False,
        log_level=config.pipeline.log_level,
    )
    await_executors(spark, stop)
    return spark


class Pipeline(BackgroundService):
    """Delivers the event log to the configured outputs, by Spark. Delivers, or stands by while
    another process does.

    Example:
        ``Pipeline("tidelog.yaml", once=True).run()``

    Args:
        config: a configuration, the path of a ``tidelog.yaml``, or the contents of one.
        once: deliver what the event log holds now, and end; raises AnotherLeaderError while another
            process delivers.
        on_status: called with who delivers and with each batch, as a document; no coroutine
            function.
        stop_event: ends it when set, as `stop` does; for several that end together.
        ends_when_all_stop: whether it ends, with the error of the first, once all outputs have
            stopped; else they are retried. With ``once``: whether an output that can't be used ends
            it at the start; else the error is raised once the others have delivered.
    """

    def __init__(
        self,
        config: AnyConfig,
        *,
        once: bool = False,
        on_status: OnStatus | None = None,
        stop_event: threading.Event | None = None,
        ends_when_all_stop: bool = True,
    ) -> None:
        super().__init__("tidelog-pipeline", stop_event)
        refuse_coroutine_function("on_status", on_status)
        self.config = one_database_config(as_config(config))
        self._once = once
        self._on_status = on_status or ignore_status
        self._ends_when_all_stop = ends_when_all_stop

    def _run(self, stop: threading.Event) -> None:
        with storing_end(self.config, PIPELINE + self.config.pipeline.name):
            _deliver(
                self.config,
                self._once,
                self._on_status,
                stop,
                ends_when_all_stop=self._ends_when_all_stop,
            )


def _spark_runs() -> bool:
    """Has this process a driver of Spark, e.g. the user's?"""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    running = getattr(SparkContext, "_active_spark_context", None)
    return running is not None or SparkSession.getActiveSession() is not None


class _SparkHandle:
    """The Spark session of a pipeline's process.

    On this machine it starts while the process stands by, or writes its first batches; but not
    ``once``, where it may not be needed. On a cluster it starts when the process leads: before, it
    would take cores from the leader.
    """

    def __init__(self, config: Config, stop: threading.Event, *, once: bool) -> None:
        compilations()  # reports them from here on
        from tidelog.spark.datasource.daemon import preload
        from tidelog.spark.datasource.source import prepare_workers
        from tidelog.spark.sessions.local import DriverTasks, LocalSession
        from tidelog.spark.sessions.versions import is_local, local_cores, master_of

        self.ours = remote_of(config) is not None or not _spark_runs()
        """Whether nobody else runs jobs in this session."""
        self._config = config
        self._stop = stop
        self.reason = "Spark" if remote_of(config) is None else "a session of Spark Connect"
        """What starts, for users."""
        self._session: SparkSession | None = None
        master = master_of(config.pipeline.master)
        settings = config.pipeline.conf
        known = remote_of(config) is None and self.ours and "spark.master" not in settings
        cores = str(settings.get("spark.default.parallelism", local_cores(master)))
        if known and is_local(master) and cores.isdecimal() and int(cores):
            tasks = DriverTasks(config.pipeline.small_batch_bytes)
            local = LocalSession(lambda: session(config, stop), prepare_workers, int(cores), tasks)
            self._session = cast("SparkSession", local)
            if once:
                self.reason = "the first batch"
            else:
                local.start()
                preload()  # it keeps the lease's thread waiting: before the process leads

    def session(self) -> SparkSession:
        if self._session is None:
            self._session = session(self._config, self._stop)
        return self._session

    def close(self) -> None:
        """Release a session of Spark Connect. Any other one ends with the process."""
        if self._session is not None and remote_of(self._config) is not None:
            self._session.stop()

    def check(self) -> None:
        """Raise OutputError if Spark has ended: a leader without it would deliver nothing. A
        session of Spark Connect is opened again.
        """
        from tidelog.spark.sessions.connect import is_open, start_failure

        if self._session is None or remote_of(self._config) is not None:
            return
        if (failure := start_failure(self._session)) is not None:
            raise failure
        if not is_open(self._session):
            return
        try:
            ended = bool(self._session.sparkContext._jsc.sc().isStopped())
        except Exception:  # noqa: BLE001 - Py4J's, of a Java process that is gone
            ended = True
        if ended:
            raise OutputError("Spark has ended while this process stood by: start it again")


def cancel_spark_jobs() -> None:
    """Cancel all Spark jobs of this process; they fail at once."""
    from pyspark import SparkContext

    context = getattr(SparkContext, "_active_spark_context", None)
    if context is not None:
        context.cancelAllJobs()


def run_pipeline(
    config: Config,
    *,
    once: bool = False,
    on_status: OnStatus = ignore_status,
    stop_event: threading.Event,
    ends_when_all_stop: bool = True,
) -> None:
    """Deliver the event log to the outputs, until ``stop_event``: see `Pipeline`."""
    Pipeline(
        config,
        once=once,
        on_status=on_status,
        stop_event=stop_event,
        ends_when_all_stop=ends_when_all_stop,
    ).run()


def _deliver(
    config: Config,
    once: bool,
    on_status: OnStatus,
    stop_event: threading.Event,
    *,
    ends_when_all_stop: bool,
) -> None:
    check_installed(config.outputs)
    if not once:
        check_spark(config)
    raise_first(colliding_outputs(config))
    check_local_paths(config)
    name, holder = config.pipeline.name, this_holder()
    with ExitStack() as opened:
        state = opened.enter_context(closing(open_state(config.state.location)))
        if once:
            PipelinePause(state, name, 0.0).refuse()
        registration = InstanceRegistration(
            state, holder, config.capture.zone, pipeline_prefix(name)
        )
        opened.callback(registration.leave)
        registration.start("the pipeline")

        @cache
        def spark_handle() -> _SparkHandle:
            if not once:
                registration.start("Spark")
            return opened.enter_context(closing(_SparkHandle(config, stop_event, once=once)))

        refuses = once and ends_when_all_stop
        if not _may_start(config, state, once, refuses, on_status, stop_event, spark_handle):
            return
        election = opened.enter_context(
            closing(PipelineElection(config, holder, None if once else state, waits=not once))
        )
        file = opened.enter_context(closing(LeaseFile()))
        _, every_s = config.renewal_s
        if once:
            leading = _leading_at_once(election, name, every_s, file, stop_event)
            opened.callback(leading.release)
            if nothing_to_deliver(config, state, leading):
                return
            check_spark(config)
        spark = spark_handle()
        on_status({"role": "starting", "reason": spark.reason})
        from tidelog.app.pipeline.session import PipelineSession

        def open_session(keeper: LeaseKeeper) -> PipelineSession:
            return PipelineSession(
                config=config,
                spark=spark.session(),
                state=state,
                holder=holder,
                keeper=keeper,
                handover_requested=election.handover_requested,
                file=file,
                once=once,
                ends_when_all_stop=ends_when_all_stop,
                on_status=on_status,
                alone=spark.ours,
            )

        if once:
            with closing(open_session(leading)) as once_session:
                registration.leave()
                once_session.run(stop_event)
            return

        def on_state(role: str, reason: str) -> None:
            if role == "standby":
                spark.check()
                registration.stand_by()
            else:
                registration.leave()
                if role == "leading":
                    return
            on_status({"role": role, "reason": reason, "leader": leader_of(election)})

        lead(
            election,
            open_session,
            stop_event,
            renew_every_s=every_s,
            on_state=on_state,
            what=f"process of the pipeline {name}",
            on_lease=file.on_renewal,
        )


def _leading_at_once(
    election: PipelineElection, name: str, every_s: float, file: LeaseFile, stop: threading.Event
) -> LeaseKeeper:
    """Return the keeper of a lease for one run; raises if another process leads."""
    suspended = suspended_s()
    lease = acquire_lease(
        election,
        what=f"another process of the pipeline {name}",
        remedy="it delivers what the log holds",
        stop=stop,
    )
    return LeaseKeeper(election, lease, every_s, file.on_renewal, suspended=suspended)


def _may_start(
    config: Config,
    state: StateStore,
    once: bool,
    refuses: bool,
    on_status: OnStatus,
    stop_event: threading.Event,
    start_spark_early: Callable[[], object],
) -> bool:
    """Waits for state store and event log, but not ``once``; False: ``stop_event`` was set before.

    ``start_spark_early`` is called while there is no event log: Spark starts as capture does.

    Raises TidelogError: an error that a person has to fix.
    """
    reported = False

    def ask() -> bool:
        nonlocal reported
        if read_at_startup(config, state):
            if refuses:  # else the other outputs run
                raise_first(misplaced_outputs(config))
            return True
        lacks = f"{event_log_path(config)} holds no event log yet"
        if once:
            check_spark(config)  # it would be needed: report it before the missing log
            raise EventLogError(f"{lacks}; `tidelog capture` begins one")
        if not reported:
            on_status({"role": "starting", "reason": f"{lacks}: it waits for capture"})
        reported = True
        start_spark_early()
        return False

    def on_state(role: str, reason: str) -> None:
        on_status({"role": role, "reason": reason, "leader": None})

    return ask() if once else retry_until_available(ask, stop_event, on_state)


BATCH_ENDS_S, START_ENDS_S = 60.0, 1.0
"""How long `run_capture_and_pipeline` waits at its end for the pipeline: during a batch, and while
Spark starts.
"""


def run_capture_and_pipeline(
    config: Config, *, on_status: OnStatus = ignore_status, stop_event: threading.Event
) -> None:
    """Run capture and pipeline together until either ends; raise the error that ended it. Outputs
    that stop are retried, and end nothing.

    Each leads or stands by on its own. When capture is complete (``snapshot: initial_only``), the
    captured records are delivered first; then IncompleteDumpError is raised if tables are missing,
    also if they could not be delivered.
    """
    refuse_coroutine_function("on_status", on_status)
    if config.outputs:
        check_installed(config.outputs)
        check_spark(config)
    raise_first(colliding_outputs(config))
    ended = threading.Event()
    complete = threading.Event()
    failures: list[BaseException] = []
    incomplete: list[IncompleteDumpError] = []
    shown: dict[str, Any] = {}

    def show(part: str, document: dict[str, Any]) -> None:
        shown[part] = document
        on_status(dict(shown))

    def run_part(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
        finally:
            ended.set()

    def capture() -> None:
        try:
            run_capture(config, on_status=lambda s: show("capture", s), stop_event=ended)
        except IncompleteDumpError as error:
            incomplete.append(error)
        if not ended.is_set():
            complete.set()

    def deliver() -> None:
        run_pipeline(
            config,
            on_status=lambda s: show("pipeline", s),
            stop_event=ended,
            ends_when_all_stop=False,  # capture must continue
        )

    works = [capture, *([deliver] if config.outputs else [])]
    threads = [threading.Thread(target=run_part, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    while not ended.is_set():
        if stop_event.wait(0.1):
            ended.set()
    starts = (shown.get("pipeline") or {}).get("role") == "starting"
    for thread, work in zip(threads, works, strict=True):
        # The captured records are delivered below, by nobody but us: not during a batch. What only
        # starts has no batch to end.
        most_s = START_ENDS_S if work is deliver and starts else BATCH_ENDS_S
        thread.join(None if complete.is_set() else most_s)
    if failures:
        if incomplete:
            logger.warning("%s", incomplete[0])
        raise failures[0]
    if complete.is_set() and config.outputs:
        _deliver_rest(config, lambda s: show("pipeline", s), stop_event, incomplete)
    if incomplete:
        raise incomplete[0]


def _deliver_rest(
    config: Config,
    on_status: OnStatus,
    stop_event: threading.Event,
    incomplete: Sequence[IncompleteDumpError],
) -> None:
    """Deliver what a capture that has ended by itself captured last; ``incomplete``: its error."""
    try:
        run_pipeline(
            config, once=True, on_status=on_status, stop_event=stop_event, ends_when_all_stop=False
        )
    except AnotherLeaderError as error:
        logger.warning("what was captured is delivered elsewhere: %s", error)
    except TidelogError as error:
        if not incomplete:
            raise
        # Report the missing tables, too: nobody would search for them later.
        text = f"{incomplete[0]}; and what was captured is not delivered: {error}"
        raise IncompleteDumpError(text) from error
