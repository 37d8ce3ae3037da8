"""`check` names paths that no file can be created at, and capture ends with code 2."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tidelog.app.base.log_location import check_local_paths
from tidelog.app.sources.preflight import check_paths
from tidelog.cli import main
from tidelog.config import Config, parse_config
from tidelog.errors import ConfigError, UsageError
from tidelog.eventlog.storage import LocalStorage
from tidelog.state.sqlite import SqliteState
from tidelog.system.private_files import obstacle_to_files

TEXT = """
source: {{kind: postgres, url: 'postgresql://127.0.0.1:1/none'}}
log: {{path: '{log}'}}
state: {{url: 'sqlite:///{state}'}}
outputs: [{{kind: delta, name: lake, path: '{lake}'}}]
pipeline: {{checkpoint: '{checkpoint}'}}
"""


def configured(
    directory: Path,
    *,
    log: str = "log",
    state: str = "state.db",
    lake: str = "lake",
    checkpoint: str = "checkpoint",
) -> Config:
    text = TEXT.format(log=log, state=state, lake=lake, checkpoint=checkpoint)
    return parse_config(text, "test", directory, {})


def found(config: Config) -> dict[str, tuple[str, str]]:
    """The findings that are not in order."""
    return {
        each["check"]: (each["level"], each["message"])
        for each in [each.to_dict() for each in check_paths(config)]
        if each["level"] != "ok"
    }


def test_a_missing_directory_is_no_obstacle_and_is_not_made(tmp_path: Path) -> None:
    assert obstacle_to_files(tmp_path / "a" / "b") == ""
    assert found(configured(tmp_path)) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert (
        obstacle_to_files(file) == obstacle_to_files(file / "below" / "it") == f"{file} is a file"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_somebody_else_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert obstacle_to_files(tmp_path / "log") == f"this user may not write to {tmp_path}"
    tmp_path.chmod(0o700)


def test_check_names_each_path_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = configured(
        tmp_path, log="file/log", state="file/s.db", lake="file", checkpoint="/proc/checkpoint"
    )
    levels = {check: level for check, (level, _) in found(config).items()}
    assert levels == {
        "log": "error",
        "state": "error",
        "output lake": "warning",
        "checkpoint": "warning",
    }
    assert "no space left" in found(config)["checkpoint"][1]  # /proc holds no files
    assert f"{tmp_path / 'file'} is a file" in found(config)["log"][1]


@pytest.mark.parametrize("path", ["log", "state"])
def test_capture_ends_with_code_2_and_a_sentence(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    options = {"log": "log", "state": "state.db", "lake": "lake", "checkpoint": "c"}
    options[path] = "file/x"
    (tmp_path / "tidelog.yaml").write_text(TEXT.format(**options))
    with pytest.raises(SystemExit) as ended:
        main(["capture", str(tmp_path / "tidelog.yaml")])
    assert ended.value.code == UsageError.exit_code
    told = capsys.readouterr().err
    assert f"{path}." in told
    assert "file is a file. Name another directory" in told
    assert "Traceback" not in told


def test_a_file_system_without_files_is_no_internal_error(tmp_path: Path) -> None:
    check_local_paths(configured(tmp_path, log="/proc/log", state="/proc/x/s.db"))
    with pytest.raises(UsageError, match=r"/proc/log can't be created.*log\.path"):
        LocalStorage("/proc/log").put_if_absent("log.json", b"")
    with pytest.raises(ConfigError, match=r"/proc/x/s.db can't be created.*state\.url"):
        SqliteState("sqlite:////proc/x/s.db")
