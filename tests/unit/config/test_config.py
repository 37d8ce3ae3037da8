"""Configuration files: what they may say, and how mistakes are reported."""

from __future__ import annotations

import json
import pickle
import re
import socket
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.certificates import write_certificates

from tidelog.app.sources.preflight import check_authorities
from tidelog.codecs.mysql.server_urls import parse_url
from tidelog.config import Config, as_config, load_config, parse_config
from tidelog.config.models import EngineArguments, EngineSection
from tidelog.config.source import MySqlSourceSection
from tidelog.errors import ConfigError
from tidelog.state.zookeeper import parse as parse_place

MINIMAL = """\
source: {kind: postgres, url: "postgresql://user:${PGPASSWORD}@host:5432/shop"}
log: {path: ./data/log, retention: 7d}
"""
ENVIRON = {"PGPASSWORD": "s3cret", "N": "500"}


def load(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> Config:
    file = tmp_path / "tidelog.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, ENVIRON if environ is None else environ)


def problem(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environ)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(f"{tmp_path}/", "")


_SOURCE = 'source: {kind: postgres, url: "postgresql://h/d", tables: ["a.b"]}'


def test_the_event_log_may_be_on_an_object_store(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        f"""
{_SOURCE}
log:
  path: s3://bucket/some/prefix/
  storage_options: {{region: eu-central-1, allow_http: true, secret_access_key: "${{PGPASSWORD}}"}}
""",
    )
    assert config.log.path == "s3://bucket/some/prefix"
    options = {name: v.get_secret_value() for name, v in config.log.storage_options.items()}
    assert options["allow_http"] == "true"
    assert options["secret_access_key"] == "s3cret"
    assert "s3cret" not in repr(config) + config.model_dump_json()


def test_the_state_is_beside_an_event_log_on_an_object_store(tmp_path: Path) -> None:
    log = """
log:
  path: s3://bucket/prefix
  storage_options: {region: eu-central-1, secret_access_key: "${PGPASSWORD}"}
"""
    for state in ("", "state: {url: 'log:'}\n"):
        config = load(tmp_path, f"{_SOURCE}\n{log}{state}")
        assert str(config.state.url) == "log:s3://bucket/prefix"
        assert config.state.location.reveal() == (
            "log:s3://bucket/prefix?region=eu-central-1&secret_access_key=s3cret"
        )
        assert str(config.state.location) == "log:s3://bucket/prefix?***"
        assert "s3cret" not in repr(config) + config.model_dump_json()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/state.db").touch()
    assert load(tmp_path, f"{_SOURCE}\n{log}{state}").state == config.state
    told = problem(tmp_path, f"{_SOURCE}\n{log}")
    assert "data/state.db holds a state, and with the event log on an object store" in told


def test_options_of_a_state_store_are_secrets(tmp_path: Path) -> None:
    state = (
        "state:\n  url: 'zookeeper://h1:2181,[::1]:2181,h3/tidelog/shop'\n"
        "  options: {user: me, password: 'a&${PGPASSWORD}=', tls: true}\n"
    )
    config = load(tmp_path, MINIMAL + state)
    assert parse_place(config.state.location.reveal()).digest == "me:a&s3cret="
    assert "s3cret" not in repr(config) + config.model_dump_json() + str(config.state.location)
    assert pickle.loads(pickle.dumps(config)) == config
    url = "postgresql://me:${PGPASSWORD}@h1,h2/state?target_session_attrs=read-write"
    config = load(tmp_path, f"{MINIMAL}state: {{url: '{url}', options: {{sslmode: require}}}}\n")
    assert config.state.location.reveal().endswith(
        "?target_session_attrs=read-write&sslmode=require"
    )
    assert str(config.state.url) == "postgresql://me:***@h1,h2/state?***"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("{url: 'log:'}", "3: state: log: keeps the state beside an event log on an object store"),
        ("{url: 'zookeeper://me:s3cret@h1:2181/'}", "state.url: expected zookeeper://host:2181"),
        ("{url: 'zookeeper://h1:x/a'}", "state.url: expected zookeeper://host:2181"),
        ("{url: 'zookeeper://h1/a/../b'}", "has a part that ZooKeeper does not take"),
        ("{url: 'zookeeper://h/a', options: {users: s3cret}}", "unknown option 'users'; known are"),
        ("{url: 'zookeeper://h/a', options: {acl: 's3cret'}}", "expected scheme:id:rights"),
        ("{url: 'zookeeper://h/a', options: {tls: s3cret}}", "options.tls: expected true or false"),
        ("{url: 'zookeeper://h/a', options: {auth: s3cret}}", "expected digest or sasl"),
        ("{url: 'postgresql://me:s3@cret@h/d'}", "percent-encode special characters"),
        ("{url: 'postgresql:///d'}", "state.url: expected postgresql://user@host/database"),
        ("{url: 'postgresql://h/d', options: {sslmodes: s3cret}}", "options are those of libpq"),
        ("{url: 'sqlite:///a.db', options: {password: s3cret}}", "takes no options"),
        ("{url: 'sqlite:state.db'}", "state.url: expected sqlite:///path/to/state.db"),
        ("{url: 'sqlite:/state.db'}", "state.url: expected sqlite:///path/to/state.db"),
        ("{url: 'sqlite://data/state.db'}", "state.url: expected sqlite:///path/to/state.db"),
        ("{options: {password: s3cret}}", "options are of a store: name it in url"),
    ],
)
def test_a_wrong_state_store_is_explained(tmp_path: Path, state: str, message: str) -> None:
    told = problem(tmp_path, f"{MINIMAL}state: {state}\n")
    assert message in told
    assert "s3cret" not in told
    assert "s3@cret" not in told


def test_path_of_the_state_is_taken_as_it_is_written(tmp_path: Path) -> None:
    found = load(tmp_path, f"{MINIMAL}state: {{url: 'sqlite:///a#b/c%20d.db'}}\n")
    assert found.state.url.reveal() == f"sqlite:///{tmp_path.resolve()}/a#b/c%20d.db"


def test_azures_spelling_of_a_place_is_taken(tmp_path: Path) -> None:
    url = "abfss://container@account.dfs.core.windows.net/log"
    assert load(tmp_path, f"{_SOURCE}\nlog: {{path: '{url}'}}\n").log.path == url


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("{path: 'ftp://host/log'}", "expected a directory, or a URL of s3,"),
        ("{path: 's3://'}", "expected scheme://bucket/prefix"),
        ("{path: 's3://key:${PGPASSWORD}@bucket/x'}", "keys belong under storage_options"),
        ("{path: 's3://bucket/x?region=eu'}", "keys belong under storage_options"),
        ("{path: 's3:/bucket/x'}", "a URL is written scheme://bucket/prefix"),
        ("{path: 's3:bucket/x'}", "a URL is written scheme://bucket/prefix"),
        ("{path: 'file:log'}", "a URL is written scheme://bucket/prefix"),
        ("{path: ./log, storage_options: {region: x}}", "path is a local directory"),
    ],
)
def test_a_wrong_place_of_the_event_log_is_explained(
    tmp_path: Path, log: str, message: str
) -> None:
    told = problem(tmp_path, f"{_SOURCE}\nlog: {log}\n")
    assert message in told
    assert "s3cret" not in told


def test_file_of_the_design_is_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
source: {kind: postgres, url: "postgresql://user:${PGPASSWORD}@host:5432/shop",
         tables: ["public.*"], snapshot: initial}
log:    {path: ./data/log, retention: 7d}
state:  {url: "sqlite:///data/state.db"}
outputs:
  - {kind: delta, path: ./data/lake, tables: ["public.*"]}
""",
    )
    assert config.source.url.reveal() == "postgresql://user:s3cret@host:5432/shop"
    assert config.log.retention == timedelta(days=7)
    assert config.log.path == str(tmp_path / "data/log")
    assert str(config.state.url) == f"sqlite:///{tmp_path}/data/state.db"
    assert config.outputs[0].path == str(tmp_path / "data/lake")


def test_defaults_are_those_of_the_reference_and_resolve_paths(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    assert (config.capture.flush_bytes, config.capture.flush_ms) == (4 * 2**20, 50)
    assert config.capture.buffer_bytes == 32 * 2**20
    assert config.log.rollup_bytes == 64 * 2**20
    assert (config.dump.chunk_rows, config.dump.delay_ms, config.dump.parallelism) == (10_000, 0, 1)
    assert str(config.state.url) == f"sqlite:///{tmp_path}/data/state.db"
    assert config.pipeline.checkpoint == str(tmp_path / "data/checkpoint")


def test_password_shows_nowhere_but_through_reveal(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    for text in (repr(config), str(config.source.url), config.model_dump_json()):
        assert "s3cret" not in text
    assert "user:***@host" in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cret@h/db",
        "postgresql://u:a/s3cret@x@h/db",
        "postgresql://h/db?user=u&password=s3cret&sslmode=require",
        "host=h password=s3cret dbname=db",
        r"host=h password='it\'s s3cret' dbname=db",
        "host=h sslpassword = s3cret",
    ],
)
def test_password_is_found_in_every_form_of_url(tmp_path: Path, url: str) -> None:
    text = MINIMAL.replace('"postgresql://user:${PGPASSWORD}@host:5432/shop"', '"${URL}"')
    config = load(tmp_path, text, {"URL": url}).source
    assert config.url.reveal() == url
    assert "s3cret" not in repr(config)


def test_password_with_url_characters_is_encoded_but_a_whole_url_is_not(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL, {"PGPASSWORD": "p@ss/w:%"})
    assert config.source.url.reveal() == "postgresql://user:p%40ss%2Fw%3A%25@host:5432/shop"
    text = MINIMAL.replace("@host:5432", "@${HOST}")
    config = load(tmp_path, text, {"PGPASSWORD": "x", "HOST": "db:5433"})
    assert config.source.url.reveal() == "postgresql://user:x@db:5433/shop"


def test_variables_of_sections_that_nobody_reads_may_be_unset(tmp_path: Path) -> None:
    rest = "control: {rest: {token: '${TOKEN}', viewer_token: '${VIEWER}'}}\n"
    environ = {"PGPASSWORD": "x"}

    def parsed(text: str) -> Config:
        return parse_config(text, "test", tmp_path, environ, ("control", "outputs"))

    assert parsed(MINIMAL + rest).control.rest is not None
    for unset, text in (
        ("URL", MINIMAL.replace('"postgresql://user:${PGPASSWORD}@host:5432/shop"', '"${URL}"')),
        ("PORT", MINIMAL + "control: {rest: {token: '${TOKEN}', port: '${PORT}'}}\n"),
    ):
        with pytest.raises(ConfigError, match=f"variable {unset} is not set"):
            parsed(text)


def test_variables_have_defaults_and_can_be_numbers_and_escaped(tmp_path: Path) -> None:
    text = (
        MINIMAL
        + "dump: {chunk_rows: '${N}', delay_ms: '${D:-100ms}'}\npipeline: {conf: {a: '$${b}$$'}}\n"
    )
    config = load(tmp_path, text)
    assert (config.dump.chunk_rows, config.dump.delay_ms) == (500, 100)
    assert config.pipeline.conf == {"a": "${b}$$"}


def test_the_name_of_the_host_is_known_where_the_shell_keeps_it_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "p")
    monkeypatch.delenv("HOSTNAME", raising=False)
    file = tmp_path / "tidelog.yaml"
    rest = "control: {rest: {token: of-8-chars, url: 'http://${HOSTNAME}:8490'}}\n"
    file.write_text(MINIMAL + rest)

    def url() -> str | None:
        found = load_config(file).control.rest
        return None if found is None else found.url

    assert url() == f"http://{socket.gethostname()}:8490"
    monkeypatch.setenv("HOSTNAME", "as-set")
    assert url() == "http://as-set:8490"


def test_all_missing_variables_are_named_with_their_lines(tmp_path: Path) -> None:
    message = problem(tmp_path, MINIMAL + "dump:\n  chunk_rows: ${ROWS}\n", {})
    assert "tidelog.yaml:1: environment variable PGPASSWORD is not set" in message
    assert "tidelog.yaml:4: environment variable ROWS is not set" in message


def test_value_of_a_variable_cannot_change_the_structure(tmp_path: Path) -> None:
    text = MINIMAL + "pipeline:\n  conf:\n    a: ${V}\n"
    config = load(tmp_path, text, {**ENVIRON, "V": "x\nsource: 1"})
    assert config.pipeline.conf == {"a": "x\nsource: 1"}


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        ("dump:\n  chunk_row: 5\n", "4: dump.chunk_row: unknown key; did you mean 'chunk_rows'?"),
        ("control: {rest: {tokn: x}}\n", "control.rest.tokn: unknown key; did you mean 'token'?"),
        ("dumpp: {}\n", "3: dumpp: unknown key; did you mean 'dump'?"),
        ("chunk_rows: 5\n", "3: chunk_rows: unknown key; 'chunk_rows' belongs under 'dump'"),
        ("state:\n  zzz: 1\n", "4: state.zzz: unknown key; known are url"),
        ("dump:\n  chunk_rows: many\n", "dump.chunk_rows: expected a whole number, not 'many'"),
        ("dump:\n  chunk_rows: 0\n", "4: dump.chunk_rows: must be at least 1, not 0"),
        ("dump:\n  delay_ms: 5 parsecs\n", "dump.delay_ms: expected a duration such as 50ms"),
        ("dump:\n  delay_ms: true\n", "dump.delay_ms: expected a duration"),
        ("dump: 7\n", "3: dump: expected a mapping of options"),
        ("capture: {flush_bytes: 4 QiB}\n", "capture.flush_bytes: expected a size such as"),
        (
            "capture: {flush_bytes: 4MiB, buffer_bytes: 1MiB}\n",
            "3: capture: buffer_bytes is smaller",
        ),
        ("state: {url: 'redis://x'}\n", "3: state.url: expected sqlite:///path/to/state.db"),
        ("outputs:\n  - kind: delta\n", "4: outputs[0].path: is missing"),
        (
            "outputs: [{kind: delta, path: a, types: {uuid: text}}]\n",
            "outputs[0].types.uuid: unknown key; known are arrays, numeric, json,",
        ),
        (
            "outputs:\n  - {kind: delta, path: a}\n  - {kind: delat, path: b}\n",
            "not 'delat'; did you mean 'delta'?",
        ),
        ("outputs: [{kind: deltalake, path: a}]\n", "not 'deltalake'; did you mean 'delta'?"),
        (
            "outputs: [{kind: delta, path: a, tables: 'public.*'}]\n",
            'outputs[0].tables: expected a list, such as ["',
        ),
        ("outputs: {kind: delta}\n", "3: outputs: expected a list"),
        (
            "outputs: [{kind: delta, path: a}, {kind: delta, path: b}]\n",
            "2 outputs are named 'delta'",
        ),
        (
            "outputs: [{kind: delta, path: a, tables: [orders]}]\n",
            "expected namespace.table, * for any text, such as public.orders or public.*, "
            "not 'orders'",
        ),
    ],
)
def test_mistake_is_reported_with_its_line(tmp_path: Path, addition: str, expected: str) -> None:
    message = problem(tmp_path, MINIMAL + addition)
    assert message.startswith("tidelog.yaml:")
    assert expected in message


def test_missing_section_bad_slot_and_bad_duration_are_all_reported_at_once(tmp_path: Path) -> None:
    message = problem(tmp_path, "source:\n  kind: postgres\n  url: postgres://h/d\n  slot: A-b\n")
    assert "tidelog.yaml:1: log: is missing" in message
    assert "tidelog.yaml:4: source.slot: must match" in message
    assert "log.retention: expected a duration" in problem(
        tmp_path, MINIMAL.replace("7d", "7 days")
    )
    assert "with its unit" in problem(tmp_path, MINIMAL.replace("7d", "7"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("source: {kind: postgres\nlog: }", "tidelog.yaml:2: not valid YAML"),
        ("a: 1\n\tb: 2\n", "tidelog.yaml:2: not valid YAML"),
        ("", "tidelog.yaml:1: expected the sections"),
        ("- 1\n", "tidelog.yaml:1: expected the sections"),
        ("log: {}\n\nlog: {}\n", "tidelog.yaml:3: 'log' is given twice, first on line 1"),
        ("a: &a [*a]\n", "an alias refers to what contains it"),
        ("? [1]\n: 2\n", "a key must be a plain word"),
        ("a: '${x y}'\n", "tidelog.yaml:1: ${ does not start a variable"),
        ("a: !!python/object:os.system x\n", "not valid YAML"),
    ],
)
def test_file_that_is_not_yaml_is_reported_with_its_line(
    tmp_path: Path, text: str, expected: str
) -> None:
    assert expected in problem(tmp_path, text)


@pytest.mark.parametrize("kind", ["delta", "files", "iceberg"])
def test_keys_in_the_url_of_an_output_are_refused_and_not_shown(tmp_path: Path, kind: str) -> None:
    """A catalog would have the URL, too."""
    with pytest.raises(ConfigError, match="keys belong under storage_options") as refused:
        load(
            tmp_path,
            f"{_SOURCE}\nlog: {{path: log}}\n"
            f"outputs: [{{kind: {kind}, path: 's3a://key:hidden@bucket/lake'}}]\n",
        )
    assert "hidden" not in str(refused.value)
    azure = "abfss://container@account.dfs.core.windows.net/lake"
    load(
        tmp_path,
        f"{_SOURCE}\nlog: {{path: log}}\noutputs: [{{kind: {kind}, path: '{azure}'}}]\n",
    )


def test_problem_with_a_url_or_a_variable_does_not_show_its_value(tmp_path: Path) -> None:
    text = MINIMAL.replace("postgresql://user:", "mysql://user:")
    message = problem(tmp_path, text)
    assert "source.url: expected postgresql://user:password@host:port/database" in message
    assert "s3cret" not in message
    message = problem(tmp_path, MINIMAL + "dump: {chunk_rows: '${PGPASSWORD}'}\n")
    assert "expected a whole number" in message
    assert "s3cret" not in message


def test_missing_and_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "nowhere.yaml", {})
    (tmp_path / "latin1.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 3"):
        load_config(tmp_path / "latin1.yaml", {})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, {})


def test_exclude_is_the_same_as_tables_with_an_exclamation_mark(tmp_path: Path) -> None:
    text = (
        'source: {kind: postgres, url: "postgresql://h/d", exclude: ["*.tmp_*", public.audit]}\n'
        'log: {path: log}\noutputs: [{kind: delta, path: lake, tables: ["public.*"], '
        "exclude: [public.secret]}]\n"
    )
    config = load(tmp_path, text)
    assert config.source.tables == ["*.*", "!*.tmp_*", "!public.audit"]
    assert config.outputs[0].tables == ["public.*", "!public.secret"]
    shown = problem(tmp_path, text.replace("public.secret", '"!public.secret"'))
    assert "outputs[0].exclude[0]: a pattern with ! excludes tables of a list" in shown


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = MINIMAL + (
        "outputs:\n  - &a {kind: delta, path: a}\n  - {<<: *a, name: second, path: s3://lake/b}\n"
    )
    config = load(tmp_path, text)
    assert [output.name for output in config.outputs] == ["delta", "second"]
    assert config.outputs[1].path == "s3://lake/b"


MYSQL = """\
source:
  kind: mysql
  url: "mysql://user:${PGPASSWORD}@host/shop"
log: {path: ./data/log}
"""


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_mysql_and_mariadb_have_options_of_their_own(tmp_path: Path, kind: str) -> None:
    text = MYSQL.replace("kind: mysql", f"kind: {kind}\n  server_id: 7\n  ssl_ca: ca file.pem")
    source = load(tmp_path, text.replace("mysql://", f"{kind}://")).source
    assert isinstance(source, MySqlSourceSection)
    assert (source.kind, source.watermark_schema, source.watermarks) == (kind, "tidelog", "table")
    assert source.connector == "tidelog-7"
    url = parse_url(source.server_url)
    assert (url.host, url.port, url.password, url.database) == ("host", 3306, "s3cret", "shop")
    assert (url.ssl_mode, url.ssl_ca) == ("verify-ca", str(tmp_path / "ca file.pem"))
    assert "s3cret" not in repr(source)
    assert pickle.loads(pickle.dumps(source)) == source


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        ("slot: a", "tidelog.yaml:4: source.slot: unknown key; 'slot' is an option of kind"),
        ("serverid: 1", "source.serverid: unknown key; did you mean 'server_id'?"),
        ("watermarks: message", "4: source.watermarks: expected 'table' or 'gtid', not 'message'"),
        ("server_id: 0", "source.server_id: must be at least 1, not 0"),
        ("ssl_cert: a.pem", "source: ssl_cert and ssl_key need each other"),
        ("ssl_mode: on", "source.ssl_mode: expected 'disabled'"),
        ("chunk_rows: 5", "4: source.chunk_rows: unknown key; 'chunk_rows' belongs under 'dump'"),
    ],
)
def test_mistake_in_a_mysql_source_is_reported_with_its_line(
    tmp_path: Path, addition: str, expected: str
) -> None:
    assert expected in problem(tmp_path, MYSQL.replace("log:", f"  {addition}\nlog:", 1))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "kind: mysql",
            "kind: oracle",
            "2: source.kind: expected 'postgres', 'mysql' or 'mariadb'",
        ),
        ("  kind: mysql\n", "", "tidelog.yaml:1: source.kind: is missing; expected 'postgres'"),
        ("mysql://user", "postgresql://user", "source.url: expected mysql://user:password@host"),
        ("host/shop", "ho@st/shop", "source.url: the URL has an @ in a wrong place"),
        ("kind: mysql", "kind: postgres", "source.url: expected postgresql://user:password@host"),
    ],
)
def test_kind_and_url_of_a_source_must_fit(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    message = problem(tmp_path, MYSQL.replace(old, new, 1))
    assert expected in message
    assert "s3cret" not in message


def test_option_of_mysql_in_a_postgres_source_is_named_so(tmp_path: Path) -> None:
    message = problem(tmp_path, MINIMAL.replace("kind: postgres,", "kind: postgres, server_id: 5,"))
    assert "source.server_id: unknown key; 'server_id' is an option of kind 'mysql'" in message


_HTTP = 'kind: http, url: "https://h/{table}"'
_SEARCH = 'kind: opensearch, urls: ["https://h"]'


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (_HTTP + ', token: "${SECRET}"', "token.*one line of printable"),
        (_HTTP + ', headers: {X-Key: "${SECRET}"}', "headers.X-Key.*one line of printable"),
        (_HTTP + ', headers: {X-Key: "s3cret\\r\\nX-Other: y"}', "headers.X-Key.*one line"),
        (_HTTP + ', headers: {X-Key: "s3cret-ü"}', "headers.X-Key.*ASCII"),
        (_HTTP + ', headers: {"X Key": v}', "headers.X Key"),
        ('kind: http, url: "https://h/s3cret\\n"', "url.*no line ends"),
        ('kind: http, url: "https://h/{tabel}"', "only {table}"),
        ('kind: http, url: "h/s3cret"', "expected http"),
        ('kind: http, url: "https://h:s3cret/"', "expected a url"),
        (_SEARCH + ', headers: {X-Key: "${SECRET}"}', "headers.X-Key.*one line of printable"),
        (_SEARCH + ', api_key: "${SECRET}"', "api_key.*one line of printable"),
        (_SEARCH + ", user: tidelog", "user and password go together"),
        (_SEARCH + ', password: "s3cret"', "user and password go together"),
        (
            _SEARCH + ', user: u, password: "s3cret", api_key: k',
            "one of user and password, api_key",
        ),
        (_SEARCH + ', api_key: k, headers: {authorization: "s3cret"}', "one of user and password"),
    ],
)
def test_credentials_and_urls_that_could_not_be_sent_are_refused_and_not_shown(
    tmp_path: Path, output: str, why: str
) -> None:
    """A client would say so only when it sends, and in words of a broken connection."""
    said = problem(tmp_path, f"{_SOURCE}\noutputs:\n  - {{{output}}}\n", {"SECRET": "s3cret\n"})
    assert re.search(why, said.replace("\n", " "))
    assert "s3cret" not in said


def test_a_file_of_authorities_is_looked_at(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    (tmp_path / "empty.pem").write_text("")
    names = ("ca.pem", "empty.pem", "nowhere.pem")
    outputs = [f"{_SEARCH}, name: o{n}, ca_file: {tmp_path / name}" for n, name in enumerate(names)]
    text = "".join(f"  - {{{output}}}\n" for output in [*outputs, _HTTP])
    config = load(tmp_path, f"{_SOURCE}\nlog: {{path: ./log}}\noutputs:\n{text}")
    found = [each.to_dict() for each in check_authorities(config)]
    assert [each["level"] for each in found] == ["ok", "error", "error"]
    assert [each["check"] for each in found] == ["output o0", "output o1", "output o2"]
    assert "holds no certificate" in found[1]["message"]
    assert "No such file" in found[2]["message"]


@pytest.mark.parametrize("given", ["abc", "${TIDELOG_TOKEN}"])
def test_a_short_token_is_reported(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_TOKEN", "abc")
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: log}\n"
        f"control: {{rest: {{token: '{given}'}}}}\n"
    )

    with pytest.raises(ConfigError, match=r"control\.rest\.token: must have at least 8 characters"):
        load_config(file)

    file.write_text(file.read_text().replace(given, ""))
    with pytest.raises(ConfigError, match=r"control\.rest\.token: must not be empty"):
        load_config(file)


def test_a_configuration_is_given_as_itself_as_a_path_or_as_contents(tmp_path: Path) -> None:
    source = {"kind": "postgres", "url": "postgresql://localhost/shop", "tables": ["public.*"]}
    contents = {"source": source, "log": {"path": str(tmp_path / "log")}}
    path = tmp_path / "tidelog.yaml"
    path.write_text(json.dumps(contents))
    config = as_config(path)
    assert as_config(config) is config
    assert as_config(str(path)) == config
    assert as_config(contents).source == config.source
    with pytest.raises(ConfigError, match="missing"):
        as_config({"source": source})


def test_arguments_of_an_engine_are_the_options_of_its_section() -> None:
    assert EngineArguments.__annotations__.keys() == EngineSection.model_fields.keys()


@pytest.mark.parametrize(
    ("source", "tables", "output", "refused"),
    [
        ("postgresql://u:p@h/d", "public.*", "postgresql://v:q@h:5432/d", True),
        ("postgresql://u:p@localhost/d", "public.*", "postgresql://v@127.0.0.1/d", True),
        ("postgresql://u:p@h/d", "public.*", "postgresql://v:q@h:5432/copy", False),
        ("postgresql://u:p@h/d", "public.*", "postgresql://v:q@h:5433/d", False),
        ("postgresql://u:p@h/d", "public.*", "postgresql://v@h/d, schema: copy", False),
        ("postgresql://u:p@h/d", "*.*", "postgresql://v@h/d, schema: copy", True),
        ("postgresql://u:p@h/d", "public.*", "postgresql://v@h/d, tables: ['sales.*']", False),
        ("postgresql://u@/d?host=/a", "public.*", "postgresql://u@/d?host=/b", False),
        (
            "postgresql://u@h/d",
            "public.*",
            "postgresql://u@h/d, steps: [{route: 'copy.{table}'}]",
            False,
        ),
        ("mariadb://u:p@h", "shop.*", "mysql://v:q@h:3306/", True),
        ("mysql://u:p@h", "shop.*", "mysql://v:q@h/, database: copy", False),
        ("mysql://u:p@h", "shop.orders", "mysql://v:q@h/, database: shop", True),
        ("mysql://u:p@h", "*.*', '!copy.*", "mysql://v:q@h/, database: copy", False),
        ("mysql://u:p@h", "*.*", "mysql://v:q@h/, database: copy", True),
        ("mysql://u:p@h", "shop.orders", "mysql://v:q@h/shop", True),
        ("mysql://u:p@h", "*.*', '!copy.*", "mysql://v:q@h/copy", False),
        ("mysql://u:p@h", "shop.*", "mysql://v:q@other/", False),
        ("mysql://u:p@h", "shop.*", "postgresql://v:q@h/d", False),
    ],
)
def test_an_output_into_the_captured_tables_themselves_is_refused(
    tmp_path: Path, source: str, tables: str, output: str, refused: bool
) -> None:
    kinds = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mariadb"}
    url, comma, rest = output.partition(", ")
    kind = "postgres" if url.startswith("postgresql") else "mysql"
    text = (
        f"source: {{kind: {kinds[source.split(':')[0]]}, url: '{source}', tables: ['{tables}']}}\n"
        f"log: {{path: ./log}}\noutputs:\n  - {{kind: {kind}, url: '{url}'{comma}{rest}}}\n"
    )
    if refused:
        message = problem(tmp_path, text)
        assert f"output {kind} would write to captured tables of the source itself" in message
        assert ("schema" if kind == "postgres" else "database") in message
    else:
        assert load(tmp_path, text).outputs
