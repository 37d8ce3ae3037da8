"""What docs/how-to/restore.md says of outputs that are ahead of a restored log, word by word."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from confluent_kafka import admin
from tests.behaviours.outputs import activity_files, api, kafka_topics, search_index
from tests.behaviours.outputs.database_tables import dialect, live_rows, server
from tests.support.engines import until
from tests.support.iceberg_sql import SPARK_OF_ICEBERG
from tests.support.oracle.log import read_event_log
from typer.testing import CliRunner

import tidelog
from tidelog import app, cli
from tidelog.app.pipeline.run import run_pipeline
from tidelog.config import Config, load_config
from tidelog.errors import OffsetAheadError
from tidelog.eventlog.reader import EventLog
from tidelog.outputs.opensearch.indices import index_name
from tidelog.spark.sessions.versions import SPARK_VERSION

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]
PAGE = (Path(__file__).parents[3] / "docs/how-to/restore.md").read_text(encoding="utf-8")
LAKE = "iceberg" if SPARK_VERSION == SPARK_OF_ICEBERG else "delta"
COMPARED = ("delta", "iceberg", "postgres", "mysql")
EVENTS = ("kafka", "http", "files")
REST = (LAKE, "mysql", "mariadb", "opensearch", "kafka", "http")
CHEAP = ("postgres", "files")
ALL = (*CHEAP, *REST)
TOLD = (*CHEAP, LAKE, "mysql", "mariadb")
"""Destinations that know how far they were written, whatever of ours was put back."""
PIPELINE = (
    "{trigger_ms: 50, checkpoint: checkpoint, master: 'local[2]', "
    "conf: {spark.sql.shuffle.partitions: 2, spark.ui.enabled: false}}"
)
Section = dict[str, Any]
Rows = dict[int, str]


class Shop:
    """A source with one table, whose rows are known, and its capture."""

    def __init__(self, kind: str, root: Path) -> None:
        self.root = root
        self.server = server(kind)
        made = dialect(kind)
        self.database = made.url.rpartition("/")[2].partition("?")[0]
        self.namespace = "public" if kind == "postgres" else self.database
        self.source = {
            "kind": kind, "url": made.url, "tables": [f"{self.namespace}.t"],
            "snapshot": "when_needed",
        }  # fmt: skip
        if kind == "postgres":
            self.source["slot"] = f"slot_{self.database}"
        self.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))")
        self._markers = 0

    def execute(self, statement: str) -> Any:
        return self.server.execute(statement, self.database)

    @property
    def rows(self) -> Rows:
        return {key: str(value) for key, value in self.execute("SELECT id, v FROM t")}

    def configure(self, outputs: list[Section]) -> None:
        (self.root / "tidelog.yaml").write_text(
            f"source: {json.dumps(self.source)}\nlog: {{path: log}}\n"
            "state: {url: 'sqlite:///state.db'}\ncapture: {flush_ms: 10}\n"
            f"pipeline: {PIPELINE}\noutputs: {json.dumps(outputs)}\n"
        )

    @property
    def config(self) -> Config:
        return load_config(self.root / "tidelog.yaml", {})

    @property
    def end(self) -> int:
        return EventLog.open(self.root / "log").latest_offset()

    @contextmanager
    def captured(self, *, settled: bool = True) -> Iterator[None]:
        """Capture runs. At the end it has all that was written, and has dumped what is due."""
        with tidelog.Capture(self.config) as capture:
            yield
            if settled:
                self._markers += 1
                marker = 900 + self._markers
                self.execute(f"INSERT INTO t VALUES ({marker}, 'marker')")
                until(lambda: capture.wait(0) or self._has(marker), "the last change")

    def _has(self, marker: int) -> bool:
        if not EventLog.exists(self.root / "log"):
            return False
        log = EventLog.open(self.root / "log")
        found = read_event_log(log, log.head_offset, log.latest_offset())
        dumps = app.status(self.config).document.get("dumps", ())
        return all(dump["status"] == "completed" for dump in dumps) and any(
            change.new is not None and change.new["id"] == str(marker) for change in found
        )


class Copy:
    """An output of the page at a real place: its section before and after, and what is there."""

    def __init__(self, scene: Scene, key: str, before: Section, after: Section) -> None:
        self.scene, self.key = scene, key
        self.before, self.after = self._here(before), self._here(after)
        self._passed = 0

    def _here(self, section: Section) -> Section:
        """The addresses of the page are those of servers that run."""
        here, kind = dict(section), self.key
        if "path" in here:
            here["path"] = here["path"].lstrip("/")
        if kind in ("postgres", "mysql", "mariadb"):
            here["name"] = here["name"].replace("mirror", kind)
            here["url"] = self.scene.url(kind)
        if kind == "opensearch":
            here |= {"urls": [search_index.node().url], "settings": search_index.SETTINGS}
            here["index"] = f"{self.scene.unique}_{here['index']}"
        if kind == "kafka":
            here |= {"servers": kafka_topics.broker().servers, "partitions": 1}
            here["topic"] = f"{self.scene.unique}.{here['topic']}"
        if kind == "http":
            path = here["url"].partition("example.com")[2]
            here["url"] = f"{api.receiver().url}/events/{self.scene.unique}{path}"
        if kind in ("kafka", "http"):
            here["format"] = "flat"
        return here

    @property
    def kept(self) -> Section:
        """The same place under another name."""
        return {**self.before, "name": f"{self.before['name']}-3"}

    def empty(self) -> None:
        """As the page's table has it."""
        section, root = self.before, self.scene.shop.root
        if "path" in section:
            shutil.rmtree(root / section["path"])
        elif self.key == "postgres":
            self._execute(f"DROP SCHEMA {section['schema']} CASCADE")
        elif section["kind"] == "mysql":
            self._execute(f"DROP DATABASE {section['database']}")
        elif self.key == "opensearch":
            alias = index_name(section["index"].format(name="t"))
            search_index.ask("DELETE", f"/{alias}-000001")
        elif self.key == "kafka":
            client = admin.AdminClient({"bootstrap.servers": section["servers"]})
            topic = section["topic"].format(name="t")
            client.delete_topics([topic])[topic].result(30)
        else:
            self._passed = len(self._posted(section))

    def _execute(self, statement: str) -> None:
        session = self.scene.dialects[self.key].connect("test")
        try:
            session.rows(statement)
        finally:
            session.close()

    @property
    def found(self) -> Rows:
        return self.rows(self.before)

    def rows(self, section: Section) -> Rows:
        """What a reader sees; of events the newest state of each key, each told once."""
        read: Callable[[Section], Any] = getattr(self, f"_{section['kind']}")
        return {row["id"]: str(row["v"]) for row in read(section)}

    def _delta(self, section: Section) -> Any:
        path = self.scene.shop.root / section["path"] / self.scene.shop.namespace / "t"
        return self.scene.spark.read.format("delta").load(str(path)).collect()

    def _iceberg(self, section: Section) -> Any:
        from tests.support.iceberg_sql import spark_catalog_conf

        session = self.scene.spark.newSession()
        place = str(self.scene.shop.root / section["path"])
        name = section["name"].replace("-", "_")
        conf = spark_catalog_conf(name, {"type": "hadoop", "warehouse": place})
        for setting, value in conf.items():
            session.conf.set(setting, value)
        return session.table(f"{name}.{self.scene.shop.namespace}.t").collect()

    def _postgres(self, section: Section) -> Any:
        return live_rows(self.scene.dialects[self.key], section["schema"], "t")

    def _mysql(self, section: Section) -> Any:
        return live_rows(self.scene.dialects[self.key], section["database"], "t")

    def _opensearch(self, section: Section) -> Any:
        return search_index.found(index_name(section["index"].format(name="t"))).values()

    def _kafka(self, section: Section) -> Any:
        messages = kafka_topics.read(section["topic"].format(name="t"))
        kafka_topics.check_order(messages)
        return self._newest(each.value for each in messages if each.value)

    def _http(self, section: Section) -> Any:
        return self._newest(self._posted(section)[self._passed :])

    def _posted(self, section: Section) -> list[Any]:
        path = urlsplit(section["url"]).path.format(table=f"{self.scene.shop.namespace}.t")
        return [each.event for each in api.receiver().events(path)]

    def _newest(self, events: Any) -> Any:
        told = list(events)
        assert told
        newest = {event["id"]: event for event in told}
        return [event for event in newest.values() if not event["__deleted"]]

    def _files(self, section: Section) -> Any:
        records = activity_files.read(self.scene.shop.root / section["path"])
        versions = [(each["version"], each["op"]) for each in records]
        assert len(set(versions)) == len(versions), "a change is there twice"
        newest = {each["key"]["id"]: each["after"] for each in records}
        return [row for row in newest.values() if row is not None]


class Scene:
    """The source, and copies of it."""

    def __init__(self, spark: Any, shop: Shop, kinds: tuple[str, ...]) -> None:
        self.spark, self.shop = spark, shop
        self.unique = shop.database
        self.dialects = {k: dialect(k) for k in kinds if k in ("postgres", "mysql", "mariadb")}
        sections = changes_of_the_page()
        self.copies = [Copy(self, kind, *sections[_SECTIONS.get(kind, kind)]) for kind in kinds]

    def url(self, kind: str) -> str:
        return str(self.dialects[kind].url)

    def use(self, which: str) -> None:
        self.sections = [getattr(copy, which) for copy in self.copies]
        self.shop.configure(self.sections)

    def run(self, *command: str) -> None:
        verifies = command[0] == "verify"
        done = CliRunner().invoke(cli.app, [*command, *(["--json"] if verifies else [])])
        assert done.exit_code == 0, (command, done.output, done.exception)
        if verifies:
            compared = json.loads(done.stdout)["tables"]
            found = {(each["output"], each["equal"], each["rows"]) for each in compared}
            assert found == {
                (section["name"], True, len(self.shop.rows))
                for section in self.sections
                if section["kind"] in COMPARED
            }

    def deliver(self) -> None:
        run_pipeline(self.shop.config, once=True, stop_event=threading.Event())


_SECTIONS = {"mariadb": "mysql"}


def changes_of_the_page() -> dict[str, tuple[Section, Section]]:
    """By kind, the output before and after."""
    [text] = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)

    def sections(sign: str) -> Mapping[str, Section]:
        kept = [line[1:] for line in text.splitlines() if line[0] in (" ", sign)]
        return {each["kind"]: each for each in yaml.safe_load("\n".join(kept))["outputs"]}

    before, after = sections("-"), sections("+")
    assert before.keys() == after.keys()
    return {kind: (before[kind], after[kind]) for kind in before}


def commands_of_the_page() -> list[list[str]]:
    [text] = re.findall(r"```console\n(\$ tidelog pipeline .*?)```", PAGE, re.DOTALL)
    return [line.removeprefix("$ tidelog ").split() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("kinds", "source", "what", "way"),
    [
        pytest.param(CHEAP, "mysql", "all", "after", id="cheap"),
        pytest.param(TOLD, "mysql", "all", "after", id="all", marks=pytest.mark.thorough),
        pytest.param(ALL, "mysql", "both", "after", id="both", marks=pytest.mark.thorough),
        pytest.param(CHEAP, "mysql", "end", "after", id="end", marks=pytest.mark.thorough),
        pytest.param(CHEAP, "mysql", "state", "before", id="state", marks=pytest.mark.thorough),
        pytest.param(ALL, "mysql", "log", "kept", id="kept", marks=pytest.mark.thorough),
        pytest.param(ALL, "postgres", "both", "after", id="gap", marks=pytest.mark.thorough),
        pytest.param(
            (LAKE,), "mysql", "both", "kept", id=f"lake_{LAKE}", marks=pytest.mark.thorough
        ),
    ],
)
def test_outputs_ahead_of_a_restored_log_continue_as_the_page_says(
    kinds: tuple[str, ...],
    source: str,
    what: str,
    way: str,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = Shop(source, tmp_path)
    scene = Scene(spark, shop, kinds)
    scene.use("before")
    with shop.captured():
        for key in range(1, 21):
            shop.execute(f"INSERT INTO t VALUES ({key}, 'first')")
    scene.deliver()
    saved, end = tmp_path / "saved", shop.end
    saved.mkdir()
    copy_of(tmp_path, saved, ("log", "state", "checkpoint"))
    with shop.captured():
        shop.execute("UPDATE t SET v = 'lost' WHERE id <= 5")
        shop.execute("INSERT INTO t VALUES (21, 'lost')")
        shop.execute("DELETE FROM t WHERE id = 6")
    scene.deliver()
    ahead = shop.end
    for copy in scene.copies:
        assert copy.found == shop.rows, copy.key
    if what == "end":  # the storage lost what was written last
        for each in (tmp_path / "log").glob("0*.arrow"):
            if int(each.stem) >= end:
                each.unlink()
    else:
        both = ("log", "state")
        copy_of(saved, tmp_path, {"both": both, "all": (*both, "checkpoint")}.get(what, (what,)))

    with shop.captured():
        shop.execute("UPDATE t SET v = 'new' WHERE id IN (1, 7)")
        shop.execute("DELETE FROM t WHERE id = 21")
    for copy in (
        scene.copies if what != "state" else ()
    ):  # of several outputs a pipeline tells the first
        shop.configure([copy.before])
        name = copy.before["name"]
        said = rf"output {name} stands at offset {ahead}, .* at {end}: .*restore\.md"
        with pytest.raises(OffsetAheadError, match=said):
            scene.deliver()

    if way == "kept":
        for copy in scene.copies:
            copy.empty()
    scene.use(way)
    with shop.captured(settled=False):
        for command in commands_of_the_page():
            scene.run(*command)
    for copy in scene.copies:
        found = copy.rows(getattr(copy, way))
        if source == "postgres" and copy.key in EVENTS:
            found.pop(6)  # deleted in the gap: no dump tells that
            found.pop(21, None)
        assert found == shop.rows, copy.key


def copy_of(source: Path, target: Path, parts: tuple[str, ...]) -> None:
    for part in ("log", "checkpoint"):
        if part in parts:
            shutil.rmtree(target / part, ignore_errors=True)
            shutil.copytree(source / part, target / part)
    if "state" in parts:
        for each in target.glob("state.db*"):
            each.unlink()
        for each in source.glob("state.db*"):
            shutil.copy2(each, target)
