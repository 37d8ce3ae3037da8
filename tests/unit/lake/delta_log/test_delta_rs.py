"""Logs that delta-rs wrote as we read them, and ours as delta-rs does."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.unit.lake.delta_log.tables import Table

from tidelog.outputs.lake.delta_log.actions import TableProtocol, add, remove, transaction
from tidelog.outputs.lake.delta_log.commits import write_checkpoint
from tidelog.outputs.lake.delta_log.table_state import TableState


def files_of(place: str) -> set[str]:
    """As delta-rs names them."""
    return {uri.rpartition("/")[2] for uri in DeltaTable(place).file_uris()}


def names(state: TableState) -> set[str]:
    return {path.rpartition("/")[2] for path in state.files}


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_delta_rs_writes(tmp_path: Path, checkpoint: bool) -> None:
    place = str(tmp_path / "t")
    for day in ("2026-01-01", "2026-01-02"):
        rows = pa.table({"id": [1, 2, 3], "day": [day] * 3})
        write_deltalake(place, rows, mode="append", partition_by=["day"])
    written = DeltaTable(place)
    written.delete("id = 2 AND day = '2026-01-01'")
    if checkpoint:
        written.create_checkpoint()
        (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").unlink()
    write_deltalake(place, rows, mode="append", partition_by=["day"])
    state = Table(place).state()
    assert state.version == 3
    assert names(state) == files_of(place)
    assert {file.partition_values["day"] for file in state.files.values()} == {
        "2026-01-01",
        "2026-01-02",
    }
    assert all(file.stats for file in state.files.values())


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_what_delta_rs_reads(tmp_path: Path, policy: str) -> None:
    table = Table(tmp_path / "t")
    plain = {"protocol": TableProtocol(1, 2).to_json()}
    state = table.create({"delta.checkpointPolicy": policy})
    if policy == "classic":  # and without features
        table.commit(state, plain)
    table.fill(state, 4)
    gone = next(iter(state.files.values()))
    table.commit(state, remove(gone, at_ms=1, data_change=True), transaction("app", 7))
    assert files_of(table.place) == names(state)
    write_checkpoint(table.store, state)
    log = [f"_delta_log/{version:020d}.json" for version in range(state.version)]
    table.store.delete(log)
    assert files_of(table.place) == names(state)
    back = table.commit(state, add(gone, data_change=True))
    read = DeltaTable(table.place)
    assert files_of(table.place) == names(state)
    assert read.version() == back
    assert read.transaction_version("app") == 7
    assert read.history(1)[0]["engineInfo"].startswith("Tidelog/")
