"""The lakes of a run's pipeline: tables of a Delta and of an Iceberg output, as other readers see
them, and what their users do to them during the run.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import deltalake
import duckdb
import pyarrow as pa
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from tests.support import delta_readers, iceberg_readers
from tests.support.iceberg_sql import SPARK_OF_ICEBERG, iceberg_sql_jars, spark_catalog_conf
from tests.support.oracle.history import HistoryError
from tests.support.oracle.workload import Table
from tests.support.postgres_jdbc import jdbc_uri, postgres_jdbc_jar

from tidelog.spark import spark_session
from tidelog.spark.sessions.versions import SPARK_VERSION

Found = dict[str, Any]
"""A row as a reader found it."""
FORMS: Final = ("copy", "changes", "history")
REST_S: Final = 0.7
"""Users wait twice as long at most between two commits."""
LAST_VERSIONS: Final = 6
_TRIES: Final = 20
_CATALOG: Final = "lake"
_AWAY: Final = (duckdb.Error, FileNotFoundError)
"""What readers raise whose files were removed since they began."""


class Lake(ABC):
    """Tables of one output, each in one of `FORMS`.

    Args:
        directory: where they are.
        tables: of the source.
        rng: chooses forms and layout.
        forms: those to choose from.
    """

    name: str

    def __init__(
        self,
        directory: Path,
        tables: Iterable[Table],
        rng: random.Random,
        forms: Sequence[str] = FORMS,
    ) -> None:
        self.directory = directory / self.name
        first = rng.randrange(len(forms))
        self.holds = {
            table.name: forms[(first + number) % len(forms)] for number, table in enumerate(tables)
        }
        self.layout = self._choose_layout(rng)

    def section(self) -> dict[str, Any]:
        """The output in a pipeline's configuration."""
        return {
            "kind": self.name,
            "name": self.name,
            "path": str(self.directory),
            "holds": self.holds,
            **self.layout,
        }

    @abstractmethod
    def _choose_layout(self, rng: random.Random) -> dict[str, Any]: ...

    @abstractmethod
    def query(self, table: Table, what: str = "*", where: str = "true") -> list[Found]:
        """What is asked of a table's rows, as DuckDB reads them; nothing: it is not there yet."""

    @abstractmethod
    def commits(self, table: Table) -> int:
        """So many at least, with that which made the table."""

    @abstractmethod
    def _readers(self, spark: Any) -> Mapping[str, Callable[[Table], pa.Table]]:
        """Other readers of whole tables. ``spark``: see `users_session`."""

    @abstractmethod
    def _actions(self, spark: Any) -> Mapping[str, Callable[[Table], None]]:
        """What users do, by their names."""

    def check_readers(self, tables: Iterable[Table], spark: Any) -> list[str]:
        """Do all readers find the same rows? Returns their names. Raises HistoryError."""
        readers = self._readers(spark)
        for table in tables:
            wanted = sorted(_text(row) for row in self.query(table))
            for title, read in readers.items():
                found = sorted(_text(row) for row in read(table).to_pylist())
                if found != wanted:
                    raise HistoryError(
                        f"{title} finds {len(found)} rows of {self.name}'s {table.name}, DuckDB "
                        f"{len(wanted)}; the first that differs is "
                        f"{min(set(found) ^ set(wanted), default='there twice')[:300]}"
                    )
        return [*readers]

    @abstractmethod
    def restore(self, table: Table, spark: Any, rng: random.Random) -> str:
        """A user puts the table back to one of its last versions. Returns which."""

    @abstractmethod
    def check_kept(self) -> None:
        """Is there what users made, and as it was? Raises HistoryError."""


class DeltaLake(Lake):
    """Tables in directories."""

    name = "delta"

    def _choose_layout(self, rng: random.Random) -> dict[str, Any]:
        return {"deletion_vectors": rng.random() < 0.7}

    def place(self, table: Table) -> str:
        return str(self.directory / table.name.replace(".", "/"))

    def query(self, table: Table, what: str = "*", where: str = "true") -> list[Found]:
        log = Path(self.place(table)) / "_delta_log"
        if not any(log.glob("*.json")):
            return []
        return _patiently(
            lambda: delta_readers.by_duckdb(self.place(table), "ALL", what, where).to_pylist()
        )

    def commits(self, table: Table) -> int:
        return len([*(Path(self.place(table)) / "_delta_log").glob("*.json")])

    def check_kept(self) -> None:
        """Nothing: Delta has no tags."""

    def restore(self, table: Table, spark: Any, rng: random.Random) -> str:
        now = deltalake.DeltaTable(self.place(table)).version()
        version = rng.randint(max(1, now - LAST_VERSIONS), now - 1)
        spark.sql(f"RESTORE TABLE delta.`{self.place(table)}` TO VERSION AS OF {version}")
        return f"version {version}"

    def _readers(self, spark: Any) -> Mapping[str, Callable[[Table], pa.Table]]:
        found: dict[str, Callable[[Table], pa.Table]] = {"delta-rs": self._by_delta_rs}
        if spark is not None:
            found["Spark"] = lambda table: spark.sql(
                f"SELECT * FROM delta.`{self.place(table)}`"
            ).toArrow()
        return found

    def _by_delta_rs(self, table: Table) -> pa.Table:
        """It does not know type widening."""
        opened = deltalake.DeltaTable(self.place(table))
        if "typeWidening" in (opened.protocol().reader_features or ()):
            return delta_readers.by_duckdb(self.place(table), "ALL")
        return delta_readers.by_delta_rs(self.place(table), "1")

    def _actions(self, spark: Any) -> Mapping[str, Callable[[Table], None]]:
        def opened(table: Table) -> deltalake.DeltaTable:
            return deltalake.DeltaTable(self.place(table))

        found: dict[str, Callable[[Table], None]] = {
            # Not its compact(): it does not notice another compaction (docs/outputs/delta.md).
            "checkpoint by delta-rs": lambda table: opened(table).create_checkpoint(),
            "vacuum by delta-rs": lambda table: opened(table).vacuum(1, False, False),
        }
        if spark is not None:
            found |= {
                "OPTIMIZE": lambda table: spark.sql(f"OPTIMIZE delta.`{self.place(table)}`"),
                "UPDATE of Delta": lambda table: spark.sql(
                    f"UPDATE delta.`{self.place(table)}` SET {_same_value(self.holds, table)}"
                ),
            }
        return found


class IcebergLake(Lake):
    """Tables of a catalog in PostgreSQL, at ``dsn``."""

    name = "iceberg"

    def __init__(
        self, directory: Path, tables: Iterable[Table], rng: random.Random, dsn: str
    ) -> None:
        super().__init__(directory, tables, rng)
        uri, login = jdbc_uri(dsn)
        self._properties = {"type": "jdbc", "uri": uri, **login}
        self._catalog = SqlCatalog(
            _CATALOG,
            uri=dsn.replace("postgresql:", "postgresql+psycopg:"),
            warehouse=f"file://{self.directory}",
        )
        self._kept: dict[tuple[str, str], tuple[int, int]] = {}

    def section(self) -> dict[str, Any]:
        return super().section() | {"catalog": self._properties, "catalog_name": _CATALOG}

    def _choose_layout(self, rng: random.Random) -> dict[str, Any]:
        return {
            "format_version": rng.choice((2, 2, 3)),
            "mode": rng.choice(("merge-on-read", "merge-on-read", "copy-on-write")),
        }

    def close(self) -> None:
        self._catalog.engine.dispose()

    def sql_conf(self) -> dict[str, str]:
        """Settings by which Spark's SQL knows the catalog."""
        properties = {**self._properties, "warehouse": f"file://{self.directory}"}
        return spark_catalog_conf(_CATALOG, properties)

    def load(self, table: Table) -> Any:
        """As PyIceberg has it."""
        return self._catalog.load_table(table.name)

    def query(self, table: Table, what: str = "*", where: str = "true") -> list[Found]:
        try:
            found = self.load(table)
        except NoSuchTableError:
            return []
        if found.current_snapshot() is None:
            return []

        def read() -> list[Found]:
            place = self.load(table).metadata_location
            return iceberg_readers.query(place, what, where).to_pylist()

        return _patiently(read)

    def commits(self, table: Table) -> int:
        return 1 + int(self.load(table).metadata.last_sequence_number)

    def restore(self, table: Table, spark: Any, rng: random.Random) -> str:
        """To one of those that readers saw: a branch has others."""
        opened = self.load(table)
        there = {each.snapshot_id for each in opened.snapshots()}
        seen = [each.snapshot_id for each in opened.history() if each.snapshot_id in there]
        snapshot = rng.choice(seen[-LAST_VERSIONS:])
        spark.sql(f"CALL {_CATALOG}.system.set_current_snapshot('{table.name}', {snapshot})")
        return f"snapshot {snapshot}"

    def _readers(self, spark: Any) -> Mapping[str, Callable[[Table], pa.Table]]:
        found: dict[str, Callable[[Table], pa.Table]] = {
            "PyIceberg": lambda table: self.load(table).scan().to_arrow()
        }
        if spark is not None:
            found["Spark"] = lambda table: spark.table(self._sql(table)).toArrow()
        return found

    @staticmethod
    def _sql(table: Table) -> str:
        namespace, _, name = table.name.partition(".")
        return f"{_CATALOG}.`{namespace}`.`{name}`"

    def _actions(self, spark: Any) -> Mapping[str, Callable[[Table], None]]:
        found: dict[str, Callable[[Table], None]] = {}
        if self.layout["format_version"] < 3:  # PyIceberg commits to no other
            found |= {
                "tag by PyIceberg": self._tag,
                "rewrite by PyIceberg": self._rewrite,
                "expire by PyIceberg": self._expire,
            }
        if spark is not None:
            found |= {
                f"{name} of Iceberg": lambda table, name=name, more=more: spark.sql(  # type: ignore[misc]
                    f"CALL {_CATALOG}.system.{name}(table => '{table.name}'{more})"
                )
                for name, more in {
                    "rewrite_data_files": ", options => map('rewrite-all', 'true')",
                    "rewrite_position_delete_files": ", options => map('rewrite-all', 'true')",
                    "rewrite_manifests": "",
                    "expire_snapshots": ", older_than => TIMESTAMP '2100-01-01 00:00:00', "
                    "retain_last => 1",
                }.items()
            }
            found["UPDATE of Iceberg"] = lambda table: spark.sql(
                f"UPDATE {self._sql(table)} SET {_same_value(self.holds, table)}"
            )
        return found

    def _tag(self, table: Table) -> None:
        """A tag or a branch, which nobody may move or lose the rows of."""
        opened = self.load(table)
        snapshot = opened.current_snapshot()
        if snapshot is None:
            return
        name = f"users-{len(self._kept)}"
        rows = len(opened.scan(snapshot_id=snapshot.snapshot_id).to_arrow())
        manage = opened.manage_snapshots()
        made = manage.create_branch if len(self._kept) % 2 else manage.create_tag
        made(snapshot.snapshot_id, name).commit()
        self._kept[table.name, name] = snapshot.snapshot_id, rows

    def _rewrite(self, table: Table) -> None:
        """All rows as they are, in other files."""
        opened = self.load(table)
        rows = opened.scan().to_arrow()
        if len(rows):
            opened.overwrite(rows)

    def _expire(self, table: Table) -> None:
        later = datetime.now(UTC) + timedelta(days=1)
        opened = self.load(table)
        opened.maintenance.expire_snapshots().older_than(later.replace(tzinfo=None)).commit()

    def check_kept(self) -> None:
        for (table, name), (snapshot, rows) in self._kept.items():
            opened = self._catalog.load_table(table)
            ref = opened.refs().get(name)
            if ref is None or ref.snapshot_id != snapshot:
                raise HistoryError(f"{name} of Iceberg's {table} is not what a user made it")
            found = len(opened.scan(snapshot_id=snapshot).to_arrow())
            if found != rows:
                raise HistoryError(f"{name} of Iceberg's {table} has {found} rows of {rows}")


def users_session(lake: IcebergLake) -> Any:
    """A session that knows the tables of both lakes; None: Iceberg has no SQL for this Spark."""
    if SPARK_VERSION != SPARK_OF_ICEBERG:
        return None
    jars = [*iceberg_sql_jars(), postgres_jdbc_jar()]
    conf = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }
    return spark_session("local[1]", conf={**conf, **lake.sql_conf()})


class Users(threading.Thread):
    """Users of the lakes, who commit to a table now and then. Use it as a context manager."""

    def __init__(
        self, lakes: Sequence[Lake], tables: Sequence[Table], seed: int, spark: Any
    ) -> None:
        super().__init__(daemon=True)
        self._rng = random.Random(f"users {seed}")
        self._lakes, self._tables, self._spark = lakes, tables, spark
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self.done = Counter[str]()
        self.lost = Counter[str]()

    def __enter__(self) -> Users:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(120)

    def check(self) -> None:
        """Raise what a user found."""
        if self._failure is not None:
            raise self._failure

    def run(self) -> None:
        rng = self._rng
        try:
            while not self._stopping.wait(rng.random() * 2 * REST_S):
                lake, table = rng.choice(self._lakes), rng.choice(self._tables)
                if lake.query(table, "count(*)"):
                    actions = lake._actions(self._spark)
                    if actions:
                        self._act(rng.choice([*actions]), actions, table)
        except BaseException as failure:  # noqa: BLE001 - raised by check
            self._failure = failure

    def _act(self, name: str, actions: Mapping[str, Callable[[Table], None]], table: Table) -> None:
        try:
            actions[name](table)
        except Exception as error:
            if not is_conflict(error):
                raise HistoryError(f"{name} of {table.name} fails: {error!r}"[:2000]) from error
            self.lost[name] += 1
        else:
            self.done[name] += 1


def is_conflict(error: BaseException) -> bool:
    """Did somebody else commit first, or remove a file that was to be read?"""
    if isinstance(error, CommitFailedException | CommitFailedError | FileNotFoundError):
        return True
    words = ("Concurrent", "CommitFailed", "ValidationException", "conflict", "changed metadata",
             "Cannot commit", "NotFoundException", "No such file", "not found")  # fmt: skip
    return any(word in str(error) for word in words)


def _same_value(holds: Mapping[str, str], table: Table) -> str:
    """An assignment that changes nothing."""
    column = "version" if holds[table.name] == "changes" else "seq"
    return f"{column} = {column}"


def _patiently(read: Callable[[], list[Found]]) -> list[Found]:
    """Read again where files were removed since."""
    for _ in range(_TRIES):
        with suppress(*_AWAY):
            return read()
        time.sleep(0.1)
    return read()


def _text(value: Any) -> str:
    """Equal texts for equal values: readers differ in the types of Arrow that they choose."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_text(value[name])}' for name in sorted(value))}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    if isinstance(value, bytearray | memoryview):
        return repr(bytes(value))
    return repr(value)
