"""That no two outputs write one table to one place, by the configuration alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build_log import BuiltLog

from tidelog.app.base.outputs import (
    colliding_outputs,
    destinations,
    misplaced_outputs,
    moved_outputs,
    outputs_of_others,
    raise_first,
)
from tidelog.cli import main
from tidelog.config import Config, load_config
from tidelog.errors import ConfigError
from tidelog.eventlog.consumers import Consumers
from tidelog.model.patterns import overlap
from tidelog.model.schema import TableName

HEAD = (
    "source: {kind: postgres, url: 'postgresql://localhost/shop'}\n"
    "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\noutputs:\n"
)


def config(path: Path, *outputs: str, name: str = "pipeline") -> Config:
    file = path / "tidelog.yaml"
    listed = "".join(f"  - {output}\n" for output in outputs)
    file.write_text(f"{HEAD}{listed}pipeline: {{name: {name}}}\n")
    return load_config(file)


ONE_PLACE = [
    ("{kind: delta, path: lake}", "{kind: delta, name: b, path: ./x/../lake/}"),
    ("{kind: files, path: f}", "{kind: files, name: b, path: f, format: json}"),
    (
        "{kind: kafka, servers: 'a:1,b:1', tables: [s.*]}",
        "{kind: kafka, name: b, servers: 'b:1, A:1', tables: ['*.orders']}",
    ),
    ("{kind: http, url: 'http://h/x'}", "{kind: http, name: b, url: 'http://h/x'}"),
    ("{kind: opensearch, urls: ['http://h:1']}", "{kind: opensearch, name: b, urls: ['http://h:1']}"),
    (
        "{kind: postgres, url: 'postgresql://u@h/d'}",
        "{kind: postgres, name: b, url: 'postgresql://v:w@H/d'}",
    ),
    ("{kind: mysql, url: 'mysql://u@h/'}", "{kind: mysql, name: b, url: 'mysql://u@h'}"),
    (
        "{kind: python, class: 'm:C', options: {a: 1}}",
        "{kind: python, name: b, class: 'm:C', options: {a: 1}}",
    ),
    ("{kind: iceberg, path: lake}", "{kind: iceberg, name: b, path: lake}"),
    (
        "{kind: kafka, servers: 'a:1,b'}",
        "{kind: kafka, name: b, servers: 'c:1,b:9092'}",
    ),
    (
        "{kind: delta, path: l, tables: [s.t], steps: [{route: 'x.{name}'}]}",
        "{kind: delta, name: b, path: l, steps: [{route: x.t, tables: [s.t]}]}",
    ),
    (
        "{kind: delta, path: l, tables: [s.t]}",
        "{kind: delta, name: b, path: l, steps: [{route: '{namespace}.{name}'}]}",
    ),
    (
        "{kind: kafka, servers: 'a:1', format: debezium, messages_topic: m, tables: [s.*]}",
        "{kind: kafka, name: b, servers: 'a:1,b:1', format: debezium, messages_topic: m, "
        "topic: 'b.{name}', tables: [r.*]}",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), ONE_PLACE)
def test_two_outputs_of_one_place_are_refused(tmp_path: Path, one: str, other: str) -> None:
    found = config(tmp_path, one, other)
    with pytest.raises(ConfigError, match=r"outputs: \w+ and b \(\w+\) write to one place"):
        raise_first(colliding_outputs(found))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{kind: delta, path: lake}", "{kind: delta, name: b, path: other}"),
        (
            "{kind: delta, path: lake, tables: [a.*]}",
            "{kind: delta, name: b, path: lake, tables: [b.*, aa.c]}",
        ),
        (
            "{kind: delta, path: lake}",
            "{kind: delta, name: b, path: lake, steps: [{route: 'b.{name}'}]}",
        ),
        (
            "{kind: files, path: f, layout: 'a/{table}'}",
            "{kind: files, name: b, path: f, layout: 'b/{table}'}",
        ),
        (
            "{kind: kafka, servers: 'a:1'}",
            "{kind: kafka, name: b, servers: 'a:1', topic: 'b.{name}'}",
        ),
        (
            "{kind: kafka, servers: 'a:1', format: debezium, messages_topic: m, tables: [s.*]}",
            "{kind: kafka, name: b, servers: 'b:1', format: debezium, messages_topic: m}",
        ),
        (
            "{kind: kafka, servers: 'a:1', format: debezium, messages_topic: m, tables: [s.*]}",
            "{kind: kafka, name: b, servers: 'a:1', format: debezium, messages_topic: n, "
            "tables: [r.*]}",
        ),
        (
            "{kind: postgres, url: 'postgresql://h/d'}",
            "{kind: postgres, name: b, url: 'postgresql://h/e'}",
        ),
        (
            "{kind: python, class: 'm:C', options: {a: 1}}",
            "{kind: python, name: b, class: 'm:C', options: {a: 2}}",
        ),
    ],
)  # fmt: skip
def test_outputs_that_do_not_meet_are_taken(tmp_path: Path, one: str, other: str) -> None:
    assert colliding_outputs(config(tmp_path, one, other)) == {}


def test_routes_that_lead_known_tables_to_one_place_are_seen(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        "{kind: delta, path: l, steps: [{route: 'x.{name}', tables: ['s.*']}]}",
        "{kind: delta, name: b, path: l, steps: [{route: 'x.{name}', tables: ['*.t']}]}",
    )
    raise_first(colliding_outputs(found, [TableName("s", "u"), TableName("r", "t")]))
    with pytest.raises(ConfigError, match="write to one place"):
        raise_first(colliding_outputs(found, [TableName("s", "t")]))


def test_of_two_outputs_of_one_place_the_newcomer_is_refused(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    old, new = "{kind: delta, name: old, path: lake}", "{kind: delta, name: new, path: lake}"
    elsewhere = "{kind: delta, name: new, path: elsewhere}"
    consumers = Consumers(built.log.storage)

    def refused(*outputs: str) -> set[str]:
        return set(misplaced_outputs(config(tmp_path, *outputs)))

    assert refused(new, old) == {"old"}  # none ran before
    consumers.register("pipeline", 7, {"old": 7}, destinations(config(tmp_path, old)))
    assert refused(new, old) == refused(old, new) == {"new"}
    both = destinations(config(tmp_path, old, elsewhere))
    consumers.register("pipeline", 7, {"old": 7, "new": 7}, both)
    assert refused(new, old) == refused(old, new) == {"new"}  # it has moved there


def test_an_output_that_goes_elsewhere_than_before_is_refused(tmp_path: Path) -> None:
    """Else it would go on where the old place is, and the new one would lack all before."""
    built = BuiltLog(tmp_path / "log")
    consumers = Consumers(built.log.storage)

    def ran(output: str) -> None:
        consumers.register("pipeline", 7, {"o": 7}, destinations(config(tmp_path, output)))

    def check(output: str) -> None:
        raise_first(moved_outputs(config(tmp_path, output), built.log))

    check("{kind: delta, name: o, path: lake}")  # it never ran
    ran("{kind: delta, name: o, path: lake}")
    check("{kind: delta, name: o, path: ./lake/, tables: [s.t]}")
    check("{kind: delta, name: other, path: elsewhere}")
    told = "output o wrote to another place before.*Give the output a name that it never had"
    for moved in ("{kind: delta, name: o, path: elsewhere}", "{kind: files, name: o, path: lake}"):
        with pytest.raises(ConfigError, match=told):
            check(moved)
    former = destinations(config(tmp_path, "{kind: delta, name: o, path: lake}"))
    consumers.register("pipeline", 7, {"p": 7}, former=former)  # o was taken out meanwhile
    with pytest.raises(ConfigError, match=told):
        check("{kind: delta, name: o, path: elsewhere}")
    consumers.forget("pipeline")
    check("{kind: delta, name: o, path: elsewhere}")

    ran("{kind: kafka, name: o, servers: 'a:1,b:1'}")
    check("{kind: kafka, name: o, servers: 'b:1,c:1'}")
    with pytest.raises(ConfigError, match=told):
        check("{kind: kafka, name: o, servers: 'b:1', topic: 'x.{name}'}")
    ran("{kind: http, name: o, url: 'http://h/x?key=old'}")
    check("{kind: http, name: o, url: 'http://h/x?key=new'}")
    with pytest.raises(ConfigError, match=told):
        check("{kind: http, name: o, url: 'http://h/y?key=old'}")
    catalog = "kind: iceberg, name: o, path: lake, catalog: {type: jdbc, uri: 'jdbc:x://h/d'}"
    ran(f"{{{catalog}}}")
    check(f"{{{catalog}, catalog_name: lake}}")  # the output sees whether its tables are there
    ran("{kind: python, name: o, class: 'm:C', options: {a: 1}}")
    check("{kind: python, name: o, class: 'm:C', options: {a: 2}}")


def test_an_output_of_another_pipeline_is_seen(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    theirs = config(tmp_path, "{kind: files, name: a, path: f}", name="theirs")
    consumers = Consumers(built.log.storage)
    consumers.register("theirs", 0, {"a": 0}, destinations(theirs))
    raise_first(outputs_of_others(theirs, built.log))
    ours = config(tmp_path, "{kind: files, name: b, path: f}", name="ours")
    told = "output b writes to the place of output a of the pipeline theirs"
    with pytest.raises(ConfigError, match=told):
        raise_first(outputs_of_others(ours, built.log))
    consumers.forget("theirs")
    raise_first(outputs_of_others(ours, built.log))


@pytest.mark.parametrize(("one", "other"), ONE_PLACE)
def test_two_pipelines_of_one_place_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one: str, other: str
) -> None:
    """Whatever the kind; before the second one starts Spark, by the process's exit code."""
    built = BuiltLog(tmp_path / "log")
    built.table("s.t", {"id": "int64"})
    theirs = config(tmp_path, one, name="theirs")
    Consumers(built.log.storage).register("theirs", 0, {"any": 0}, destinations(theirs))
    ours = config(tmp_path, other, name="ours")
    with pytest.raises(
        ConfigError, match=r"writes to the place of output .* of the pipeline theirs"
    ):
        raise_first(outputs_of_others(ours, built.log))
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", str(tmp_path / "tidelog.yaml"), "--once"])
    assert ended.value.code == 2
    assert "of the pipeline theirs" in capsys.readouterr().err


def test_patterns_overlap_where_one_table_may_be_of_both() -> None:
    assert overlap(["a.*"], ["*.b"])
    assert overlap(["x.y", "a.b*"], ["a.*c"])
    assert overlap(["*.*"], ["s.t"])
    assert not overlap(["a.*"], ["b.*"])
    assert not overlap(["a.x*"], ["a.y*", "aa.x"])
