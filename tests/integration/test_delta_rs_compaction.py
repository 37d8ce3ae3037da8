"""What docs/outputs/delta.md says of delta-rs and compaction: once this fails, let it say less."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa


def test_delta_rs_does_not_notice_another_compaction(tmp_path: Path) -> None:
    place = str(tmp_path / "table")
    for number in range(4):
        deltalake.write_deltalake(place, pa.table({"a": [number]}), mode="append")
    late = deltalake.DeltaTable(place)
    deltalake.DeltaTable(place).optimize.compact()

    late.optimize.compact()

    rows = deltalake.DeltaTable(place).to_pyarrow_table()["a"].to_pylist()
    assert sorted(rows) == [0, 0, 1, 1, 2, 2, 3, 3]
