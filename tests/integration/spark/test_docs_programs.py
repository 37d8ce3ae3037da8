"""The programs of pages that have no test of their own, in one process and one session, beside a
capture: README, managed-spark, repair, spark, extend, and the reference of python.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import psycopg
import pytest
from tests.support.pipeline_process import Delivering

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = (
    "docs/how-to/spark.md", "docs/how-to/managed-spark.md", "docs/how-to/repair.md",
    "docs/reference/python.md", "docs/how-to/extend.md", "README.md",
)  # fmt: skip
"""In this order: the first one starts the session, the last one ends with an engine."""
pytestmark = [pytest.mark.spark, pytest.mark.integration]


def test_programs_of_the_pages_run(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, total int)")
        connection.execute("INSERT INTO orders VALUES (1, 10), (2, -5)")
    document = {
        "source": {"kind": "postgres", "url": database, "tables": ["public.*"]},
        "log": {"path": "data/log"},
        "state": {"url": "sqlite:///data/state.db"},
        "outputs": [{"kind": "delta", "path": "data/lake"}],
    }
    config = tmp_path / "tidelog.yaml"
    config.write_text(json.dumps(document))
    *programs, engine = (
        block.replace("/data/lake", "data/lake")
        for page in PAGES
        for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    )
    assert len(programs) == 8
    capture = Delivering(config, tmp_path / "capture.log", command="capture")
    tidelog = [sys.executable, "-m", "tidelog"]
    run = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 240}
    try:
        subprocess.run([*tidelog, "dump", str(config), "--wait"], check=True, **run)  # type: ignore[call-overload]
        done = subprocess.run([sys.executable, "-c", "\n".join(programs)], check=False, **run)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        assert "1 keys, 0 of them deleted" in done.stdout
    finally:
        capture.close()
    with subprocess.Popen(
        [sys.executable, "-c", engine], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as reading:
        assert reading.stdout is not None
        try:
            assert "orders" in reading.stdout.readline()
        finally:
            reading.terminate()
