"""The outputs of a configuration, opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.app.elections import pipeline_lease
from tidelog.app.log_location import log_place
from tidelog.capture.leadership import LeasedState
from tidelog.config import Config
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.outputs.registry import OutputSection
from tidelog.ports import LedOutput, Output, OutputContext, StateStore, TaskWriter, WriteLease
from tidelog.state.opening import fenced, open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.outputs.registry import ExecutorSection


class _Opened(LeasedState):
    """A store that is closed with what was opened."""

    def __init__(self, state: StateStore, fenced: StateStore, lease: WriteLease) -> None:
        super().__init__(fenced, lease.check)
        self._opened = state

    def close(self) -> None:
        self._opened.close()


def make_outputs(
    config: Config, spark: SparkSession, lease: WriteLease | None = None
) -> list[Output]:
    """The outputs of the configuration, in its order; with ``lease`` they write under it alone.

    Raises MissingExtraError, which names the pip extra, if one needs what is not installed.
    """
    made: list[Output] = []
    try:
        for section in config.outputs:
            made.append(make_output(config, section, spark, lease))
    except BaseException:
        for output in made:
            output.close()
        raise
    return made


def make_output(
    config: Config,
    section: OutputSection,
    spark: SparkSession,
    lease: WriteLease | None = None,
) -> Output:
    """One output. Raises MissingExtraError."""

    def opened() -> StateStore:
        state = open_state(config.state.place)
        if lease is None:
            return state
        led = fenced(state, pipeline_lease(config.pipeline.name), lease.epoch)
        return _Opened(state, led, lease)

    deliver = _Deliver(config, spark, opened)
    context = OutputContext(spark, log_place(config), opened, deliver)
    made: Output = OUTPUT_KINDS.get(section.kind).open(section, context)
    if lease is not None and isinstance(made, LedOutput):
        made.led_by(lease)
    return made


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
        from tidelog.outputs.base.plugin_output import PluginOutput
        from tidelog.outputs.delivery_settings import delivery_of

        delivery = delivery_of(section, keyed=keyed, order=order, message_format=message_format)
        return PluginOutput(self.spark, log_place(self.config), self.open_state(), delivery, make)
