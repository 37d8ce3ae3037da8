"""Columns whose types the option `types` gives, as a search finds them in documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs.search_index import ask, found, node
from tests.integration.event_messages import wait_for
from tests.integration.spark.test_native_types import (
    CASES,
    COLUMNS,
    WITH_TIMES,
    capture,
    database,  # noqa: F401 - a fixture, as the next
    run_once,
    server_with_extensions,  # noqa: F401
)
from tests.integration.test_types_by_option import CLOCK, EXPECTED, as_json

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]


def test_documents_have_arrays_and_objects_if_asked(
    spark: Any,
    database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A member of a composite can be searched; a map is not."""
    name = tmp_path.name.lower()
    output = f"kind: opensearch, urls: ['{node().url}'], index: '{name}', tables: [public.t]"
    with capture(database, tmp_path, f"[{{{output}, {WITH_TIMES}}}]") as (_, config):
        wait_for(config, 1)
        assert run_once(spark, config) == ""
    row = found(name)["1"]
    expected = {each: as_json(value, iso=True) for each, value in EXPECTED.items()}
    assert {each: row[each] for each in COLUMNS} == expected
    assert CLOCK in row
    place = COLUMNS[[kind for kind, *_ in CASES].index("place")]
    query = {"query": {"range": {f"{place}.inner.hours.upper": {"gte": 2, "lt": 3}}}}
    assert ask("POST", f"/{name}/_search", query)["hits"]["total"]["value"] == 1
