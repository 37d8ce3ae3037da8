"""Opens the outputs of a configuration, and checks that their packages are installed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from tidelog.app.base.elections import pipeline_lease_name
from tidelog.app.base.log_location import event_log_path
from tidelog.capture.state_writes import LeasedState
from tidelog.config import Config
from tidelog.errors import ConfigError, Policy, TidelogError, UsageError
from tidelog.eventlog.consumers import Consumers, Destination
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage import provide_options, storage_at
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.kinds.sections import RemoteUrl
from tidelog.model.option_values import is_object_store
from tidelog.model.patterns import matches, overlap, route_of
from tidelog.model.schema import TableName
from tidelog.outputs.base.builtin_kind import BuiltinKind
from tidelog.outputs.base.hadoop_settings import store_options
from tidelog.outputs.base.sections import OutputSection, SteppedSection
from tidelog.ports import (
    LedOutput,
    Output,
    OutputBatch,
    OutputContext,
    StateStore,
    TaskWriter,
    WriteLease,
)
from tidelog.state.opening import fenced, open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.outputs.base.sections import ExecutorSection


def pipeline_consumers(config: Config, log: EventLog) -> Consumers:
    """Return the consumers of ``log``, with a second document at ``pipeline.checkpoint``.

    The options of an object store come from `pipeline.conf` (`fs.s3a.*` and so on), else from the
    event log that is in it, else from the environment. Raises UsageError if they are wrong, or the
    directory can't be created.
    """
    location = f"{config.pipeline.checkpoint}/{log.generation}"
    if is_object_store(location):
        try:
            provide_options(location, store_options(location, config.pipeline.conf))
        except ValueError as error:
            raise UsageError(f"pipeline.checkpoint: {error}") from error
    else:
        try:
            Path(location).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"pipeline.checkpoint: {location} can't be created ({error.strerror}): name a "
                "directory that can be written"
            ) from error
    return Consumers(log.storage, storage_at(location))


_VERSION = "5:"  # of digests: those of other versions are not compared with ours


def destinations(config: Config) -> dict[str, Destination]:
    """Return the destinations by output name."""
    return {section.name: _destination(section) for section in config.outputs}


def misplaced_outputs(config: Config) -> dict[str, ConfigError]:
    """Return, by output, why it can't be used: it writes to another one's place, or has moved.

    Empty without an event log. Raises StorageError while it does not answer.
    """
    if not EventLog.exists(event_log_path(config)):
        return {}
    log = EventLog.open(event_log_path(config))
    found = {**moved_outputs(config, log), **outputs_of_others(config, log)}
    settled = _former_destinations(config, log).keys() - found.keys()
    return {**found, **colliding_outputs(config, log.schemas.tables(), settled)}


def raise_first(errors: Mapping[str, ConfigError]) -> None:
    """Raise one of the errors of outputs, if there is any."""
    for error in errors.values():
        raise error


def colliding_outputs(
    config: Config, tables: Collection[TableName] = (), settled: Collection[str] = ()
) -> dict[str, ConfigError]:
    """Return the outputs that write one of the known ``tables`` to the place of another one: of
    two, the one that is not ``settled`` at its place, else the second.
    """
    found: dict[str, ConfigError] = {}
    by_output = destinations(config)
    kinds = {section.name: section.kind for section in config.outputs}
    for (one, its), (other, others) in combinations(by_output.items(), 2):
        if _overlap(its, others, tables):
            newcomer = one if other in settled and one not in settled else other
            found[newcomer] = ConfigError(
                f"outputs: {one} and {other} ({kinds[one]}) write to one place, where what both "
                "write would be twice. Give one of them another place, or tables of its own"
            )
    return found


def outputs_of_others(config: Config, log: EventLog) -> dict[str, ConfigError]:
    """Return our outputs that write to a place of another pipeline of the event log."""
    found: dict[str, ConfigError] = {}
    own = destinations(config)
    tables = log.schemas.tables()
    for consumer in Consumers(log.storage).all():
        if consumer.name == config.pipeline.name:
            continue
        for other, others in consumer.destinations.items():
            for name, its in own.items():
                if _overlap(its, others, tables):
                    found[name] = ConfigError(
                        f"output {name} writes to the place of output {other} of the pipeline "
                        f"{consumer.name}, where what both write would be twice. Give it another "
                        "place, or tables of its own. If that pipeline no longer exists, delete "
                        f"consumers/{consumer.name}.json in the event log's directory"
                    )
    return found


def moved_outputs(config: Config, log: EventLog) -> dict[str, ConfigError]:
    """Return the outputs that have another place than in their last run. Their progress is that of
    the former place.
    """
    found: dict[str, ConfigError] = {}
    name, former = config.pipeline.name, _former_destinations(config, log)
    for output, its in destinations(config).items():
        before = former.get(output)
        if before is None or not before.place.startswith(_VERSION) or _same_location(before, its):
            continue
        found[output] = ConfigError(
            f"output {output} wrote to another place before, and would resume at that place's "
            "position: the new place would miss all earlier changes. Give the output a name that "
            "it never had: then it starts at the head of the event log, and requests the dumps "
            "that it needs. If you moved the data to the new place, stop the pipeline, delete "
            f"consumers/{name}.json in the event log's directory, and start it: then all outputs "
            "resume where they are"
        )
    return found


def _former_destinations(config: Config, log: EventLog) -> dict[str, Destination]:
    """Return the destinations of earlier runs, by output."""
    consumer = pipeline_consumers(config, log).find(config.pipeline.name)
    return {} if consumer is None else {**consumer.former, **consumer.destinations}


def _same_location(one: Destination, other: Destination) -> bool:
    return one.place == other.place and _same_cluster(one, other)


def _same_cluster(one: Destination, other: Destination) -> bool:
    """Return whether both have a host in common: one is enough."""
    return bool(set(one.hosts) & set(other.hosts)) or one.hosts == other.hosts


def _overlap(one: Destination, other: Destination, tables: Collection[TableName]) -> bool:
    """Return whether both write a table, or data of no table, to one place. Raises ConfigError for
    a wrong route.
    """
    if set(one.also) & set(other.also) and _same_cluster(one, other):
        return True
    if not _same_location(one, other) or one.now != other.now:
        return False
    if one.routes == other.routes and overlap(one.tables, other.tables):
        return True
    named = {TableName.parse(each) for each in (*one.tables, *other.tables) if "*" not in each}
    both = (t for t in {*named, *tables} if matches(one.tables, t) and matches(other.tables, t))
    try:
        return any(route_of(one.routes, table) == route_of(other.routes, table) for table in both)
    except ValueError as error:
        raise ConfigError(f"outputs: {error}") from None


def _destination(section: OutputSection) -> Destination:
    location = OUTPUT_KINDS.get(section.kind).location(section)
    routes = tuple(
        (str(step.route), tuple(step.tables))
        for step in getattr(section, "steps", ())
        if step.action == "route"
    )
    return Destination(
        _VERSION + _digest([section.kind, location.identity]),
        tuple(section.tables),
        tuple(_digest(host) for host in location.hosts),
        routes,
        "" if location.qualifier is None else _digest(location.qualifier),
        tuple(_digest([section.kind, each]) for each in location.further),
    )


def _digest(location: Any) -> str:
    """Return a digest that differs between places and reveals nothing: others may read it."""
    return hashlib.sha256(json.dumps(location, default=str).encode()).hexdigest()[:32]


class _OwnedState(LeasedState):
    """A leased state store that closes the underlying store."""

    def __init__(self, state: StateStore, fenced: StateStore, lease: WriteLease) -> None:
        super().__init__(fenced, lease.check)
        self._store = state

    def close(self) -> None:
        self._store.close()


def make_outputs(
    config: Config,
    spark: SparkSession,
    lease: WriteLease | None = None,
    misplaced: Mapping[str, ConfigError] = MappingProxyType({}),
) -> list[Output]:
    """Open the outputs of the configuration, in its order; with ``lease`` they write under it, and
    in the place of one that is ``misplaced`` or can't be opened is an `UnopenedOutput`.

    Raises what may pass, e.g. StateError; without ``lease`` also MissingExtraError, and whatever
    else an output raises.
    """
    from tidelog.spark.sessions.errors import (
        Py4JNetworkError,
        known_error,
        spark_gone_error,
    )

    outputs: list[Output] = []
    try:
        for section in config.outputs:
            if (misplacement := misplaced.get(section.name)) is not None:
                outputs.append(UnopenedOutput(section.name, misplacement))
                continue
            try:
                outputs.append(make_output(config, section, spark, lease))
            except Exception as error:
                known = known_error(error) or error
                lasts = not isinstance(known, TidelogError) or known.policy is Policy.STOP
                if isinstance(error, Py4JNetworkError):  # the session is opened again
                    raise spark_gone_error() from error
                if lease is None or not lasts:
                    raise
                outputs.append(UnopenedOutput(section.name, _not_opened(section.name, known)))
    except BaseException:
        for output in outputs:
            output.close()
        raise
    return outputs


def _not_opened(output: str, error: Exception) -> ConfigError:
    # The text of an error that is not ours may contain a password.
    reason = error if isinstance(error, TidelogError) else f"it raised {type(error).__name__}"
    text = f"output {output} can't be opened: {reason}. Fix it, and start the pipeline again"
    found = ConfigError(text)
    found.__cause__ = error
    return found


class UnopenedOutput:
    """Takes the place of an output that can't be opened, so that the others run: `prepare` raises
    why.
    """

    def __init__(self, name: str, error: ConfigError) -> None:
        self.name = name
        self._error = error

    def prepare(self, _generation: str) -> None:
        raise self._error

    def write(self, _batch: OutputBatch) -> None:
        self.prepare("")

    def committed(self, _table: TableName) -> int | None:
        return None

    def close(self) -> None:
        pass


def make_output(
    config: Config,
    section: OutputSection,
    spark: SparkSession,
    lease: WriteLease | None = None,
) -> Output:
    """Open one output. Raises MissingExtraError."""

    def open_leased_state() -> StateStore:
        state = open_state(config.state.location)
        if lease is None:
            return state
        led = fenced(state, pipeline_lease_name(config.pipeline.name), lease.epoch)
        return _OwnedState(state, led, lease)

    deliver = _Deliver(config, spark, open_leased_state)
    context = OutputContext(spark, event_log_path(config), open_leased_state, deliver)
    outputs: Output = OUTPUT_KINDS.get(section.kind).open(section, context)
    if lease is not None and isinstance(outputs, LedOutput):
        outputs.set_lease(lease)
    return outputs


@dataclass(frozen=True)
class _Deliver:
    """See `tidelog.ports.OutputContext`."""

    config: Config
    spark: SparkSession
    open_state: Callable[[], StateStore]

    def __call__(
        self,
        section: ExecutorSection,
        make: Callable[[], TaskWriter],
        *,
        keyed: bool = True,
        order: str = "key",
        message_format: str = "rows",
    ) -> Output:
        from tidelog.outputs.base.executor_output import PluginOutput
        from tidelog.outputs.delivery_settings import delivery_of

        delivery = delivery_of(section, keyed=keyed, order=order, message_format=message_format)
        return PluginOutput(
            self.spark, event_log_path(self.config), self.open_state(), delivery, make
        )


# Packages that outputs need.

Lake = Literal["delta", "iceberg"]


def check_session(extra: str = "spark") -> None:
    """Check that Spark can be started here, or runs. Raises the errors of `check_spark_runs`, with
    ``extra`` for a missing package.
    """
    from tidelog.spark.sessions.installation import check_spark_runs

    check_spark_runs(extra)


def installed_versions(config: Config) -> str:
    """Return the versions of Spark, Java and Python; call `check_spark` first."""
    from tidelog.spark.sessions.installation import versions

    return versions(remote=remote_of(config) is not None)


def untested_versions() -> list[str]:
    """Return a sentence for each version that Tidelog or PySpark is not tested with."""
    from tidelog.spark.sessions import installation

    return list(installation.untested_versions())


def remote_of(config: Config) -> str | None:
    """Return the address of the Spark Connect server that runs the outputs' tasks; None: Spark
    runs in this process, or is `pipeline.master`. Raises UsageError if SPARK_REMOTE is none.
    """
    if config.pipeline.remote is not None:
        return config.pipeline.remote.reveal()
    address = None if config.pipeline.master else os.environ.get("SPARK_REMOTE")
    try:
        return RemoteUrl.of(address).reveal() if address else None
    except ValueError as error:
        raise UsageError(f"SPARK_REMOTE: {error}") from None


def remote_settings(config: Config) -> dict[str, str]:
    """Return the settings of `pipeline.conf` that a session of Spark Connect gets."""
    conf = config.pipeline.conf
    return {name: str(value) for name, value in conf.items() if name.startswith("spark.sql.")}


def check_spark(config: Config) -> Lake | None:
    """Return the lake whose jars the session needs, or None.

    Delta tables are written and read without Delta's jars, but a class of the user may use them.
    Raises UsageError if this Spark can't write to the outputs, MissingExtraError if there is none.
    """
    if remote_of(config) is not None:
        _check_remote(config)
        return None
    check_session()
    if any(output.spark_jars == "iceberg" for output in config.outputs):
        return "iceberg"
    return "delta" if _may_write_delta(config.outputs) else None


def _check_remote(config: Config) -> None:
    from tidelog.outputs.lake.java_libraries import check_java_libraries
    from tidelog.spark.sessions.installation import check_remote_client

    check_remote_client()
    for output in config.outputs:
        if output.calls_java():
            try:
                check_java_libraries()
            except UsageError as error:
                raise type(error)(f"output {output.name}: {error}") from None


_CHECK_RETRIES: Final = 4


def check_remote_server(config: Config) -> str:
    """Open a session of the Spark Connect server, which checks its executors, and return what does
    not work there, in words; empty: all does.

    Raises UsageError if executors lack something, OutputError if the server is away.
    """
    from tidelog.spark.session import remote_session

    remote = remote_of(config)
    assert remote is not None
    token_file = config.pipeline.remote_token_file
    remote_session(remote, remote_settings(config), token_file, _CHECK_RETRIES).stop()
    found = []
    # Settings of object stores are read by Tidelog itself.
    known = ("spark.sql.", "spark.hadoop.")
    if ignored := [name for name in config.pipeline.conf if not name.startswith(known)]:
        found.append(
            f"a Spark Connect server takes {', '.join(ignored)} of pipeline.conf only at its own "
            "start: set them there"
        )
    for section in config.outputs:
        if isinstance(section, SteppedSection) and any(
            step.action == "python" for step in section.steps
        ):
            found.append(
                f"output {section.name}: a step python does not run over Spark Connect: its tables "
                "are left out"
            )
    return "; ".join(found)


def _may_write_delta(sections: Iterable[OutputSection]) -> bool:
    from tidelog.spark.sessions.jars import DELTA_SPARK_JARS
    from tidelog.spark.sessions.versions import SPARK_VERSION

    return SPARK_VERSION in DELTA_SPARK_JARS and any(
        section.spark_jars == "delta" or not isinstance(OUTPUT_KINDS.get(section.kind), BuiltinKind)
        for section in sections
    )


def check_installed(sections: Iterable[OutputSection]) -> None:
    """Raise MissingExtraError if a package of an output is missing; call it first."""
    for section in sections:
        kind = OUTPUT_KINDS.get(section.kind)
        if isinstance(kind, BuiltinKind):  # another distribution has its own dependencies
            kind.check_installed()
