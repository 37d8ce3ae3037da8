"""Version 0.1.0, the oldest whose data is read (docs/adr/0046-format-numbers.md), as a wheel of its
last commit; what it wrote, in `DATA`; and how that was made:

    python -m tests.support.former_version
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.postgres import PostgresServer

from tidelog.eventlog.reader import EventLog
from tidelog.spark.log_lines import lines

ROOT = Path(__file__).parents[2]
COMMIT = "0d55664cb5e10d60f352f2f20319b0d9a079411c"
DATA = Path(__file__).with_name("data_of_0_1_0.tar.gz")
"""``tidelog.yaml``, an event log of PostgreSQL, state, outputs, checkpoints, and ``expected.json``:
the lines of `tidelog log`, rows of the source, and rows of a query of Spark.
"""

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, total numeric(10,2), note text, at timestamp, raw bytea);
CREATE TABLE items (
  item varchar(20) NOT NULL, n int NOT NULL, price double precision, PRIMARY KEY (item, n)
);
"""
CHANGES = """
UPDATE orders SET total = total + 1, note = NULL WHERE id % 3 = 0;
DELETE FROM orders WHERE id % 10 = 1;
UPDATE items SET n = n + 100 WHERE n < 4;
ALTER TABLE orders ADD COLUMN more int;
INSERT INTO orders (id, total, note, more) VALUES (901, 1.50, 'grün', 7), (902, NULL, '', NULL);
"""
QUERY = """
import sys
import tidelog.spark
path, directory = sys.argv[1:]
spark = tidelog.spark.spark_session("local[1]", delta=False)
rows = spark.readStream.format("tidelog")
rows = rows.options(path=path, table="public.orders", shape="typed").load()
rows = rows.selectExpr("op", "coalesce(after.id, before.id) AS id", "version")
query = rows.coalesce(1).writeStream.format("json")
query = query.option("checkpointLocation", directory + "/checkpoint")
query.trigger(availableNow=True).start(directory + "/rows").awaitTermination()
"""


class FormerVersion:
    """The wheel, unpacked: the interpreter finds it before this version. Kept for later runs, with
    its compiled kernels.
    """

    def __init__(self) -> None:
        """Raise CalledProcessError if the repository does not have the commit."""
        self._lib = ROOT / ".make" / f"tidelog-{COMMIT[:8]}"
        if not self._lib.exists():
            with tempfile.TemporaryDirectory(dir=self._lib.parent) as place:
                self._build(Path(place))
        version = [sys.executable, "-c", "import tidelog; print(tidelog.__version__)"]
        found = subprocess.run(version, env=self.environment, check=True, stdout=subprocess.PIPE)
        assert found.stdout.split() == [b"0.1.0"]

    def _build(self, place: Path) -> None:
        tree, lib = place / "commit", place / "lib"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, check=True, stdout=-1).stdout
        subprocess.run(["tar", "-x"], cwd=tree, input=archive, check=True)
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
        subprocess.run([*build, "--directory", str(place)], cwd=tree, check=True, stdout=2)
        with zipfile.ZipFile(place / "tidelog-0.1.0-py3-none-any.whl") as wheel:
            wheel.extractall(lib)
        lib.rename(self._lib)

    @property
    def environment(self) -> dict[str, str]:
        """Of processes that are to run it, also of Spark's workers."""
        python = {"PYTHONPATH": str(self._lib), "PYSPARK_PYTHON": sys.executable}
        return {**os.environ, **python}

    def start(self, *arguments: object, out: Path) -> subprocess.Popen[bytes]:
        """Start ``tidelog`` with these arguments."""
        with out.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "tidelog", *map(str, arguments)],
                env=self.environment,
                stdout=file,
                stderr=file,
            )

    def run(self, *arguments: object) -> str:
        """Run ``tidelog`` to its end; what it wrote. Raises CalledProcessError."""
        command = [sys.executable, "-m", "tidelog", *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, check=True, stdout=subprocess.PIPE)
        return done.stdout.decode()


def make(version: FormerVersion, server: PostgresServer, home: Path) -> None:
    """Have ``version`` capture a new database: a dump, changes, DDL, and a dump that it is stopped
    amid; then deliver.
    """
    home.mkdir()
    file, url = home / "tidelog.yaml", server.create_database("shop")
    sql = partial(server.execute, dbname="shop")
    for statement in statements(TABLES):
        sql(statement)
    for number in range(1, 301):
        note = f"'note {number}'" if number % 7 else "NULL"
        at = f"'2026-01-02 03:04:{number % 60:02d}'"
        sql(f"INSERT INTO orders VALUES ({number}, {number}.25, {note}, {at}, '\\x00ff')")
        if number % 12 == 0:
            sql(f"INSERT INTO items VALUES ('item {number % 5}', {number // 12}, {number}.5)")
    file.write_text(
        f"source: {{kind: postgres, url: '{url}', tables: ['public.*']}}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
        "capture: {flush_ms: 10, lease_ms: 60000}\n"
        "dump: {chunk_rows: 50, delay_ms: 100, parallelism: 1}\n"
        "pipeline: {name: shop, checkpoint: checkpoint, master: 'local[1]'}\n"
        "outputs: [{kind: delta, path: lake}, {kind: files, path: files, format: json}]\n"
    )
    capture = version.start("capture", file, out=home / "capture.log")
    try:
        wait(lambda: said(home).count('"op":"r"') >= 325)
        for statement in statements(CHANGES):
            sql(statement)
        wait(lambda: '"id":902' in said(home))
    finally:
        stop(capture)
    settings = file.read_text()
    file.write_text(settings.replace("delay_ms: 100,", "delay_ms: 3600000,"))
    capture = version.start("capture", file, out=home / "capture.log")
    try:
        version.run("dump", file, "--table", "public.orders")
        wait(lambda: said(home).count('"op":"r"') >= 375)
    finally:
        stop(capture)
    (home / "capture.log").unlink()
    file.write_text(settings)
    version.run("pipeline", file, "--once")
    query = [sys.executable, "-c", QUERY, str(home / "log"), str(home / "query")]
    subprocess.run(query, env=version.environment, check=True)
    files = (home / "query/rows").glob("*.json")
    written = [json.loads(line) for each in files for line in each.open()]
    shutil.rmtree(home / "query/rows")  # its metadata has paths of this machine
    expected = {
        "log": version.run("log", file).splitlines(),
        "orders": [
            [str(value) for value in row]
            for row in sql("SELECT id, total, note, more FROM orders ORDER BY id")
        ],
        "query": written,
    }
    (home / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=0))


def stop(capture: subprocess.Popen[bytes]) -> None:
    """End it in order."""
    capture.terminate()
    assert capture.wait(600) == 0


def statements(text: str) -> list[str]:
    """The statements of the script."""
    return [each.strip() for each in text.split(";") if each.strip()]


def said(home: Path) -> str:
    """The event log's lines, as `tidelog log` has them."""
    path = home / "log"
    if not EventLog.exists(path):
        return ""
    log = EventLog.open(path)
    return "\n".join(lines(log, str(path), log.head_offset, log.latest_offset(), None))


def wait(what: Callable[[], bool]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + 900
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def main() -> None:
    """Make `DATA`."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        with PostgresServer() as server:
            make(FormerVersion(), server, directory / "data")
        with tarfile.open(DATA, "w:gz") as archive:
            archive.add(directory / "data", "data", filter=_anonymous)


def _anonymous(file: tarfile.TarInfo) -> tarfile.TarInfo:
    file.uid = file.gid = 0
    file.uname = file.gname = ""
    return file


if __name__ == "__main__":
    main()
