"""`tidelog check` tries each destination: what answers, and what does not."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from tests.support.kafka import KafkaServer
from tests.support.mysql import MariaDbServer, MySqlServer
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Server

from tidelog.app.sources.preflight import (
    _check_outputs,
    _check_patterns,
    check,
    check_names,
    check_script,
)
from tidelog.config import parse_config
from tidelog.eventlog.storage import OPTIONS_VARIABLE
from tidelog.model.schema import Column, TableName, TableSchema

pytestmark = pytest.mark.integration

ID = Column("id", 23, -1, "integer", "int32", False)


def found(tmp_path: Path, outputs: str) -> list[dict[str, Any]]:
    text = f"""
source: {{kind: postgres, url: 'postgresql://u@127.0.0.1:1/x', tables: ['public.*']}}
log: {{path: log}}
outputs: [{outputs}]
"""
    return [each.to_dict() for each in _check_outputs(parse_config(text, "test", tmp_path, {}))]


def check_result(tmp_path: Path, output: str) -> tuple[str, str]:
    [finding] = found(tmp_path, output)
    assert finding["check"] == "output o"
    return finding["level"], finding["message"]


@pytest.fixture
def nobody() -> str:
    """A port where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_directories(tmp_path: Path) -> None:
    assert check_result(tmp_path, "{kind: delta, name: o, path: lake}") == (
        "ok",
        f"{tmp_path}/lake will be created",
    )
    (tmp_path / "files").mkdir()
    assert check_result(tmp_path, "{kind: files, name: o, path: files}") == (
        "ok",
        f"{tmp_path}/files can be written",
    )
    (tmp_path / "taken").write_text("")
    level, message = check_result(tmp_path, "{kind: delta, name: o, path: taken}")
    assert level == "warning"
    assert message.endswith("taken is not a directory: choose another path")


@pytest.mark.parametrize(
    "output", ["kind: delta, path: 'hdfs://host/lake'", "kind: files, path: 'file:///srv/files'"]
)
def test_what_only_spark_can_reach_is_not_judged(tmp_path: Path, output: str) -> None:
    assert found(tmp_path, f"{{{output}, name: o}}") == []


@pytest.mark.parametrize(
    ("bucket", "level", "says"),
    [("", "ok", "can be listed"), ("not-there", "warning", "Check the bucket's name")],
)
@pytest.mark.parametrize("kind", ["delta", "files"])
def test_an_object_store_is_listed(
    tmp_path: Path,
    s3: S3Server,
    kind: str,
    bucket: str,
    level: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(OPTIONS_VARIABLE)  # the section alone says how
    options = json.dumps(s3.options)
    place = f"s3a://{bucket or s3.bucket}/files"
    output = f"{{kind: {kind}, name: o, path: '{place}', storage_options: {options}}}"
    found_level, message = check_result(tmp_path, output)
    assert (found_level, says in message) == (level, True)
    assert s3.secret_access_key not in message


def test_a_directory_that_cannot_be_looked_at_hides_no_other_finding(tmp_path: Path) -> None:
    long = "d" * 300  # no file system has such a name; as one that may not be searched
    level, message = check_result(tmp_path, f"{{kind: delta, name: o, path: '{long}'}}")
    assert level == "warning"
    assert "can't be checked" in message


def test_servers_that_answer(
    tmp_path: Path, kafka: KafkaServer, database: str, mariadb_server: MariaDbServer
) -> None:
    assert check_result(tmp_path, f"{{kind: kafka, name: o, servers: '{kafka.servers}'}}") == (
        "ok",
        f"{kafka.servers} answers: 1 broker",
    )
    level, message = check_result(tmp_path, f"{{kind: postgres, name: o, url: '{database}'}}")
    assert level == "ok"
    assert message.startswith("the server accepts the connection: PostgreSQL ")
    level, message = check_result(
        tmp_path, f"{{kind: mysql, name: o, url: '{mariadb_server.url}'}}"
    )
    assert level == "ok"
    assert "MariaDB" in message
    where = kafka.servers  # whatever listens
    assert check_result(tmp_path, f"{{kind: http, name: o, url: 'http://{where}/{{table}}'}}") == (
        "ok",
        f"{where} accepts connections",
    )


def test_a_role_that_may_not_create_tables_is_shown_the_grant(
    tmp_path: Path, database: str, postgres: PostgresServer
) -> None:
    name = urlsplit(database).path.strip("/")
    role = f"Copier {name}"
    output = f"{{kind: postgres, name: o, schema: shop, url: '{role_url(database, role)}'}}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "{role}" LOGIN')
        grant = f'GRANT CREATE ON DATABASE {name} TO "{role}";'
        assert check_result(tmp_path, output) == (
            "warning",
            f"it may not create its tables. As the owner of database {name}, connected to it: "
            f"{grant}",
        )
        connection.execute(grant)
        assert check_result(tmp_path, output)[0] == "ok"
        connection.execute("CREATE SCHEMA shop")
        grant = f'GRANT USAGE, CREATE ON SCHEMA shop TO "{role}";'
        level, message = check_result(tmp_path, output)
        assert (level, message.partition(": ")[2]) == ("warning", grant)
        connection.execute(grant)
        assert check_result(tmp_path, output)[0] == "ok"
        connection.execute(f'DROP OWNED BY "{role}"')
        connection.execute(f'DROP ROLE "{role}"')


def test_a_role_that_may_not_create_tables_in_a_schema_of_the_source_is_shown_the_grant(
    tmp_path: Path, database: str
) -> None:
    """Of `public` a role has USAGE since PostgreSQL 15, and may not create tables in it."""
    name = urlsplit(database).path.strip("/")
    role = f"copier_{name}"
    schemas = [TableSchema(TableName("public", "t"), 1, (ID,), ("id",), ("id",), "d", "pgoutput")]
    output = f"{{kind: postgres, name: o, tables: ['public.*'], url: '{role_url(database, role)}'}}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute("CREATE SCHEMA tidelog")
        connection.execute(f"GRANT USAGE, CREATE ON SCHEMA tidelog TO {role}")
        source = f"{{kind: postgres, url: '{database}', tables: ['shop.*']}}"
        text = f"source: {source}\nlog: {{path: log}}\noutputs: [{output}]"
        config = parse_config(text, "test", tmp_path, {})
        [found] = check_names(config, schemas)
        assert (found.level, found.fix) == (
            "warning",
            f"GRANT USAGE, CREATE ON SCHEMA public TO {role};",
        )
        named = parse_config(
            text.replace("name: o,", "name: o, schema: public,"), "t", tmp_path, {}
        )
        lines, _ = check_script(named)
        at = lines.index(found.fix)
        assert lines[at - 2] == f"-- as the owner of database {name}, connected to it (output o):"
        connection.execute(found.fix)
        assert not list(check_names(config, schemas))
        assert found.fix not in check_script(named)[0]
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_rights_to_tables_of_another_owner_are_in_the_script(
    tmp_path: Path, database: str, deletes: str
) -> None:
    role = f"copier_{urlsplit(database).path.strip('/')}"
    output = (
        f"{{kind: postgres, schema: shop, deletes: {deletes}, url: '{role_url(database, role)}'}}"
    )
    source = f"{{kind: postgres, url: '{database}', tables: ['public.*']}}"
    text = f"source: {source}\nlog: {{path: log}}\noutputs: [{output}]"
    config = parse_config(text, "test", tmp_path, {})
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute(f"CREATE SCHEMA tidelog AUTHORIZATION {role}")
        connection.execute("CREATE SCHEMA shop")
        connection.execute(f"GRANT USAGE, CREATE ON SCHEMA shop TO {role}")
        for schema in ("public", "shop"):
            connection.execute(f'CREATE TABLE {schema}."a b" (id int PRIMARY KEY)')
        connection.execute(f'GRANT SELECT ON shop."a b" TO {role}')
        schemas = [
            TableSchema(TableName("public", "a b"), 1, (ID,), ("id",), ("id",), "d", "pgoutput")
        ]
        lines, _ = check_script(config)
        name = urlsplit(database).path.strip("/")
        at = lines.index(
            f"-- as the owner of the tables, connected to database {name} (output postgres):"
        )
        missing = [line for line in lines[at + 1 :] if line and not line.startswith("--")]
        rights = "INSERT, UPDATE, DELETE" if deletes == "hard" else "INSERT, UPDATE"
        added = "ADD COLUMN _tidelog_version bigint"
        if deletes == "soft":
            added += ", ADD COLUMN _tidelog_deleted boolean NOT NULL DEFAULT false"
        assert missing == [
            f'GRANT {rights} ON "shop"."a b" TO {role};',
            f'ALTER TABLE "shop"."a b" {added};',
        ]
        assert [one.fix for one in check_names(config, schemas)] == missing
        for statement in missing:
            connection.execute(statement.encode())
        assert not list(check_names(config, schemas))
        assert not set(missing) & set(check_script(config)[0])
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")


def role_url(url: str, role: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{quote(role)}@{parts.netloc.rpartition('@')[2]}").geturl()


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("kind: kafka, servers: '{}'", "no broker of {} answers"),
        ("kind: opensearch, urls: ['http://{}']", "OpenSearch at http://{} can't be reached"),
        ("kind: http, url: 'http://u:secret@{}/{{table}}'", "{} can't be reached"),
        ("kind: postgres, url: 'postgresql://u:secret@{}/x'", "can't connect"),
        ("kind: mysql, url: 'mysql://u:secret@{}/x'", "can't connect"),
    ],
)
def test_servers_that_do_not_answer(tmp_path: Path, nobody: str, output: str, why: str) -> None:
    level, message = check_result(tmp_path, f"{{name: o, {output.format(nobody)}}}")
    assert level == "warning"
    assert why.format(nobody) in message
    assert "\n" not in message
    assert "secret" not in message


NAMED = """
source: {{kind: postgres, url: '{url}', tables: ['public.*']}}
log: {{path: log}}
state: {{url: 'sqlite:///state.db'}}
outputs:
- {{kind: delta, name: lake, path: lake}}
- {{kind: delta, name: renamed, path: other, tables: [public.twins],
   steps: [{{rename: {{V: x, W: y}}}}]}}
- {{kind: files, name: files, path: files}}
- {{kind: opensearch, name: search, urls: ['http://127.0.0.1:1'], index: '{{name}}'}}
- {{kind: kafka, name: topics, servers: '127.0.0.1:1', topic: '{{name}}'}}
- {{kind: mysql, name: copy, url: '{copy}'}}
- {{kind: postgres, name: own, url: '{url}', schema: other}}
"""
TWINS = "Rename them by a step: {rename: {'V': OTHER, 'W': OTHER1}, tables: ['public.twins']}"
CHAINED = (
    "public.chained has _tidelog_version, _tidelog_Op: Tidelog adds columns of these names",
    "Rename yours in the source, or leave it out: source.exclude_columns: "
    "['public.chained._tidelog_version', 'public.chained._tidelog_Op']",
)
OURS = "Rename it by a step: {rename: {'_Version': OTHER}, tables: ['public.ours']}"
ROUTED = "Send the table elsewhere by a step: {route: SCHEMA.OTHER, tables: ['public.%s']}"
LEFT_OUT = [
    ("lake", "public.ours has a column _Version, the name of a column that Tidelog adds", OURS),
    ("lake", "columns v and V, which Delta can't distinguish; columns w and W, which", TWINS),
    ("search", "public.a b and public.a_b both go to index a_b", ROUTED % "a_b"),
    ("search", "public.CASE and public.case both go to index case", ROUTED % "case"),
    ("search", "public.odd has columns that no document can have by their name: a.b", "Rename it"),
    ("topics", "public.a b and public.a_b both go to topic a_b", ROUTED % "a_b"),
    ("copy", "columns v and V, which MySQL can't distinguish; columns w and W, which", TWINS),
]


def test_names_that_outputs_can_not_hold_are_reported(
    tmp_path: Path, database: str, postgres: PostgresServer, mysql_server: MySqlServer
) -> None:
    name = database.rpartition("/")[2].partition("?")[0]
    for statement in (
        'CREATE TABLE twins (id int PRIMARY KEY, v int, "V" int, w int, "W" int)',
        'CREATE TABLE chained (id int PRIMARY KEY, _tidelog_version bigint, "_tidelog_Op" text)',
        'CREATE TABLE odd (id int PRIMARY KEY, "a.b" int)',
        'CREATE TABLE ours (id int PRIMARY KEY, "_Version" int)',
        'CREATE TABLE "CASE" (id int PRIMARY KEY)',
        'CREATE TABLE "case" (id int PRIMARY KEY)',
        'CREATE TABLE "a b" (id int PRIMARY KEY)',
        "CREATE TABLE a_b (id int PRIMARY KEY)",
    ):
        postgres.execute(statement, name)
    text = NAMED.format(url=database, copy=mysql_server.dsn())
    config = parse_config(text, "test", tmp_path, {})
    found = [each.to_dict() for each in _check_patterns(config) if each.level == "warning"]
    chained = [each for each in found if "public.chained" in each["message"]]
    found = [each for each in found if each not in chained]
    assert len(found) == len(LEFT_OUT)
    for each, (output, message, fix) in zip(found, LEFT_OUT, strict=True):
        assert each["check"] == f"output {output}"
        assert message in each["message"]
        assert each["fix"].startswith(fix)
    outputs = [each["check"].removeprefix("output ") for each in chained]
    assert outputs == ["lake", "files", "search", "topics", "copy", "own"]
    for each in chained:
        assert CHAINED[0] in each["message"]
        assert each["fix"] == CHAINED[1]
    _, _, patterns = CHAINED[1].partition("source.exclude_columns: ")
    text = text.replace("']}", f"'], exclude_columns: {patterns}}}", 1)
    config = parse_config(text, "test", tmp_path, {})
    assert not [each for each in _check_patterns(config) if "chained" in each.message]


def test_patterns_are_checked_also_where_the_source_has_an_error(
    tmp_path: Path, database: str, postgres: PostgresServer
) -> None:
    postgres.execute("CREATE TABLE t (id int)", database.rpartition("/")[2])
    source = f"kind: postgres, url: '{database}', tables: ['public.*', 'publc.*']"
    text = f"source: {{{source}, keys: {{public.t: [absent]}}, exclude_columns: [public.t.x]}}"
    text += "\nlog: {path: log}\nstate: {url: 'sqlite:///state.db'}"
    found = [each.message for each in check(parse_config(text, "test", tmp_path, {}))]
    assert any("absent" in message for message in found)
    assert "source.tables: no table matches 'publc.*', others do" in found
    assert "source.exclude_columns: 'public.t.x': the table has no such column" in found


def test_what_outputs_do_with_a_table_without_a_key_is_reported_with_the_line_that_gives_one(
    tmp_path: Path, database: str, postgres: PostgresServer
) -> None:
    name = database.rpartition("/")[2].partition("?")[0]
    for statement in (
        "CREATE TABLE audit (at int, what text)",
        "CREATE TABLE held (a int NOT NULL, b text NOT NULL, c int, UNIQUE (b, a), UNIQUE (c))",
    ):
        postgres.execute(statement, name)
    text = f"""
source: {{kind: postgres, url: '{database}', tables: ['public.*']}}
log: {{path: log}}
state: {{url: 'sqlite:///state.db'}}
outputs:
- {{kind: delta, name: lake, path: lake}}
- {{kind: delta, name: hashed, path: other, steps: [{{hash: [what], tables: [public.audit]}}]}}
- {{kind: delta, name: raw, path: raw, holds: {{'*.*': changes}}}}
- {{kind: files, name: files, path: files}}
- {{kind: kafka, name: compacted, servers: '127.0.0.1:1', compact: true}}
- {{kind: mysql, name: copy, url: 'mysql://u@127.0.0.1:1/x', keyless: fail, tables: [public.held]}}
- {{kind: postgres, name: own, url: '{database}', schema: other}}
"""
    config = parse_config(text, "test", tmp_path, {})
    found = [each.to_dict() for each in _check_patterns(config) if "has no key" in each.message]
    assert [(each["check"], each["level"], each["message"].split(": ")[1]) for each in found] == [
        ("output lake", "ok", "the output appends its changes"),
        ("output hashed", "ok", "the output leaves it out, until it has a key"),
        ("output compacted", "ok", "the output leaves it out, until it has a key"),
        ("output own", "ok", "the output leaves it out, until it has a key"),
        ("output lake", "ok", "the output appends its changes"),
        ("output hashed", "ok", "the output appends its changes"),
        ("output compacted", "ok", "the output leaves it out, until it has a key"),
        ("output copy", "error", "the output stops, as its option keyless says"),
        ("output own", "ok", "the output leaves it out, until it has a key"),
    ]
    [held] = [each for each in check(config) if each.fix.startswith("its unique index")]
    assert held.fix.endswith('source.keys: {"public.held": ["b", "a"]}')
    [audit] = [each for each in check(config) if "ADD COLUMN row_id bigint" in each.fix]
    assert audit.fix.startswith('ALTER TABLE "public"."audit" ADD PRIMARY KEY (COLUMN, …), or')
