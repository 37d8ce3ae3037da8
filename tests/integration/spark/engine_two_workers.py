"""Engines on two executors, in the session that their configuration asks for: a process, for it
needs a Spark of its own. Prints what it found as JSON.

python -m tests.integration.spark.engine_two_workers DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from tests import executors
from tests.support.engines import Gates, committed, engine, orders_log, running, until

from tidelog.app.async_engine.engine import spark_workers_for
from tidelog.config import parse_config
from tidelog.engine.events import Event

ROWS = 4000
CONFIG = {
    "source": {"kind": "postgres", "url": "postgresql://nowhere/shop", "tables": ["public.*"]},
    "log": {"path": "log"},
    "state": {"url": "sqlite:///state.db"},
    "pipeline": {"master": executors.MASTER, "conf": executors.CONF},
}


def main() -> None:
    directory = Path(sys.argv[1])
    built = orders_log(directory / "log", range(ROWS))
    config = parse_config(json.dumps(CONFIG), "configuration", directory, {})
    seen: list[Any] = []
    file = str(directory / "seen")

    # In here, so that they are pickled by value: executors do not have the tests.
    def tell_executor(event: Event) -> Event:
        assert event.after is not None
        return event.replace(after={**event.after, "note": f"{os.getppid()}"})

    def consume(event: Event) -> None:
        assert event.after is not None
        with open(file, "a") as seen:  # noqa: PTH123
            seen.write(f"{event.after['id']} {os.getppid()}\n")

    given: dict[str, Any] = {
        "on_spark": spark_workers_for(config),
        "record_processing_on": "spark",
        "record_processing_threads": 2,
    }
    in_order = engine(
        Gates(directory / "log", "in-order", batch_size=500),
        transforms=[tell_executor],
        consumer=seen.append,
        **given,
    )
    by_key = engine(
        Gates(directory / "log", "by-key", batch_size=500),
        consumer=consume,
        consume_records_async=True,
        order="key",
        **given,
    )
    with running(in_order) as first:
        in_order.wait_for_polling()
        context = SparkContext._active_spark_context
        with running(by_key) as second:
            end = built.writer.next_offset
            until(lambda: committed(directory / "log", "in-order") == end, "the first's end", 240)
            until(lambda: committed(directory / "log", "by-key") == end, "the second's end", 60)
        still = SparkContext._active_spark_context is context
    assert first.error is None, first.error
    assert second.error is None, second.error
    lines = [line.split() for line in Path(file).read_text().splitlines()]
    print(
        json.dumps(
            {
                "in_order": [event.after["id"] for event in seen],
                "executors": len({event.after["note"] for event in seen}),
                "by_key": sorted(int(row) for row, _ in lines),
                "consuming": len({executor for _, executor in lines}),
                "still": still,
                "after": SparkContext._active_spark_context is not None,
            }
        )
    )


if __name__ == "__main__":
    main()
