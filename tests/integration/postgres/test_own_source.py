"""A kind of source that another distribution brings: that of examples/extension."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "extension"


@pytest.mark.parametrize("most", [1, 2])
def test_the_examples_source_captures_and_checks_how_many_tables(
    most: int, database: str, tmp_path: Path
) -> None:
    with psycopg.connect(database, autocommit=True) as sql:
        for table in ("a", "b"):
            sql.execute(f"CREATE TABLE {table} AS SELECT 1 AS id")
            sql.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (id)")
    info = tmp_path / "site" / "tidelog_extension-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tidelog-extension\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tidelog.sources]\nlimited = tidelog_extension.limited:LimitedPostgres\n"
    )
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        f'source: {{kind: limited, url: "{database}", tables: ["public.*"], most_tables: {most},\n'
        "  slot: own_source, snapshot: initial_only}\nlog: {path: ./log}\n"
    )

    def tidelog(*arguments: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(
            [str(tmp_path / "site"), str(EXAMPLE), os.environ.get("PYTHONPATH", "")]
        )
        return subprocess.run(
            [sys.executable, "-m", "tidelog", *arguments],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )

    checked = tidelog("check", str(file), "--json")
    found = {each["check"]: each for each in json.loads(checked.stdout)["findings"]}
    if most == 1:
        assert found["most_tables"]["level"] == "error"
        assert found["most_tables"]["message"] == "2 tables match, source.most_tables allows 1"
        return
    assert found["most_tables"]["level"] == "ok"
    captured = tidelog("capture", str(file))
    assert captured.returncode == 0, captured.stderr
    read = tidelog("log", str(file))
    assert {json.loads(line)["source"]["table"] for line in read.stdout.splitlines()} == {"a", "b"}
