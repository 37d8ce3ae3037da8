"""Rows and state are for their owner alone, whatever the umask, or for the group they are given."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.app.sources.preflight import check_modes
from tidelog.config import load_config
from tidelog.control.channels.notifier import Notifier
from tidelog.control.signal_intake import skipped
from tidelog.eventlog.storage import LocalStorage
from tidelog.outputs.base.writer import JsonDeadLetters
from tidelog.ports import Rejection, WriteTask
from tidelog.spark.session import scratch_directory
from tidelog.state.sqlite import SqliteElection, SqliteState
from tidelog.system.private_files import readable_by_others


def modes(place: Path) -> dict[str, int]:
    return {
        str(path.relative_to(place)): stat.S_IMODE(path.stat().st_mode)
        for path in sorted(place.rglob("*"))
    }


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def write_everything(place: Path) -> dict[str, int]:
    """By everything that keeps files; their modes while it runs."""
    storage = LocalStorage(place / "log")
    assert storage.put_if_absent("00000000000000000000.arrow", b"rows")
    assert storage.put_if_absent("schemas/00000001.json", b"{}")
    storage.replace("chain.json", b"{}")
    for _ in range(2):
        with storage.exclusive("maintenance") as ours:
            assert ours
    storage.quarantine("chain.json")
    state = SqliteState(place / "state.db")
    state.put("a", 1, None)
    letters = JsonDeadLetters(str(place / "letters"))
    letters.put(WriteTask("search", "g", 0, 9, 0), [Rejection("public.t", 7, "mapping")])
    notifier = Notifier(["file"], connector="shop", file=place / "notifications.jsonl")
    notifier.start()
    notifier.notify(skipped("a signal", "why"))
    notifier.close()
    assert {"letters/search", "notifications.jsonl"} < set(modes(place))
    election = SqliteElection(place / "state.db", "leader", "us", 10.0)
    assert election.acquire() is not None
    found = modes(place)
    assert {"log", "log/schemas", "log/quarantine", "state.db", "state.db-wal"} < set(found)
    assert any(name.endswith(".alive") for name in found)
    election.close()
    state.close()
    return found


def test_files_are_for_their_owner_whatever_the_umask(place: Path, umask: int) -> None:
    found = write_everything(place)
    directories = {name for name in found if (place / name).is_dir()}
    assert {found[name] for name in directories} == {0o700}
    assert {mode for name, mode in found.items() if name not in directories} == {0o600}


@pytest.mark.parametrize(
    ("shared", "directories", "files"),
    [(0o2750, 0o2750, 0o640), (0o2770, 0o2770, 0o660), (0o2755, 0o2750, 0o640)],
    ids=oct,
)
def test_a_directory_with_the_setgid_bit_is_shared_with_its_group(
    place: Path, umask: int, shared: int, directories: int, files: int
) -> None:
    place.chmod(shared)
    os.chown(place, -1, os.getgid())
    found = write_everything(place)
    kinds = {name: (place / name).is_dir() for name in found if (place / name).exists()}
    assert {found[name] for name, is_dir in kinds.items() if is_dir} == {directories}
    assert {found[name] for name, is_dir in kinds.items() if not is_dir} == {files}
    assert not readable_by_others(place / "log")


def test_check_names_what_others_can_read_and_the_command_that_fixes_it(place: Path) -> None:
    file = place / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://host/shop'}\n"
        f"log: {{path: '{place}/the log'}}\nstate: {{url: 'sqlite:///{place}/state.db'}}\n"
        f"control: {{notifications: [file], notification_file: '{place}/told.jsonl'}}\n"
        "outputs: [{name: out, kind: files, path: /out, dead_letter: "
        f"{{path: '{place}/letters'}}}}]\n"
    )
    config = load_config(file, {})
    assert [each.to_dict() for each in check_modes(config)] == []
    (place / "the log").mkdir(mode=0o755)
    (place / "the log" / "old").touch(mode=0o644)
    (place / "state.db").touch(mode=0o644)
    (place / "told.jsonl").touch(mode=0o644)
    (place / "letters").mkdir(mode=0o755)
    for parent in place.parents:
        if parent.stat().st_uid == os.getuid() and parent.name.startswith(("pytest", "popen-gw")):
            parent.chmod(0o755)
    found = [each.to_dict() for each in check_modes(config)]
    assert [(each["check"], each["level"]) for each in found] == [
        ("dead letters of out files", "warning"),
        ("log files", "warning"),
        ("notifications files", "warning"),
        ("state files", "warning"),
    ]
    for each in found:
        subprocess.run(["sh", "-c", each["fix"]], check=True)
    assert {each.level for each in check_modes(config)} == {"ok"}
    assert modes(place)["the log/old"] == 0o600
    (place / "the log").chmod(0o2755)
    (_, finding, *_) = [each.to_dict() for each in check_modes(config)]
    assert finding["fix"].startswith("chmod o-rwx -R")


def test_what_stands_in_a_private_directory_is_not_seen(place: Path) -> None:
    (place / "log").mkdir(mode=0o755)
    place.chmod(0o700)
    assert not readable_by_others(place / "log")


def test_a_scratch_directory_that_somebody_else_may_have_made_is_not_used(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would read its log configuration from there."""
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    ours = scratch_directory()
    assert ours == scratch_directory() == place / f"tidelog-spark-{os.getuid()}"
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700
    ours.rmdir()
    (place / "elsewhere").mkdir()
    ours.symlink_to(place / "elsewhere")
    assert scratch_directory().parent == place
    assert scratch_directory() != ours
