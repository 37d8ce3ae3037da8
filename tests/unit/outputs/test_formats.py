"""What a newer version wrote in a format that this one does not know is refused by a sentence that
says so, wherever it is. What has no format number, as older versions wrote it, has format 1.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.build_log import BuiltLog

from tidelog import cli
from tidelog.errors import NewerFormatError
from tidelog.eventlog import log_files
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.log_files import to_checksummed_json
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.schemas import MessageSchemaStore
from tidelog.eventlog.segments import SegmentFile, encode_segment, segment_name
from tidelog.outputs.base.progress import OutputProgress
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.files.commits import Commits
from tidelog.outputs.lake.delta.options import DeltaOptions
from tidelog.outputs.lake.delta.table import DeltaTable
from tidelog.outputs.lake.table import FORMAT_PROPERTY
from tidelog.spark.datasource.source import TidelogSource
from tidelog.spark.transforms import target_table
from tidelog.state.sqlite import SqliteElection, SqliteState
from tidelog.system.version import FORMAT, check_format

NEWER = FORMAT + 1
REFUSED = f"has format {NEWER}, which a newer version of Tidelog wrote"
CONFIG = """\
source: {kind: postgres, url: "postgresql://u@localhost/shop"}
log: {path: log}
state: {url: "sqlite:///state.db"}
"""


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    """A log with a consumer, ``chain.json``, a message's schema and an owner, in three segments."""
    built = BuiltLog(tmp_path / "log")
    table = built.table("public.t", {"id": "int64"})
    for key in ("1", "2", "3", "4"):
        built.insert(table, key)
        built.flush()
    maintenance = EventLogMaintenance(built.path)
    assert maintenance.rollup(target_bytes=1 << 20, min_age_s=-60, min_segments=2)
    storage = built.log.storage
    Consumers(storage).register("shop", 0)
    MessageSchemaStore(storage).register("t-value", '"string"')
    state = SqliteState(tmp_path / "state.db")
    log_files.claim_log(storage, built.log.generation, state, "here")
    state.close()
    return built


def renumber(path: Path, number: int | None, *, checksummed: bool = True) -> None:
    """Store the JSON document with this format number (None: with none)."""
    document = json.loads(path.read_text())
    document.pop("crc32", None)
    document.pop("format", None)
    if number is not None:
        document["format"] = number
    path.write_bytes(
        to_checksummed_json(document) if checksummed else json.dumps(document).encode()
    )


def read_owner(path: Path) -> None:
    log, state = EventLog.open(path), SqliteState(path.parent / "state.db")
    try:
        log_files.claim_log(log.storage, log.generation, state, "here")
    finally:
        state.close()


DOCUMENTS: dict[str, Callable[[Path], object]] = {
    "log.json": EventLog.open,
    "chain.json": lambda path: EventLog.open(path).chain(),
    "schemas/00000001.json": lambda path: EventLog.open(path).schemas.get(1),
    "message-schemas/00000001.json": lambda path: MessageSchemaStore(path).subjects(),
    "consumers/shop.json": lambda path: Consumers(EventLog.open(path).storage).all(),
    "led-by.json": read_owner,
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_of_the_event_log(built: BuiltLog, name: str) -> None:
    path, read = Path(built.path), DOCUMENTS[name]
    read(path)
    renumber(path / name, None)
    read(path)
    renumber(path / name, NEWER)
    with pytest.raises(NewerFormatError, match=REFUSED) as refused:
        read(path)
    assert name in str(refused.value)
    assert refused.value.exit_code == 2
    renumber(path / name, NEWER, checksummed=False)  # a newer version may compute it otherwise
    with pytest.raises(NewerFormatError, match=REFUSED):
        read(path)


def as_newer_segment(path: Path) -> None:
    """Write the segment again, with a greater format number in its metadata."""
    with pa.ipc.open_file(path) as file:
        batches = [file.get_batch(n) for n in range(file.num_record_batches)]
        raw = file.schema.metadata[b"tidelog"].replace(b'"format":1', b'"format":%d' % NEWER)

    class Meta:
        def to_bytes(self) -> bytes:
            return bytes(raw)

    path.write_bytes(encode_segment(Meta(), batches))  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["newest", "oldest"])
def test_segments(built: BuiltLog, place: str) -> None:
    names = [segment.name for segment in built.log.chain().segments]
    assert len(names) > 1
    name = names[-1] if place == "newest" else names[0]
    as_newer_segment(Path(built.path) / name)
    with pytest.raises(NewerFormatError, match=f"segment {name} {REFUSED}"):
        built.log.chain()
    with pytest.raises(NewerFormatError, match=REFUSED):
        SegmentFile(built.log.storage, name)
    with pytest.raises(NewerFormatError, match=REFUSED):
        EventLogMaintenance(built.path).quarantine_strays()
    assert (Path(built.path) / name).exists()


def test_a_newer_segment_off_the_chain_is_set_aside_like_any_other(built: BuiltLog) -> None:
    """A newer version's writer was frozen, and its successor is of this version."""
    path = Path(built.path)
    segments = built.log.chain().segments
    stray = path / segment_name(segments[0].first + 1)
    stray.write_bytes((path / segments[0].name).read_bytes())
    as_newer_segment(stray)
    assert built.log.chain().segments == segments
    assert len(EventLogMaintenance(path).quarantine_strays().quarantined) == 1
    assert not stray.exists()


@pytest.mark.parametrize(
    ("place", "command"),
    [("log", ["status"]), ("log", ["log"]), ("state", ["status"]), ("state", ["state", "copy"])],
)
def test_commands_end_with_exit_code_2(
    built: BuiltLog,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    place: str,
    command: list[str],
) -> None:
    file = tmp_path / "tidelog.yaml"
    file.write_text(CONFIG)
    arguments = [*command, str(file)]
    if place == "log":
        renumber(Path(built.path) / "log.json", NEWER)
    else:
        raise_user_version(tmp_path / "state.db")
    if command[0] == "state":
        arguments.append(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert REFUSED in " ".join(capsys.readouterr().err.split())


def raise_user_version(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {NEWER}")
    database.close()


def test_a_state_database_of_a_newer_version_elects_no_leader(tmp_path: Path) -> None:
    """Neither one that was opened before the newer version led, nor one that is opened now."""
    path = tmp_path / "state.db"
    standby = SqliteElection(path, "shop", "here", 5.0)
    raise_user_version(path)
    with pytest.raises(NewerFormatError, match=f"the state database {path} {REFUSED}"):
        standby.acquire()
    with pytest.raises(NewerFormatError, match=REFUSED):
        SqliteState(path)


def test_progress_of_an_output(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "state.db")
    OutputProgress(state, "g", "kafka").finish(10)
    key = "output/g/kafka"
    found = state.get(key)
    assert found is not None
    state.put(key, {**found.value, "format": NEWER}, found.version)
    with pytest.raises(NewerFormatError, match=f"the progress of output kafka {REFUSED}"):
        OutputProgress(state, "g", "kafka")


def test_commits_of_files(tmp_path: Path) -> None:
    store = open_file_store(str(tmp_path))
    commits = Commits(store, "files")
    commits.publish(commits.staging("a"), "g", 0, 10, "p-", ".parquet")
    [name] = (tmp_path / "_tidelog/files/commits").iterdir()
    assert Commits(store, "files").newest is not None
    renumber(name, NEWER, checksummed=False)
    with pytest.raises(NewerFormatError, match=REFUSED):
        _ = Commits(store, "files").newest


def test_a_delta_table(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    schema = built.table("public.t", {"id": "int64"})
    target = target_table(None, schema, (), built.log.source, keyed=True)  # type: ignore[arg-type]
    table = DeltaTable(
        str(tmp_path / "t"), DeltaOptions().layout_of(schema.table), lambda works: []
    )
    assert not table.exists()
    table.create(target, "g")
    assert table.exists()
    table.check_ours(schema.table, "g")
    table.set_property(FORMAT_PROPERTY, str(NEWER))
    assert table.exists()
    with pytest.raises(NewerFormatError, match=REFUSED):
        table.check_ours(schema.table, "g")


def test_a_checkpoint_of_spark(built: BuiltLog) -> None:
    source = TidelogSource({"path": built.path, "shape": "raw"})
    reader: Any = source.streamReader(source.schema())
    start, end = reader.initialOffset(), reader.latestOffset()
    assert reader.partitions(start, end)
    with pytest.raises(NewerFormatError, match=f"this query's checkpoint {REFUSED}"):
        reader.partitions(start, {**end, "format": NEWER})
    with pytest.raises(NewerFormatError, match=REFUSED):
        reader.latestOffset({**start, "format": NEWER})


@pytest.mark.parametrize("number", [0, -1, "2", 1.5, [], {}])
def test_what_is_no_format_number_is_damage(number: Any) -> None:
    with pytest.raises(ValueError, match="not a number from 1 up"):
        check_format(number, "x")
