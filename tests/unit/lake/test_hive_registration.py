"""How tables are registered beside the batches, and what `check` finds, without a metastore."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tidelog.errors import OutputError
from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.config import HiveSection
from tidelog.outputs.lake.delta.hive import HiveCatalog
from tidelog.outputs.lake.delta.registration import Entry, Registration

ENTRY = Entry(TableName("shop", "orders"), "shop", "orders", "/srv/lake/shop/orders")


class LateCatalog(HiveCatalog):
    """One whose metastore answers at ``answer``."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()

    def register(self, entries: Sequence[Entry]) -> dict[TableName, str]:
        self.asked.set()
        assert self.answer.wait(10)
        return {}


def test_the_thread_ends_though_the_metastore_answers_after_the_output_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.outputs.lake.delta.registration._CLOSE_S", 0.01)
    catalog = LateCatalog()
    registration = Registration(catalog, "delta-catalog")
    registration.add(ENTRY)
    assert catalog.asked.wait(10)
    registration.close()
    catalog.answer.set()
    assert registration._thread is not None
    registration._thread.join(5)
    assert not registration._thread.is_alive()


def test_what_can_be_no_host_is_a_finding() -> None:
    with pytest.raises(OutputError, match="does not answer"):
        HiveSection(type="hive", uri="thrift://a..b:9083").probe()
