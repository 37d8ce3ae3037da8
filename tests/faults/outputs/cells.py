"""The table: kinds of outputs, faults, and what the status says of each."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from tidelog.eventlog.consumers import Consumers

OUTPUTS: Final = (
    "postgres", "mysql", "mariadb", "opensearch", "kafka", "kafka_transactions", "http", "files",
    "files_s3", "delta", "delta_s3", "iceberg", "iceberg_s3",
)  # fmt: skip
KAFKA: Final = ("kafka", "kafka_transactions")
DISKS: Final = ("files", "delta", "iceberg")


@dataclass(frozen=True)
class Cell:
    """``words``: the status has one of these in it while the fault lasts; none: it has nothing to
    say.
    """

    output: str
    fault: str
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.output}-{self.fault}"

    @property
    def play(self) -> Callable[[Any], None]:
        return FAULTS[self.fault].play


@dataclass(frozen=True)
class Fault:
    """``words``: by output, empty for all others; ``impossible``: why an output has no such one."""

    title: str
    what: str
    play: Callable[[Any], None]
    words: Mapping[str, tuple[str, ...]]
    impossible: Mapping[str, str]


def _befall(scene: Any) -> None:
    """What the target's method of the fault's name does to it, under a stream of changes."""
    scene.source.write(120)
    with scene.outputs as outputs:
        outputs.wait_for_copy()
        _strike(scene)
    assert outputs.raised is None


def _strike(scene: Any) -> None:
    source, target, outputs = scene.source, scene.target, scene.outputs
    with getattr(target, scene.cell.fault)() as strike:
        source.write(120)
        if scene.cell.fault == "full":
            source.insert(target.grows)
        if scene.cell.fault == "killed":
            outputs.wait_for_witness()
        strike()
        if scene.cell.words:
            outputs.wait_for_words(scene.cell.words)
        source.write(40)
        outputs.wait_for_witness()
    source.write(40)
    outputs.wait_for_copy()


def _away(scene: Any) -> None:
    """At the start, and again amid the work. What it has not got, the log keeps."""
    outputs = scene.outputs
    with ExitStack() as away:
        away.enter_context(scene.target.away())
        scene.source.write(120)
        with outputs:
            outputs.wait_for_words(scene.cell.words)
            outputs.wait_for_witness()
            log = scene.source.built.log
            (consumer,) = Consumers(log.storage).all()
            assert consumer.offset == log.head_offset
            away.close()
            outputs.wait_for_copy()
            _strike(scene)
    assert outputs.raised is None


def _ddl(scene: Any) -> None:
    """Columns are added, renamed and dropped while changes are delivered."""
    source, outputs = scene.source, scene.outputs
    source.write(80)
    with outputs:
        for columns in (
            {"v": "text", "w": "text"},
            {"v": "text", "x": "text", "n": "int32"},
            {"n": "int32", "v": "text"},
            {"v": "text"},
        ):
            source.alter(**columns)
            source.write(80)
            outputs.wait_for_witness()
        outputs.wait_for_copy()
    assert outputs.raised is None


def _widened(scene: Any) -> None:
    """int to bigint."""
    source, outputs = scene.source, scene.outputs
    source.alter(v="int32")
    source.write(80)
    with outputs:
        outputs.wait_for_copy()
        source.alter(v="int64")
        source.grow_beyond(1 << 31)
        source.write(80)
        outputs.wait_for_copy()
    assert outputs.raised is None


def _changed(scene: Any) -> None:
    """int to text: where a table can't follow by itself, the message's way is gone."""
    source, target, outputs = scene.source, scene.target, scene.outputs
    source.alter(v="int32")
    source.write(80)
    with outputs:
        outputs.wait_for_copy()
        source.alter(v="text")
        source.write(80)
        if scene.cell.words:
            outputs.wait_for_words(scene.cell.words)
            outputs.wait_for_witness()
            target.follow(outputs.status())

            def taken_again() -> bool:
                source.write(1)
                return "rows are missing until a dump" in outputs.status()

            outputs.wait_for(taken_again, "table that is taken again")
        source.dump()
        outputs.wait_for_copy()
    assert outputs.raised is None


def _driver_killed(scene: Any) -> None:
    """Twice: the second one dies amid what the first one left, which is cut otherwise then."""
    source, target, outputs = scene.source, scene.target, scene.outputs
    armed = scene.root / "armed"
    source.write(80)
    for _ in range(2):
        with outputs.process(f"{target.place.point}:pause:{armed}") as process:
            if not armed.exists():
                outputs.wait_for_copy()
                armed.touch()
            source.write(80)
            outputs.wait_for(lambda process=process: bool(process.frozen), "batch under way")
    armed.unlink()
    source.write(40)
    with outputs.process() as process:
        outputs.wait_for_copy()
        process.send(signal.SIGTERM)
        assert process.wait() == 0, process.said


def _added(scene: Any) -> None:
    """It is given the log from its start, a dump in it."""
    source, outputs = scene.source, scene.outputs
    source.write(80)
    outputs.copy = False
    with outputs:
        outputs.wait_for_witness()
    source.dump()
    source.write(80)
    outputs.copy = True
    with outputs:
        source.write(40)
        outputs.wait_for_copy()
    assert outputs.raised is None


NO_SERVER: Final = "files of this machine: no server, no network"
_MYSQL: Final = ("Lost connection to MySQL server", "can't connect")
_KAFKA: Final = ("is under way", "can't be reached", "no broker of")
_LOST: Final = {
    "postgres": ("server closed the connection", "can't connect", "terminating connection"),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "opensearch": ("can't be reached",),
    "kafka": _KAFKA,
    "kafka_transactions": _KAFKA,
    "http": ("127.0.0.1 does not accept requests",),
    "files_s3": ("is under way", "can't be reached"),
    "delta_s3": ("is under way", "Check the endpoint"),
    "iceberg_s3": ("is under way", "Check the endpoint"),
}
_UNDER_WAY: Final = ("is under way",)
_REFUSED: Final = ("TOPIC_AUTHORIZATION_FAILED", "authorization")
_NO_SPACE: Final = ("No space left on device",)
FAULTS: Final[Mapping[str, Fault]] = {
    "killed": Fault(
        "killed",
        "kill -9 amid a batch, started again",
        _befall,
        _LOST,
        dict.fromkeys(DISKS, NO_SERVER),
    ),
    "away": Fault(
        "away",
        "refuses connections at the start, then again amid the work",
        _away,
        _LOST,
        dict.fromkeys(DISKS, NO_SERVER),
    ),
    "read_only": Fault(
        "read-only",
        "takes no writes: a hot standby, `super_read_only`, `index.blocks.read_only`, a denied "
        "WRITE, HTTP 403, a file system mounted so",
        _befall,
        {
            "postgres": ("read-only",),
            "mysql": ("super-read-only option",),
            "mariadb": ("read-only option",),
            "opensearch": ("cluster_block_exception",),
            "kafka": _REFUSED,
            "kafka_transactions": _REFUSED,
            "http": ("forbids it (HTTP 403)",),
            "files": ("Read-only file system",),
            "files_s3": (*_UNDER_WAY, "403"),
            "delta": ("Read-only file system",),
            "delta_s3": (*_UNDER_WAY, "403"),
            "iceberg_s3": (*_UNDER_WAY, "403"),
            "iceberg": ("Read-only file system",),
        },
        {},
    ),
    "full": Fault(
        "full",
        "no space is left: a file system of 12 MB, `index.blocks.read_only_allow_delete`, HTTP 507",
        _befall,
        {
            "postgres": _NO_SPACE,
            "mariadb": ("is full (1114)",),
            "opensearch": _UNDER_WAY,
            "http": ("HTTP 507",),
            "files": _NO_SPACE,
            "files_s3": (*_UNDER_WAY, "507"),
            "delta": _NO_SPACE,
            "delta_s3": (*_UNDER_WAY, "507"),
            "iceberg_s3": (*_UNDER_WAY, "507"),
            "iceberg": _NO_SPACE,
        },
        dict.fromkeys((*KAFKA, "mysql"), "its server ends by itself: see killed"),
    ),
    "busy": Fault(
        "busy",
        "HTTP 503 to all writes",
        _befall,
        {
            "http": ("HTTP 503",),
            "files_s3": (*_UNDER_WAY, "503"),
            "delta_s3": (*_UNDER_WAY, "503"),
            "iceberg_s3": (*_UNDER_WAY, "503"),
        },
        dict.fromkeys(
            ("postgres", "mysql", "mariadb", "opensearch", *KAFKA, *DISKS), "no such answer"
        ),
    ),
    "slow": Fault(
        "slow",
        "each packet waits for 0.1 s",
        _befall,
        {},
        dict.fromkeys(DISKS, NO_SERVER),
    ),
    "ddl": Fault("DDL", "columns added, renamed, dropped at the source", _ddl, {}, {}),
    "widened": Fault("type widened", "int to bigint at the source", _widened, {}, {}),
    "changed": Fault(
        "type changed",
        "int to text at the source",
        _changed,
        dict.fromkeys(("postgres", "mysql", "mariadb"), ("columns v changed their type",))
        | dict.fromkeys(
            ("delta", "delta_s3", "iceberg", "iceberg_s3"),
            ("column v of public.t is string now and was int",),
        ),
        dict.fromkeys(
            ("opensearch", *KAFKA, "http", "files", "files_s3"),
            "it stops, and the message says how to leave the column out: what is there keeps its "
            "types",
        ),
    ),
    "driver": Fault(
        "driver killed", "kill -9 of driver, JVM and workers amid a batch", _driver_killed, {}, {}
    ),
    "added": Fault("added later", "to a pipeline that has delivered", _added, {}, {}),
}
CELLS: Final = [
    Cell(
        output,
        name,
        fault.words.get(output, ()),
    )
    for name, fault in FAULTS.items()
    for output in OUTPUTS
    if output not in fault.impossible
]
CHEAP: Final = (
    "postgres-away",
    "postgres-added",
    "opensearch-full",
    "kafka_transactions-killed",
    "http-read_only",
    "files-full",
    "delta-full",
    "delta_s3-away",
    "iceberg_s3-busy",
    "delta-changed",
)
