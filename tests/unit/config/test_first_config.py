"""What `tidelog init` asks, and the file that it makes of the answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidelog import cli
from tidelog.app.sources.first_config import (
    FirstSource,
    config_text,
    example_location,
    output_kinds,
    read_output,
    read_source,
    secrets_of,
    with_password,
)
from tidelog.cli import init
from tidelog.config import parse_config
from tidelog.errors import ConfigError, UsageError
from tidelog.model.schema import TableName

TABLES = [TableName("public", "orders"), TableName("public", "audit"), TableName("sales", "x")]


@pytest.fixture
def source() -> FirstSource:
    return read_source("postgresql://ann:a%2Fb@db/shop")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setattr(init, "_can_ask", lambda: True)
    return CliRunner()


@pytest.mark.parametrize("kind", list(output_kinds()))
def test_each_kind_of_output_makes_a_valid_file(kind: str, source: FirstSource) -> None:
    outputs = []
    for _ in range(2):
        outputs.append(read_output(source, kind, example_location(kind, outputs), outputs))
    text = config_text(source, ["a${b.*"], outputs)
    config = parse_config(text, "tidelog.yaml", Path(), secrets_of(source, outputs))
    assert [output.kind for output in config.outputs] == [kind, kind]
    assert config.source.tables == ["a${b.*"]


def test_passwords_are_variables_of_their_own(source: FirstSource) -> None:
    first = read_output(source, "postgres", "postgresql://u:one@db/x", [])
    second = read_output(source, "postgres", with_password("postgresql://u@db/x", "t/o"), [first])
    outputs = [first, second]
    text = config_text(source, ["*.*"], outputs)
    secrets = secrets_of(source, outputs)
    assert secrets == {
        "TIDELOG_PASSWORD": "a/b",
        "TIDELOG_POSTGRES_PASSWORD": "one",
        "TIDELOG_POSTGRES2_PASSWORD": "t/o",
    }
    for word in ("a%2Fb", "a/b", ":one", "t%2Fo", "t/o"):
        assert word not in text + repr(source) + repr(outputs)
    with pytest.raises(ConfigError, match="TIDELOG_POSTGRES2_PASSWORD is not set"):
        parse_config(text, "tidelog.yaml", Path(), {})


def test_tokens_in_the_url_of_an_output_are_variables(source: FirstSource) -> None:
    url = "https://u:one@api/{table}?api_key=k%2F1&version=2&access.token=t2&sig=${SIG}"
    with pytest.raises(UsageError, match="SIG is not set"):
        read_output(source, "http", url, [])
    output = read_output(source, "http", url.replace("&sig=${SIG}", ""), [])
    secrets = secrets_of(source, [output])
    assert secrets == {
        "TIDELOG_PASSWORD": "a/b",
        "TIDELOG_HTTP_PASSWORD": "one",
        "TIDELOG_HTTP_API_KEY": "k%2F1",
        "TIDELOG_HTTP_ACCESS_TOKEN": "t2",
    }
    text = config_text(source, ["*.*"], [output])
    assert "version=2" in text
    assert not any(value in text + repr(output) for value in ("k%2F1", "t2", ":one"))
    [found] = parse_config(text, "tidelog.yaml", Path(), secrets).outputs
    assert found.url.reveal() == url.replace("&sig=${SIG}", "")  # type: ignore[attr-defined]


def test_a_variable_in_the_url_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://ann:${SHOP_PASSWORD}@db/shop"
    with pytest.raises(UsageError, match="SHOP_PASSWORD is not set; export it"):
        read_source(url)
    monkeypatch.setenv("SHOP_PASSWORD", "x")
    assert read_source(url).location.text == url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///x", "expected postgresql://"),
        ("postgresql://u:a/b@db/x", "stands behind the host"),
        ("postgresql://u:a@b?c@db/x", "stands behind the host"),
        ("postgresql://[db/x", "brackets"),
        ("postgresql://db/x?password=p", "before the @"),
    ],
)
def test_a_url_whose_password_might_be_written_is_refused(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_source(url)


def test_a_place_that_an_output_can_not_have_is_refused(source: FirstSource) -> None:
    with pytest.raises(UsageError, match=r"^outputs\[0\].url: expected http"):
        read_output(source, "http", "nonsense", [])
    with pytest.raises(UsageError, match=r"expected delta, .*, not 'lake'"):
        read_output(source, "lake", "x", [])
    with pytest.raises(UsageError, match="say where it writes, such as delta="):
        read_output(source, "delta", "", [])


def test_patterns_are_asked_for_until_they_can_match(
    terminal: CliRunner, source: FirstSource
) -> None:
    answers = "public.%\npublic.oders\nn\n!public.audit\n"
    with terminal.isolation(input=answers) as (out, _, _):
        chosen = init._choose_tables(source, TABLES, None)
        screen = out.getvalue().decode()
    assert chosen == ["public.*", "sales.*", "!public.audit"]
    assert "excludes [public.*, sales.*]: " in screen
    assert "any text is *, not %" in screen
    assert "no table matches 'public.oders'" in screen


def test_outputs_are_asked_for_until_they_are_valid(
    terminal: CliRunner, source: FirstSource
) -> None:
    answers = "lake\n\n\niceberg\n\nhttp\nftp://x\nhttps://u:p@x/{table}\n\n"
    with terminal.isolation(input=answers) as (out, _, _):
        chosen = init._choose_outputs(source, None)
        screen = out.getvalue().decode()
    assert [(each.name, each.location.text) for each in chosen] == [
        ("delta", "./data/lake"),
        ("iceberg", "./data/iceberg"),
        ("http", "https://u:${TIDELOG_HTTP_PASSWORD}@x/{table}"),
    ]
    assert "not 'lake'" in screen
    assert "expected http://host/path" in screen


def test_what_options_say_is_not_asked(terminal: CliRunner, source: FirstSource) -> None:
    with terminal.isolation(input="") as (out, _, _):
        assert init._choose_tables(source, TABLES, ["a.b"]) == ["a.b"]
        assert [o.kind for o in init._choose_outputs(source, ["files=./x"])] == ["files"]
        with pytest.raises(UsageError, match=r"--output: .*outputs\[0\].path"):
            init._choose_outputs(source, ["files=xy:z"])
        assert out.getvalue() == b""


def test_the_end_of_the_input_writes_nothing(terminal: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "tidelog.yaml"
    done = terminal.invoke(cli.app, ["init", str(file)], input="oracle://x\n")
    assert done.exit_code == 130
    assert "expected postgresql://" in done.output
    assert "nothing is written" in done.output
    assert not file.exists()
