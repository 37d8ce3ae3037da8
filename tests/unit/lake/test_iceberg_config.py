"""Outputs of kind iceberg in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.app.base.outputs import check_spark
from tidelog.config import Config, load_config
from tidelog.errors import ConfigError
from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.config import DeltaSection
from tidelog.outputs.lake.delta.config import _options as delta_options
from tidelog.outputs.lake.iceberg.config import IcebergSection
from tidelog.outputs.lake.iceberg.config import _options as iceberg_options
from tidelog.outputs.lake.iceberg.partitioning import Partition


def config(path: Path, *outputs: str) -> Config:
    (path / "tidelog.yaml").write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        + "".join(f"{'' if n else 'outputs:'}\n  - {{{o}}}" for n, o in enumerate(outputs))
    )
    return load_config(path / "tidelog.yaml", {"TOKEN": "secret"})


def test_a_path_is_a_hadoop_catalog_s_warehouse(tmp_path: Path) -> None:
    (output,) = config(tmp_path, "kind: iceberg, path: ./lake").outputs
    assert output.catalog_properties() == {"type": "hadoop", "warehouse": str(tmp_path / "lake")}


def test_a_catalog_s_properties_are_passed_on_and_never_shown(tmp_path: Path) -> None:
    given = "kind: iceberg, catalog: {type: rest, uri: 'https://c', token: '${TOKEN}'}"
    (output,) = config(tmp_path, given).outputs
    assert output.catalog_properties() == {"type": "rest", "uri": "https://c", "token": "secret"}
    assert "secret" not in repr(output)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("kind: iceberg", "say where"),
        ("kind: iceberg, path: a, catalog: {type: hive, warehouse: b}", "one of the two"),
        ("kind: iceberg, catalog: {type: hadoop, warehouse: lake}", "write it as path: 'lake'"),
        ("kind: iceberg, path: a, vacuum_after: 59m", "at least 1h"),
        ("kind: iceberg, path: a, catalog_name: lake", "for a JDBC catalog"),
        ("kind: iceberg, path: a, storage_options: {region: x}", "path is a local directory"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, given)


def test_the_size_of_the_cache_reaches_the_tasks(tmp_path: Path) -> None:
    given = [f"kind: {kind}, path: {kind}, cache_bytes: 64MiB" for kind in ("delta", "iceberg")]
    delta, iceberg = config(tmp_path, *given).outputs
    assert isinstance(delta, DeltaSection)
    assert isinstance(iceberg, IcebergSection)
    for options in (delta_options(delta), iceberg_options(iceberg)):
        assert options.layout_of(TableName("s", "t")).cache_bytes == 64 << 20


def test_delta_tables_need_no_jars_of_delta_s(tmp_path: Path) -> None:
    assert check_spark(config(tmp_path, "kind: delta, path: a")) is None
    assert check_spark(config(tmp_path, "kind: files, path: a")) is None
    assert check_spark(config(tmp_path, "kind: iceberg, path: a")) == "iceberg"


@pytest.mark.parametrize(
    ("text", "kept", "sql"),
    [
        ("name", ("name", "identity"), "`name`"),
        ("day(at)", ("at", "day"), "days(`at`)"),
        ("hours(at)", ("at", "hour"), "hours(`at`)"),
        ("bucket(16, a b)", ("a b", "bucket[16]"), "bucket(16, `a b`)"),
        ("truncate(4,name)", ("name", "truncate[4]"), "truncate(4, `name`)"),
        ("odd(name)", ("odd(name)", "identity"), "`odd(name)`"),
    ],
)
def test_partitions_read_as_iceberg_tells_them(text: str, kept: tuple[str, str], sql: str) -> None:
    assert Partition.parse(text) == Partition.kept(*kept)
    assert Partition.parse(text).sql() == sql
