"""Log and lake are on a store that does what it is asked, and often answers an error all the same:
nothing is lost, and nothing comes twice.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.integration.spark.test_failover import Pipeline
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_duckdb
from tests.support.faulty_network import on_the_way
from tests.support.s3 import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.integration]

BATCHES, ROWS = 12, 5


def test_a_store_that_does_what_it_answers_an_error_to_gets_each_change_once(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, files = s3.url(tmp_path.name), s3.files(tmp_path.name)
    with on_the_way(s3, place, monkeypatch) as network:
        built = BuiltLog(f"{place}/log")
        pipeline = Pipeline(built, tmp_path)
        pipeline.configure(
            {"kind": "delta", "path": f"{place}/copies"},
            {"kind": "delta", "name": "all", "path": f"{place}/all", "holds": {"*.*": "changes"}},
        )
        text = pipeline.file.read_text().replace("./log", f"{place}/log")
        pipeline.file.write_text(f"{text}state: {{url: 'sqlite:///state.db'}}\n")
        process = pipeline.start()
        rows: dict[int, str] = {}
        told = struck = 0
        try:
            for batch in range(BATCHES):
                network.arm(("done_500", "done_503")[batch % 2], "PUT ", sys.maxsize, share=0.4)
                for key in range(batch * ROWS, batch * ROWS + ROWS):
                    rows[key] = "new"
                    built.insert(pipeline.table, str(key), "new")
                    if key >= ROWS:  # all of the batch before
                        rows[key - ROWS] = f"in {batch}"
                        built.update(pipeline.table, str(key - ROWS), f"in {batch}")
                        told += 1
                    told += 1
                built.flush()
                pipeline.wait_for(partial(_holds, files, rows, told))
                struck += network.struck
            network.disarm()
            process.send(signal.SIGTERM)
            assert process.wait() == 0, process.said
        finally:
            pipeline.close()
    assert struck > BATCHES
    assert _holds(files, rows, told)


def _holds(files: Path, rows: dict[int, str], told: int) -> bool:
    """As another reader sees copies and changes."""
    copies, changes = files / "copies/public/t", files / "all/public/t"
    if not all(any((each / "_delta_log").glob("*.json")) for each in (copies, changes)):
        return False
    versions = [row["version"] for row in by_duckdb(str(changes), "version").to_pylist()]
    assert len(set(versions)) == len(versions), "a change came twice"
    found = sorted((row["id"], row["v"]) for row in by_duckdb(str(copies)).to_pylist())
    return found == sorted(rows.items()) and len(versions) == told
