"""A kind of source is a registration: nothing else names it, and only its driver is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.app.sources import kinds
from tidelog.config import parse_config
from tidelog.config.source import SOURCES
from tidelog.errors import MissingExtraError
from tidelog.kinds.adapters import SOURCE_KINDS

CONFIG = "source: {{kind: {kind}, url: '{kind}://u@127.0.0.1:1/shop'}}\nlog: {{path: ./log}}\n"

# The runtime with a kind, in a process of its own: which drivers are loaded then.
LOADED = """
import sys
from pathlib import Path
from tidelog.kinds.adapters import SOURCE_KINDS
from tidelog.config import parse_config
from tidelog.app.sources.kinds import source_kind
source_kind(parse_config(sys.argv[1], "tidelog.yaml", Path("."), {}))
print(*sorted({"psycopg", "pymysql"} & set(sys.modules)))
"""


def test_every_kind_of_the_configuration_has_adapters() -> None:
    assert set(SOURCE_KINDS.names) == set(SOURCES)


@pytest.mark.parametrize(
    ("kind", "driver"), [("postgres", "psycopg"), ("mysql", "pymysql"), ("mariadb", "pymysql")]
)
def test_only_the_driver_of_the_kind_is_loaded(kind: str, driver: str) -> None:
    command = [sys.executable, "-c", LOADED, CONFIG.format(kind=kind)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (found.stdout.split(), found.returncode) == ([driver], 0), found.stderr


def test_kind_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("pymysql", "tidelog.sources.mysql", "tidelog.app.sources.mysql")):
            monkeypatch.delitem(sys.modules, name)

    class Absent:
        def find_spec(self, name: str, *_: object) -> None:
            if name.split(".")[0] == "pymysql":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    config = parse_config(CONFIG.format(kind="mysql"), "tidelog.yaml", Path(), {})
    with pytest.raises(MissingExtraError, match=r"pip install 'tidelog\[mysql\]'"):
        kinds.source_kind(config)
