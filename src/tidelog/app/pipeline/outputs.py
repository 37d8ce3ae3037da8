"""Opens the outputs of a configuration, and checks that their packages are installed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tidelog.app.elections import pipeline_lease_name
from tidelog.app.log_location import event_log_path
from tidelog.capture.leadership import LeasedState
from tidelog.config import Config
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.outputs.base.sections import BuiltinKind, OutputSection
from tidelog.ports import LedOutput, Output, OutputContext, StateStore, TaskWriter, WriteLease
from tidelog.state.opening import fenced, open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.outputs.base.sections import ExecutorSection


class _OwnedState(LeasedState):
    """A leased state store that closes the underlying store."""

    def __init__(self, state: StateStore, fenced: StateStore, lease: WriteLease) -> None:
        super().__init__(fenced, lease.check)
        self._store = state

    def close(self) -> None:
        self._store.close()


def make_outputs(
    config: Config, spark: SparkSession, lease: WriteLease | None = None
) -> list[Output]:
    """Open the outputs of the configuration, in its order; with ``lease`` they write under it.

    Raises MissingExtraError, which names the pip extra, if a package is missing.
    """
    outputs: list[Output] = []
    try:
        for section in config.outputs:
            outputs.append(make_output(config, section, spark, lease))
    except BaseException:
        for output in outputs:
            output.close()
        raise
    return outputs


def make_output(
    config: Config,
    section: OutputSection,
    spark: SparkSession,
    lease: WriteLease | None = None,
) -> Output:
    """Open one output. Raises MissingExtraError."""

    def open_leased_state() -> StateStore:
        state = open_state(config.state.place)
        if lease is None:
            return state
        led = fenced(state, pipeline_lease_name(config.pipeline.name), lease.epoch)
        return _OwnedState(state, led, lease)

    deliver = _Deliver(config, spark, open_leased_state)
    context = OutputContext(spark, event_log_path(config), open_leased_state, deliver)
    outputs: Output = OUTPUT_KINDS.get(section.kind).open(section, context)
    if lease is not None and isinstance(outputs, LedOutput):
        outputs.led_by(lease)
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
        from tidelog.outputs.base.output import PluginOutput
        from tidelog.outputs.delivery_settings import delivery_of

        delivery = delivery_of(section, keyed=keyed, order=order, message_format=message_format)
        return PluginOutput(
            self.spark, event_log_path(self.config), self.open_state(), delivery, make
        )


# Packages that outputs need.

Lake = Literal["delta", "iceberg"]


def check_session(extra: str = "spark") -> None:
    """Check that Spark can be started here, or runs.

    Raises the errors of `check_spark_runs`, with ``extra`` for a missing package.
    """
    from tidelog.spark.sessions.installation import check_spark_runs

    check_spark_runs(extra)


def installed_versions() -> str:
    """Return the versions of Spark, Java and Python; call `check_session` first."""
    from tidelog.spark.sessions.installation import versions

    return versions()


def untested_versions() -> list[str]:
    """Return a sentence for each version that Tidelog or PySpark is not tested with."""
    from tidelog.spark.sessions import installation

    return list(installation.untested_versions())


def check_spark(config: Config) -> Lake | None:
    """Return the lake whose jars the session needs, or None.

    Delta tables are written and read without Delta's jars, but a class of the user may use them.
    Raises UsageError if this Spark can't write to the outputs, MissingExtraError if there is none.
    """
    kinds = {output.kind for output in config.outputs}
    check_session()
    if "iceberg" in kinds:
        return "iceberg"
    return "delta" if _may_write_delta(kinds) else None


def _may_write_delta(kinds: Collection[str]) -> bool:
    from tidelog.spark.sessions.jars import DELTA_SPARK_JARS
    from tidelog.spark.sessions.versions import SPARK_VERSION

    foreign = any(not isinstance(OUTPUT_KINDS.get(kind), BuiltinKind) for kind in kinds)
    return SPARK_VERSION in DELTA_SPARK_JARS and (foreign or "python" in kinds)


def check_installed(sections: Iterable[OutputSection]) -> None:
    """Raise MissingExtraError if a package of an output is missing; call it first."""
    for section in sections:
        kind = OUTPUT_KINDS.get(section.kind)
        if isinstance(kind, BuiltinKind):  # another distribution has its own dependencies
            kind.check_installed()
