"""The example of a migration between databases runs, and what it says is so."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]

EXAMPLE = Path(__file__).parents[3] / "examples" / "schema_migration"


def test_the_new_table_equals_the_old_one_before_the_switch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py"), "--dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
        check=True,
    )
    said = dict(line.split(": ") for line in done.stdout.splitlines() if ": " in line)
    found = {name: ast.literal_eval(value) for name, value in said.items()}
    assert found["equal while writing"]
    assert found["equal after the switch"]
    assert found["reads equal"] >= 0.9 * found["reads compared"] > 100
    assert found["written meanwhile"] > 100
    assert found["rows"] > 1000
