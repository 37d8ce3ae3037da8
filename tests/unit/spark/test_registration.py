"""What a registration of the source does to the variables of Spark's workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidelog.spark.datasource.source import _OF_STREAMS, _with_stream_variables


def test_variables_that_another_thread_reads_are_not_changed_under_it() -> None:
    """PySpark copies them item by item whenever a function is created."""
    context: Any = SimpleNamespace(environment={"PYTHONHASHSEED": "0", "A": "1"})
    reading = iter(context.environment)
    assert next(reading) == "PYTHONHASHSEED"
    with _with_stream_variables(context):
        assert next(reading) == "A"
        assert context.environment.keys() >= _OF_STREAMS.keys()
    assert list(reading) == []
    assert context.environment == {"PYTHONHASHSEED": "0", "A": "1"}
