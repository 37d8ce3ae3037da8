"""`tidelog plan` against a real server: estimates near the truth, nothing written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tidelog.app import check, plan
from tidelog.app.capture.run import Capture
from tidelog.cli import main
from tidelog.config import Config, parse_config
from tidelog.errors import UsageError

pytestmark = pytest.mark.integration

SETUP = """
CREATE TABLE analysed (id bigint PRIMARY KEY, note text);
INSERT INTO analysed SELECT n, repeat('x', 40) FROM generate_series(1, 50000) n;
ANALYZE analysed;
CREATE TABLE fresh (id bigint PRIMARY KEY, note text) WITH (autovacuum_enabled = off);
INSERT INTO fresh SELECT n, repeat('x', 400) FROM generate_series(1, 60000) n;
CREATE TABLE parted (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (50)
  WITH (autovacuum_enabled = off);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (50) TO (100);
INSERT INTO parted SELECT n, n % 100 FROM generate_series(1, 40000) n;
ANALYZE parted_2;
CREATE TABLE small (id int PRIMARY KEY);
INSERT INTO small VALUES (1), (2), (3);
CREATE TABLE empty (id int PRIMARY KEY);
CREATE TABLE keyless (a int);
"""


@pytest.fixture
def config(database: str, tmp_path: Path) -> Config:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SETUP)
    return parse_config(_yaml(database), "tidelog.yaml", tmp_path, {})


def _yaml(dsn: str) -> str:
    return (
        f"source: {{kind: postgres, url: {json.dumps(dsn)}, tables: ['public.*']}}\n"
        "log: {path: ./log}\nstate: {url: 'sqlite:///state.db'}\ndump: {chunk_rows: 1000}\n"
    )


def by_table(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {table["table"].removeprefix("public."): table for table in report["tables"]}


def test_estimates_are_near_the_truth(config: Config, tmp_path: Path) -> None:
    report = plan(config).to_dict()
    tables = by_table(report)
    assert set(tables) == {"analysed", "empty", "fresh", "keyless", "parted", "small"}
    for name, rows, tolerance in (
        ("analysed", 50_000, 0.02),
        ("fresh", 60_000, 0.25),
        ("parted", 40_000, 0.1),
        ("small", 3, 0),
        ("empty", 0, 0),
    ):
        assert tables[name]["rows"] == pytest.approx(rows, rel=tolerance), name
        assert tables[name]["chunks"] == tables[name]["rows"] // 1000 + 1
        assert tables[name]["seconds"] is not None
    assert tables["analysed"]["rows_from"] == "statistics"
    assert "never analysed" in tables["fresh"]["rows_from"]
    assert "never analysed" in tables["parted"]["rows_from"]
    assert tables["small"]["rows_from"] == "counted"
    assert 400 * 50_000 < tables["fresh"]["bytes"] < 600 * 75_000
    for name in ("rows", "bytes", "chunks"):
        assert report["total"][name] == sum(table[name] for table in report["tables"])
    assert report["not_dumped"] == []
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_to_the_source(config: Config) -> None:
    """The server's own autovacuum may take an id meanwhile, but not time and again."""
    dsn = config.source.url.reveal()
    seen = "SELECT count(*), pg_snapshot_xmax(pg_current_snapshot())::text FROM pg_class"
    with psycopg.connect(dsn, autocommit=True) as connection:

        def writes() -> bool:
            before = connection.execute(seen).fetchone()
            plan(config)
            return connection.execute(seen).fetchone() != before

        assert not all(writes() for _ in range(5))


def test_a_condition_counts_by_its_selectivity(config: Config) -> None:
    report = plan(config, tables=["public.analysed"], where="id <= 10000 -- a comment").to_dict()
    [table] = report["tables"]
    assert table["rows"] == pytest.approx(10_000, rel=0.1)
    assert "EXPLAIN" in table["rows_from"]
    with pytest.raises(UsageError, match="exactly one"):
        plan(config, where="id < 5")


@pytest.mark.parametrize(
    "where", ["nothing = 1", "id = 'x'", "true); DELETE FROM analysed; SELECT (1", "syntax error"]
)
def test_a_condition_that_cannot_be_is_reported_and_does_no_harm(
    config: Config, where: str
) -> None:
    report = plan(config, tables=["public.analysed"], where=where).to_dict()
    assert report["tables"] == []
    assert "condition" in report["not_dumped"][0]["reason"]
    assert plan(config, tables=["public.analysed"]).to_dict()["total"]["rows"] == 50_000


def test_limits_and_readers_count(config: Config) -> None:
    def seconds(**dump: Any) -> float:
        changed = config.model_copy(update={"dump": config.dump.model_copy(update=dump)})
        found: float = plan(changed, tables=["public.analysed"]).to_dict()["total"]["seconds"]
        return found

    assert seconds(rows_per_second=1000) == pytest.approx(50, rel=0.1)
    assert seconds(delay_ms=1000) >= 49
    report = plan(config, tables=["public.analysed"], parallelism=4, chunk_rows=5000).to_dict()
    assert report["options"]["parallelism"] == 4
    assert report["total"]["chunks"] in (10, 11)


def test_rights_to_a_partitioned_table_are_enough(database: str, tmp_path: Path) -> None:
    """A dump reads it by its own name, so its partitions need no rights."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE whole (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
            "CREATE TABLE whole_1 PARTITION OF whole FOR VALUES FROM (0) TO (5000);"
            "CREATE TABLE whole_2 PARTITION OF whole FOR VALUES FROM (5000) TO (20000);"
            "INSERT INTO whole SELECT i, 'v' FROM generate_series(1, 15000) i;"
            "CREATE ROLE planner LOGIN; GRANT SELECT ON whole TO planner"
        )
        try:
            dsn = database.replace("postgres@", "planner@")
            found = plan(parse_config(_yaml(dsn), "tidelog.yaml", tmp_path, {}))
            report = found.to_dict()
        finally:
            connection.execute("DROP OWNED BY planner; DROP ROLE planner")
    assert report["not_dumped"] == []
    assert by_table(report)["whole"]["rows"] == pytest.approx(15_000, rel=0.1)


def test_a_pattern_without_a_table_is_bad_usage(config: Config) -> None:
    with pytest.raises(UsageError, match="no captured table"):
        plan(config, tables=["public.none"])


def test_the_command_shows_a_table_and_json(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tidelog.yaml"
    file.write_text(_yaml(config.source.url.reveal()))
    for arguments in (["plan", str(file), "--json"], ["plan", str(file), "-t", "public.small"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[0])["total"]["tables"] == 6
    assert "tables: table=public.small rows=3" in out


def test_a_partition_is_no_table_and_the_table_is_named(
    config: Config, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = "public.parted_1 is a partition of public.parted, which has its rows: name"
    with pytest.raises(UsageError, match=f"{said} public.parted$"):
        plan(config, tables=["public.parted_1"])
    text = _yaml(database).replace("['public.*']", "['public.parted_1', '!public.parted_2']")
    named = parse_config(
        text.replace("'public.parted_1'", "'*', 'public.parted_1'"), "t", tmp_path, {}
    )
    fixes = [each.fix for each in check(named) if each.check == "tables"]
    assert f"{said} public.parted" in fixes
    assert any(each.endswith("name !public.parted") for each in fixes)
    with Capture(named):
        deadline = time.monotonic() + 60
        while f"{said} public.parted" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.1)
