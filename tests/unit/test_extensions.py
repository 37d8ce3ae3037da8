"""Adapters that another distribution brings by entry points: those of examples/extension, and
broken ones. In processes of their own, for what is installed is looked up once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tidelog.config.models import OUTPUTS
from tidelog.config.source import SOURCES
from tidelog.kinds.adapters import FORMATTERS, OUTPUT_KINDS, SOURCE_KINDS, STATES

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "extension"
GROUPS = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]

NOTHING = "class Nothing:\n    section = dict\n"
CONFIG = """
source: {{kind: {source}, url: "postgresql://u@127.0.0.1:1/d"}}
log: {{path: ./log}}
state: {{url: "{state}"}}
outputs:
  - {{kind: {output}, path: ./lines, tables: ["public.*"]}}
  - {{kind: kafka, servers: "b:9092", format: {format}}}
"""
KIND_OF_OURS = """
from typing import Literal

from tidelog.outputs.base.builtin_kind import BuiltinKind
from tidelog.outputs.base.sections import ExecutorSection
from tidelog.ports import OutputLocation


class LinesSection(ExecutorSection):
    kind: Literal["lines"]
    name: str = "lines"
    path: str


KIND = BuiltinKind(LinesSection, lambda *_: None, lambda section: OutputLocation(section.path))
"""


def distribution(site: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """As an installer leaves it, without its modules."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines: list[str] = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{entry} = {place}" for entry, place in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    distribution(site, "tidelog-extension", GROUPS)
    (site / "nothing.py").write_text(NOTHING)
    return site


def run_code(site: Path, code: str, *arguments: str) -> Any:
    path = os.pathsep.join([str(site), str(EXAMPLE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


PARSED = """
import json, sys
from pathlib import Path
from tidelog.config import parse_config
from tidelog.errors import ConfigError
found = []
for text in sys.argv[1:]:
    try:
        found.append(repr(parse_config(text, "tidelog.yaml", Path("/base"), {})))
    except ConfigError as error:
        found.append(str(error))
print(json.dumps(found))
"""


def config(**changed: str) -> str:
    given = {"source": "limited", "state": "folder:state", "output": "lines", "format": "keys"}
    return CONFIG.format(**given | changed)


def test_every_kind_of_ours_has_a_section_and_an_adapter() -> None:
    assert set(OUTPUT_KINDS.names) == set(OUTPUTS)
    assert set(SOURCE_KINDS.names) == set(SOURCES)
    for registry in (FORMATTERS, SOURCE_KINDS, STATES):
        assert all(registry.get(name) is not None for name in registry.names)


def test_kind_of_output_in_tidelog_is_a_folder_and_one_line(tmp_path: Path) -> None:
    source = tmp_path / "src" / "tidelog"
    shutil.copytree(ROOT / "src" / "tidelog", source, ignore=shutil.ignore_patterns("__pycache__"))
    folder = source / "outputs" / "lines"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "config.py").write_text(KIND_OF_OURS)
    registry = source / "kinds" / "adapters.py"
    first = '        "delta": "'
    line = '        "lines": "tidelog.outputs.lines.config:KIND",\n'
    registry.write_text(registry.read_text().replace(first, line + first))
    text = config(source="postgres", format="flat", state="sqlite:///state.db")
    (parsed,) = run_code(tmp_path / "src", PARSED, text)
    assert "LinesSection(" in parsed


def test_a_configuration_names_what_others_bring(site: Path) -> None:
    (site / "broken_kind.py").write_text("import no_such_module\n")
    (site / "twice.py").write_text("")
    broken = {"tidelog.outputs": {"broken": "broken_kind:KIND", "wrong": "nothing:Nothing"}}
    distribution(site, "broken-kind", broken)
    good, unknown, bad, wrong, formats, state = run_code(
        site,
        PARSED,
        config(),
        config(output="line"),
        config(output="broken"),
        config(output="wrong"),
        config(format="key"),
        config(state="fold:x"),
    )
    for part in ("LinesSection(", "LimitedSection(", "format='keys'", "folder:/base/state"):
        assert part in good
    assert "outputs[0].kind: expected 'delta'," in unknown
    assert "or 'lines', not 'line'" in unknown  # what is broken is offered to nobody
    assert "of broken-kind (broken_kind:KIND) can't be loaded: ModuleNotFoundError" in bad
    assert "its section is not derived from tidelog.ext.OutputSection" in wrong
    assert "expected 'debezium', 'flat', 'cloudevents', 'avro', 'avro_flat' or 'keys'" in formats
    assert (
        "expected sqlite:///path/to/state.db, or a URL of log, zookeeper, postgresql, folder"
        in state
    )


def test_two_that_bring_one_name_are_reported(site: Path) -> None:
    distribution(site, "kafka-again", {"tidelog.formatters": {"avro": "nothing:Nothing"}})
    code = """
import json
from tidelog.kinds.adapters import FORMATTERS
from tidelog.errors import ConfigError
try:
    FORMATTERS.get("debezium")
    FORMATTERS.names
except ConfigError as error:
    print(json.dumps(str(error)))
"""
    assert run_code(site, code) == (
        "the format 'avro' is provided by kafka-again and by Tidelog: uninstall one of them"
    )


def test_commands_find_the_state_store_and_the_source(site: Path, tmp_path: Path) -> None:
    """`tidelog status` and `tidelog pause` go through the store and its election."""
    (tmp_path / "tidelog.yaml").write_text(config())
    code = """
import json, sys
from tidelog import status, load_config
from tidelog.kinds.adapters import FORMATTERS, OUTPUT_KINDS
from tidelog.control.commands import PauseDump
from tidelog.ports import FormatOptions
from tidelog.app.overview.remote_control import send_command
from tidelog.app.sources.kinds import source_kind
from tidelog.state.opening import open_election, open_state
config = load_config(sys.argv[1])
send_command(config, PauseDump(), timeout_s=0)
election = open_election(config.state.url, "capture", "me", 60, first_epoch=7)
lease = election.acquire()
found = status(config)
state = open_state(config.state.url)
print(json.dumps([
    lease.epoch, election.acquire(), found.leader, len(state.keys("")),
    type(source_kind(config)).__name__, type(FORMATTERS.get("keys")(FormatOptions())).__name__,
    OUTPUT_KINDS.get("lines").location(config.outputs[0]).identity,
]))
"""
    epoch, again, leader, documents, kind, form, place = run_code(
        site, code, str(tmp_path / "tidelog.yaml")
    )
    assert (epoch, again, leader, kind, form) == (7, None, "me", "LimitedPostgres", "Keys")
    assert documents >= 2  # the command and the election
    assert (tmp_path / "state" / "state.json").exists()
    assert place.endswith("/lines")
