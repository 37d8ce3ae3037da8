"""The outputs of a configuration, opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.adapters import OUTPUT_KINDS
from tidelog.app.log_location import log_place
from tidelog.config import Config
from tidelog.outputs.registry import OutputSection
from tidelog.ports import Output, OutputContext, TaskWriter
from tidelog.state.opening import open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.outputs.registry import ExecutorSection


def make_outputs(config: Config, spark: SparkSession) -> list[Output]:
    """The outputs of the configuration, in its order.

    Raises MissingExtraError, which names the pip extra, if one needs what is not installed.
    """
    made: list[Output] = []
    try:
        made += [make_output(config, section, spark) for section in config.outputs]
    except BaseException:
        for output in made:
            output.close()
        raise
    return made


def make_output(config: Config, section: OutputSection, spark: SparkSession) -> Output:
    """One output. Raises MissingExtraError."""
    context = OutputContext(
        spark, log_place(config), lambda: open_state(config.state.place), _Deliver(config, spark)
    )
    return OUTPUT_KINDS.get(section.kind).open(section, context)


@dataclass(frozen=True)
class _Deliver:
    """See `tidelog.ports.OutputContext`."""

    config: Config
    spark: SparkSession

    def __call__(
        self,
        section: ExecutorSection,
        make: Callable[[], TaskWriter],
        *,
        keyed: bool = True,
        order: str = "key",
        message_format: str = "rows",
    ) -> Output:
        from tidelog.outputs.base.made import MadeOutput
        from tidelog.outputs.deliveries import delivery_of

        delivery = delivery_of(section, keyed=keyed, order=order, message_format=message_format)
        state = open_state(self.config.state.place)
        return MadeOutput(self.spark, log_place(self.config), state, delivery, make)
