"""Tables of changes are not compared with their source, and are not reported as equal."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.app.verification import _choose_tables, is_compared
from tidelog.errors import UsageError
from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.config import DeltaSection
from tidelog.outputs.lake.iceberg.config import IcebergSection

ORDERS, EVENTS = TableName("public", "orders"), TableName("public", "events")


def section(**options: Any) -> DeltaSection:
    return DeltaSection.model_validate({"kind": "delta", "path": "lake", **options})


def test_a_table_of_changes_is_not_compared() -> None:
    some = section(holds={"public.events": "changes"}, tables=["public.*"])
    assert is_compared(some, ORDERS)
    assert not is_compared(some, EVENTS)
    assert not is_compared(some, TableName("other", "t"))
    assert is_compared(section(holds={"public.events": "copy", "*.*": "changes"}), EVENTS)
    options = {"kind": "iceberg", "path": "lake", "holds": {"public.events": "changes"}}
    iceberg = IcebergSection.model_validate(options)
    assert is_compared(iceberg, ORDERS)
    assert not is_compared(iceberg, EVENTS)


def test_nothing_to_compare_is_no_equality() -> None:
    some, none = section(holds={"public.events": "changes"}), section(holds={"*.*": "changes"})
    catalogue: Any = SimpleNamespace(tables=lambda _patterns: [ORDERS, EVENTS])
    config: Any = SimpleNamespace(source=SimpleNamespace(tables=["public.*"]))
    choose = partial(_choose_tables, catalogue, config)
    assert choose([], [some]) == [ORDERS, EVENTS]
    with pytest.raises(UsageError, match=r"no output keeps a copy of a table of .*events"):
        choose(["public.events"], [some])
    with pytest.raises(UsageError, match="changes are not compared"):
        choose([], [none])
    assert choose([], [none, some]) == [ORDERS, EVENTS]
