"""The output of ``kind: python``: your own class writes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.errors import ConfigError
from tidelog.outputs.base.executor_output import PluginOutput
from tidelog.outputs.base.writer import Delivery
from tidelog.ports import StateStore
from tidelog.spark.transforms import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PythonOutput(PluginOutput):
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
        make = partial(load(class_name), **options)
        if not callable(getattr(make.func, "write", None)):
            raise ConfigError(
                f"{class_name} has no method write: derive it from tidelog.ext.Writer"
            )
        try:
            make()
        except TypeError as error:
            raise ConfigError(f"{class_name} does not take the options: {error}") from error
        super().__init__(spark, log_path, state, delivery, make)
