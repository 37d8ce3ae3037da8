"""The same with transactions, as readers of committed messages see it."""

from __future__ import annotations

from tests.behaviours.outputs.destinations import Context, Destination
from tests.behaviours.outputs.kafka_topics import kafka_destination


def destination(context: Context) -> Destination:
    return kafka_destination(context, transactions=True)
