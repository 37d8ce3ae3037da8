"""An output whose writer a function creates: those of kinds that a plugin adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.base.output import ExecutorOutput
from tidelog.ports import StateStore, TaskWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PluginOutput(ExecutorOutput):
    """An output whose writer is created by the function ``make``, on the driver, for each batch."""

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        state: StateStore,
        delivery: Delivery,
        make: Callable[[], TaskWriter],
    ) -> None:
        super().__init__(spark, log_path, state, delivery)
        self._make = make

    def writer(self) -> TaskWriter:
        return self._make()
