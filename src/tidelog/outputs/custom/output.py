"""The output of ``kind: python``: your own class writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidelog.errors import ConfigError
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.base.output import ExecutorOutput
from tidelog.ports import StateStore, TaskWriter
from tidelog.spark.sessions.connect import by_jobs_alone
from tidelog.spark.transforms import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PythonOutput(ExecutorOutput):
    """Writes with a class of the user.

    ``class_name`` is ``module:Class`` of a `tidelog.ports.TaskWriter`, ``options`` its keyword
    arguments. Raises ConfigError if it can't be created.
    """

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        state: StateStore,
        delivery: Delivery,
        class_name: str,
        options: Mapping[str, Any],
    ) -> None:
        self._class = load(class_name)
        self._options = dict(options)
        if not callable(getattr(self._class, "write", None)):
            raise ConfigError(
                f"{class_name} has no method write: derive it from tidelog.ext.Writer"
            )
        try:
            self._class(**self._options)
        except TypeError as error:
            raise ConfigError(f"{class_name} does not take the options: {error}") from error
        super().__init__(by_jobs_alone(spark), log_path, state, delivery)  # see `PluginOutput`

    def writer(self) -> TaskWriter:
        made: TaskWriter = self._class(**self._options)
        return made
