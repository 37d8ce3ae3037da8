"""``source.databases``: what is derived for each, and what they can't share."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidelog
from tidelog import cli
from tidelog.app.base.log_location import event_log_path
from tidelog.config import Config, load_config
from tidelog.config.loading import config_by_database, label_of
from tidelog.errors import ConfigError
from tidelog.state.postgres import RowRegister

URL = "postgresql://me:s3cret@h:5432/ignored?sslmode=require"


def load(directory: Path, rest: str = "", url: str = URL) -> Config:
    file = directory / "tidelog.yaml"
    file.write_text(
        f'source: {{kind: postgres, url: "{url}", slot: tide, databases: [shop, Größe/2]}}\n'
        f"log: {{path: {directory}/log}}\nstate: {{url: 'sqlite:///{directory}/state.db'}}\n{rest}"
    )
    return load_config(file)


def test_each_database_has_a_slot_a_log_and_a_state_of_its_own(tmp_path: Path) -> None:
    shop, other = config_by_database(load(tmp_path)).values()
    assert shop.source.url.reveal() == "postgresql://me:s3cret@h:5432/shop?sslmode=require"
    assert shop.source.slot == shop.source.publication_name == "tide_shop"
    assert shop.log.path == f"{tmp_path}/log/shop"
    assert shop.state.url.reveal() == f"sqlite:///{tmp_path}/state-shop.db"
    label = label_of("Größe/2")
    assert label.startswith("gr__e_2_")
    assert other.source.url.reveal().endswith(":5432/Gr%C3%B6%C3%9Fe%2F2?sslmode=require")
    assert other.source.slot == f"tide_{label}"
    assert other.log.path == f"{tmp_path}/log/{label}"
    assert label_of("grosse_2") != label_of("Grosse_2")


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("host=h password=p", "host=h password=p dbname='shop'"),
        ("postgresql:///x?host=/tmp&dbname=y", "postgresql:///shop?host=%2Ftmp"),
    ],
)
def test_any_form_of_a_url_gets_the_database(tmp_path: Path, url: str, own: str) -> None:
    shop = tidelog.database_config(load(tmp_path, url=url), "shop")
    assert shop.source.url.reveal() == own


@pytest.mark.parametrize(
    ("log", "state", "own"),
    [
        ("s3://b/v1.0", "log:", "log:s3://b/v1.0/shop?region=x"),
        ("./log", "zookeeper://a:2181,b:2181/tide", "zookeeper://a:2181,b:2181/tide/shop"),
        ("./log", "postgresql://me@h/db", "postgresql://me@h/db?part=shop"),
        ("./log", "postgresql://me@h/db?schema=x", "postgresql://me@h/db?schema=x&part=shop"),
    ],
)
def test_every_store_keeps_states_apart(tmp_path: Path, log: str, state: str, own: str) -> None:
    file = tmp_path / "tidelog.yaml"
    options = ", storage_options: {region: x}" if log.startswith("s3") else ""
    file.write_text(
        f"source: {{kind: postgres, url: '{URL}', databases: [shop, other]}}\n"
        f"log: {{path: '{log}'{options}}}\nstate: {{url: '{state}'}}\n"
    )
    config = load_config(file)
    shop = tidelog.database_config(config, "shop")
    assert shop.state.location.reveal() == own
    assert shop.state.location != tidelog.database_config(config, "other").state.location
    if state == "log:":
        assert own.startswith(f"log:{shop.log.path}?")


@pytest.mark.parametrize("options", ["", ", options: {schema: ops}"])
def test_databases_share_a_table_of_states_and_no_state(tmp_path: Path, options: str) -> None:
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{URL}', databases: [shop, other]}}\n"
        f"log: {{path: log}}\nstate: {{url: 'postgresql://me@h/db'{options}}}\n"
    )
    group = tidelog.CaptureGroup([load_config(file)])
    spaces = set()
    for config in group.configs:
        register = RowRegister(config.state.location.reveal(), "documents")
        assert register._table_name == ("ops.state" if options else "tidelog.state")
        spaces.add(register._space)
    assert spaces == {"documents/shop", "documents/other"}


def test_a_slots_name_stays_short_enough_and_unlike_others(tmp_path: Path) -> None:
    names = []
    for end in "ab":
        file = tmp_path / "long.yaml"
        file.write_text(
            f"source: {{kind: postgres, url: 'postgresql://h/x', slot: {'s' * 62}{end}, "
            f"databases: [shop]}}\nlog: {{path: {tmp_path}/log}}\n"
        )
        names.append(tidelog.database_config(load_config(file), "shop").source.slot)
    assert [len(name) for name in names] == [63, 63]
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ("outputs: [{kind: delta, path: lake}]", "source.databases has no outputs"),
        ("control: {rest: {token: long-enough}}", "can't listen on control.rest.port 8490"),
    ],
)
def test_what_they_can_not_share_is_refused(tmp_path: Path, rest: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load(tmp_path, rest)


def test_what_is_of_one_database_asks_which(tmp_path: Path) -> None:
    config = load(tmp_path)
    for what in (tidelog.Capture, event_log_path):
        with pytest.raises(ConfigError, match="of the databases shop, Größe/2"):
            what(config)
    with pytest.raises(ConfigError, match=r"'bar' is not in source\.databases: they are shop"):
        tidelog.database_config(config, "bar")
    with pytest.raises(ConfigError, match="there are none"):
        tidelog.database_config(tidelog.database_config(config, "shop"), "shop")


def test_the_command_line_takes_one_of_them(tmp_path: Path) -> None:
    load(tmp_path)
    file = str(tmp_path / "tidelog.yaml")
    found = CliRunner().invoke(cli.app, ["status", file])
    assert isinstance(found.exception, ConfigError)
    assert "tidelog --database shop" in str(found.exception)
    found = CliRunner().invoke(cli.app, ["--database", "shop", "status", file, "--json"])
    assert found.exit_code == 0, found.output
    found = CliRunner().invoke(cli.app, ["--database", "bar", "status", file])
    assert "'bar' is not in source.databases" in str(found.exception)


def test_metrics_of_each_database_are_series_of_their_own(tmp_path: Path) -> None:
    rest = "control: {otlp: {endpoint: 'http://h:4318/v1/metrics', service_name: tide}}\n"
    shop, other = config_by_database(load(tmp_path, rest)).values()
    assert shop.control.otlp is not None
    assert other.control.otlp is not None
    assert shop.control.otlp.service_name == "tide_shop"
    assert other.control.otlp.service_name == f"tide_{label_of('Größe/2')}"
    assert shop.control.otlp.endpoint.reveal() == "http://h:4318/v1/metrics"
