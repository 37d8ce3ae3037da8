"""Commands that only look, where capture has never run: they make no state store, and say so."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.postgres import PostgresServer
from tests.support.state_stores import STORES

from tidelog import cli
from tidelog.state.opening import ReadOnlyStateStore, open_state, state_exists

NEVER = "No capture has begun here"
COMMANDS = [
    ("status tidelog.yaml", 0, NEVER),
    ("status tidelog.yaml --json", 0, '"leader": null'),
    ("status tidelog.yaml --ranges", 0, NEVER),
    ("watch tidelog.yaml --once", 0, NEVER),
    ("wait tidelog.yaml nightly", 2, "there is no dump nightly"),
    ("cancel tidelog.yaml", 0, "no dump runs"),
    ("handover tidelog.yaml", 2, "no capture has run here"),
    ("handover tidelog.yaml --pipeline shop", 2, "no capture has run here"),
    ("schema tidelog.yaml", 2, "no event log"),
    ("log tidelog.yaml", 1, "holds no event log"),
    ("verify tidelog.yaml", 1, "holds no event log"),
    ("reset tidelog.yaml --yes", 2, "there is nothing to reset"),
    ("check tidelog.yaml", 2, "connection"),
    ("plan tidelog.yaml", 1, "cannot connect"),
]
CONFIG = """
source: {kind: postgres, url: "postgresql://tidelog@127.0.0.1:1/shop"}
log: {path: log}
outputs: [{kind: postgres, name: copy, url: "postgresql://tidelog@127.0.0.1:1/copy"}]
"""


def asked(state: str, command: str) -> int | str | None:
    """Its exit code."""
    Path("tidelog.yaml").write_text(f"{CONFIG}state: {{url: '{state}'}}\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(shlex.split(command))
    return ended.value.code


@pytest.mark.parametrize(("command", "code", "said"), COMMANDS)
def test_a_command_that_looks_makes_no_file(
    command: str,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    found = asked("sqlite:///data/state.db", command)
    assert said in "".join(capfd.readouterr())
    assert found == code
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["tidelog.yaml"]


@pytest.mark.integration
def test_status_makes_no_table(
    postgres: PostgresServer,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked(database, "status tidelog.yaml") == 0
    assert NEVER in "".join(capfd.readouterr())
    name = database.rpartition("/")[2]
    [(found,)] = postgres.execute("SELECT to_regnamespace('tidelog')::text", name)
    assert found is None


@pytest.mark.integration
@pytest.mark.parametrize("store", sorted(STORES.keys() - {"folder"}))
def test_a_store_that_is_made_meanwhile_is_found(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = STORES[store](request, tmp_path)
    with closing(ReadOnlyStateStore(url)) as looked:
        assert (looked.get("a"), looked.keys("")) == (None, [])
        assert looked.exists == (store == "log")
        looked.delete("a")
        assert not state_exists(url)
        with closing(open_state(url)) as state:
            state.put("a", 1, 0)
        found = looked.get("a")
        assert found is not None
        assert (looked.exists, found.value, looked.keys("")) == (True, 1, ["a"])
        assert looked.put("a", 2, 1) == 2
