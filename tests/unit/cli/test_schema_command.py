"""`tidelog schema` distinguishes captured tables from partitions of which the log has columns."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.support.build_log import BuiltLog

from tidelog.app.sources.schema_versions import schemas
from tidelog.capture.catalogue_watch import SHAPES_KEY
from tidelog.config import parse_config
from tidelog.state.opening import open_state

TEXT = """
source: {kind: postgres, url: 'postgresql://127.0.0.1:1/none'}
log: {path: log}
state: {url: 'sqlite:///state.db'}
"""


def test_a_partition_is_no_captured_table(tmp_path: Path) -> None:
    config = parse_config(TEXT, "test", tmp_path, {})
    built = BuiltLog(tmp_path / "log")
    for number, name in enumerate(("public.events", "public.events_2026"), 1):
        built.table(name, {"id": "int64"}, relation_id=number)
    with closing(open_state(config.state.location)) as state:
        assert all(
            "captured" not in each for each in schemas(config).to_dict()["tables"]
        )  # not known
        state.put(SHAPES_KEY, {"public.events": "…"}, None)
        found = {each["table"]: each["captured"] for each in schemas(config).to_dict()["tables"]}
    assert found == {"public.events": True, "public.events_2026": False}
