"""The example of a search index over two databases runs, and prints what its page shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]

EXAMPLE = Path(__file__).parents[3] / "examples" / "search_index"


def test_one_query_sees_both_databases(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py"), "--dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        text=True,
        timeout=290,
        check=True,
    )
    shown = (EXAMPLE / "README.md").read_text().partition("run.py\n")[2].partition("```")[0]
    assert done.stdout == shown
