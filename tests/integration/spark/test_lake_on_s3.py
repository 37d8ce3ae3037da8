"""Delta tables on S3 by each way to give credentials, which only the configuration has, or the
environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.support.build_log import BuiltLog
from tests.support.s3 import S3Server

from tidelog.app.base.outputs import destinations
from tidelog.config import load_config
from tidelog.eventlog.storage import OPTIONS_VARIABLE

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.spark, pytest.mark.integration]
# As `tidelog verify` reads.
READ = """
import sys
from pathlib import Path
from tidelog.app.pipeline.run import session
from tidelog.app.verification import copies_of
from tidelog.config import load_config
from tidelog.eventlog.reader import EventLog
from tidelog.spark.datasource.partitions import schemas_now
from tests.support.build_log import SOURCE

config = load_config(Path(sys.argv[1]))
spark = session(config)
(schema,) = schemas_now(EventLog.open(config.log.path)).values()
lake = copies_of(config, config.outputs[0], spark)
found = lake.of(schema).frame((None, None))
print(sorted(row.id for row in found.collect()))
shown = found._jdf.queryExecution().toString() + str(spark.sparkContext.getConf().getAll())
assert sys.argv[2] not in shown
"""


@pytest.fixture
def known_by_none(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    monkeypatch.delenv(OPTIONS_VARIABLE)
    return s3


def environment(s3: S3Server) -> dict[str, str]:
    return {f"AWS_{name.upper()}": value for name, value in s3.options.items()}


def hadoop(s3: S3Server) -> dict[str, str]:
    settings = {
        "endpoint": s3.endpoint,
        "access.key": s3.access_key_id,
        "secret.key": s3.secret_access_key,
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}


def write(
    directory: Path, path: str, options: dict[str, str], conf: dict[str, str] | None = None
) -> Path:
    document: dict[str, Any] = {
        "source": {"kind": "postgres", "url": "postgresql://u@h/d"},
        "log": {"path": "log"},
        "state": {"url": "sqlite:///state.db"},
        "pipeline": {"checkpoint": "checkpoint", "master": "local[2]", "conf": conf or {}},
        "outputs": [{"kind": "delta", "path": path, "storage_options": options}],
    }
    (directory / "tidelog.yaml").write_text(json.dumps(document))
    return directory / "tidelog.yaml"


@pytest.mark.thorough  # test_lake_storage_away.py has one that is not
@pytest.mark.parametrize("way", ["storage_options", "pipeline.conf", "environment"])
def test_a_lake_on_s3(way: str, known_by_none: S3Server, tmp_path: Path) -> None:
    s3 = known_by_none
    built = BuiltLog(tmp_path / "log")
    table = built.table("public.t", {"id": "int64", "v": "text"})
    for key in ("1", "2"):
        built.insert(table, key, "text")
    built.flush()
    path = f"s3a://{s3.bucket}/{way}"
    options = s3.options if way == "storage_options" else {}
    conf = hadoop(s3) if way == "pipeline.conf" else {}
    config = write(tmp_path, path, options, conf)
    given = {**os.environ, **(environment(s3) if way == "environment" else {})}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            env=given,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert s3.secret_access_key not in done.stdout + done.stderr
        return done.stdout

    run("-m", "tidelog", "pipeline", "--once", str(config))
    assert DeltaTable(s3.url(f"{way}/public/t"), storage_options=s3.options).version() > 0
    assert sorted(s3.parquet(f"{way}/public/t/")["id"].to_pylist()) == [1, 2]
    kept = [each for each in tmp_path.rglob("*") if each.is_file() and each != config]
    assert not [each for each in kept if s3.secret_access_key.encode() in each.read_bytes()]
    config = write(tmp_path, path.replace("s3a:", "s3:"), options, conf)
    secret = s3.secret_access_key if way == "storage_options" else "in the session"
    assert run("-c", READ, str(config), secret).splitlines()[-1] == "[1, 2]"


def test_s3_and_s3a_are_one_place(tmp_path: Path) -> None:
    def place(path: str) -> object:
        return destinations(load_config(write(tmp_path, path, {})))["delta"]

    assert place("s3a://bucket/lake") == place("s3://bucket/lake/")
    assert place("s3a://bucket/lake") != place("s3a://bucket/other")
