"""``NaN`` in a key of ``numeric(p,s)``: a decimal has none, and yet its row stays one row."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.event_messages import wait_for
from tests.integration.spark.test_unreal_keys import writing
from tests.support.postgres import PostgresServer

import tidelog
from tidelog import app
from tidelog.config import load_config

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]


def test_a_row_whose_key_is_nan_stays_one_row(
    spark: Any, postgres16: PostgresServer, database: str, tmp_path: Path
) -> None:
    """One is dumped, one logged; then they change, lose their key, and one goes."""
    far = postgres16.create_database("nan_keys")
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE TABLE t (k numeric(6,2), n int, v text, PRIMARY KEY (k, n))")
        sql.execute("INSERT INTO t VALUES ('NaN', 1, 'a'), ('NaN', 2, 'a'), (1.5, 1, 'a')")
        with pytest.raises(psycopg.Error, match="overflow"):  # NaN alone is no number there
            sql.execute("INSERT INTO t VALUES ('Infinity', 3, 'a')")
        file = tmp_path / "tidelog.yaml"
        file.write_text(
            f"source: {{kind: postgres, url: '{database}', tables: [public.t]}}\n"
            f"log: {{path: {tmp_path}/log}}\n"
            f"state: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
            f"outputs: [{{kind: delta, path: {tmp_path}/lake}}, "
            f"{{kind: delta, name: soft, path: {tmp_path}/soft, deletes: soft}}, "
            f"{{kind: postgres, url: '{far}', schema: copies}}]\n"
        )
        config = load_config(file)
        with ExitStack() as stack:
            stack.enter_context(tidelog.CaptureGroup([config], pipelines=False))
            wait_for(config, 3)
            stack.enter_context(writing(config, spark))
            assert _equal(app.verify(config).to_dict(), 3)
            sql.execute("INSERT INTO t VALUES ('NaN', 3, 'b'), ('NaN', 4, 'b')")
            sql.execute("UPDATE t SET v = v || 'c'")
            sql.execute("UPDATE t SET k = 7 WHERE k = 'NaN' AND n = 2")
            sql.execute("UPDATE t SET k = 'NaN', n = 5 WHERE k = 1.5")
            sql.execute("DELETE FROM t WHERE k = 'NaN' AND n = 3")
            assert _equal(app.verify(config).to_dict(), 4)
            with psycopg.connect(far, autocommit=True) as copy:
                rows = "SELECT k::text, n, v FROM {} ORDER BY 1, 2"
                theirs = sql.execute(rows.format("t")).fetchall()
                assert copy.execute(rows.format("copies.t")).fetchall() == theirs
                copy.execute("UPDATE copies.t SET v = 'other' WHERE n = 1")
                copy.execute("DELETE FROM copies.t WHERE n = 4")
            report = app.verify(config, repair=True).to_dict()
            assert report["tables"][2]["different"] == 1, report
            assert report["tables"][2]["missing"] == 1, report
            assert {tuple(key) for key in report["tables"][2]["keys"]} == {
                ("NaN", "1"),
                ("NaN", "4"),
            }
            assert _equal(app.verify(config).to_dict(), 4)
    postgres16.drop_database("nan_keys")


def _equal(report: dict[str, Any], rows: int) -> bool:
    assert [(t["equal"], t["rows"]) for t in report["tables"]] == [(True, rows)] * 3, report
    return True
