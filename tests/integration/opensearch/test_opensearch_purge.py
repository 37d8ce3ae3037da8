"""What an index remembers of purges, without Spark."""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from tests.behaviours.outputs.destinations import Context
from tests.behaviours.outputs.search_index import ask, open_output
from tests.integration.opensearch.test_opensearch_writer import TABLE, gone, kept, put
from tests.support.build_log import BuiltLog

from tidelog.outputs.base.progress import OutputProgress
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.opensearch.writer import Index
from tidelog.state.sqlite import SqliteState

pytestmark = [pytest.mark.spark, pytest.mark.integration]  # of the process that has the node


def test_a_purge_after_a_rewind_forgets_nothing_of_those_before(
    built: BuiltLog, tmp_path: Path, name: str
) -> None:
    built.flush()
    tries = itertools.count()

    def purge(done: int) -> Index:
        """By an output that is as far as ``done``; what its tasks know then of the index."""
        path = tmp_path / str(next(tries))
        path.mkdir()
        state = SqliteState(f"sqlite:///{path / 'state.db'}")
        OutputProgress(state, built.log.generation, "search").finish(done)
        state.close()
        context = Context(MagicMock(), built, path)
        delivery = Delivery("search", parallelism=1)
        output = open_output(context, name, delivery=delivery, tombstone_retention_s=-60.0)
        try:
            output.create(TABLE)
            put(name, gone(done - 1, done))
            kept(name)  # refreshed
            output.purge()
            return output.writer()._indices["public.t"]  # type: ignore[attr-defined]
        finally:
            output.close()

    assert purge(100).purged_below == 100
    assert purge(50).purged_below == 100
    notes = ask("GET", f"/{name}-000001/_doc/%5Cnotes")["_source"]["_tidelog"]["notes"]
    assert notes["purged_below"] == 100
