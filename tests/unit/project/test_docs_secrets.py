"""No example holds a token or password that works as printed: a forgotten variable is an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidelog.config import parse_config
from tidelog.errors import ConfigError

ROOT = Path(__file__).parents[3]
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(
        path
        for folder in ("deploy", "docs", "examples")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".env", ".md", ".py", ".toml", ".yaml", ".yml"}
    ),
]
SECRET = r"(?i:\w*(?:token|password|passwd|secret|access_key|api_key)\w*)"
# As a variable's default, a value in YAML, or a literal of SQL.
DEFAULT = re.compile(r"\$\{" + SECRET + r":-[^}]+\}")
VALUE = re.compile(
    r"^[^#`|]*?\b(" + SECRET + r")(?:: +|[\"']: *)[\"']?(?![\"'$<{\[…]|true|false)[^\s\"',}]"
)
LITERAL = re.compile(r"(?i)\b(?:PASSWORD|IDENTIFIED BY)\s*\(?\s*'")
URL = re.compile(r"://[\w.-]+:(?!\$|…)[^@\s/\"'`,]+@")
FENCED = re.compile(r"```(?:yaml|sql|console|ini|toml|python|json)\n(.*?)```", re.DOTALL)


def examples(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return "\n".join(FENCED.findall(text)) if path.suffix == ".md" else text


def printed_secrets(text: str) -> list[str]:
    return [
        line.strip()
        for line in text.splitlines()
        if any(pattern.search(line) for pattern in (DEFAULT, VALUE, LITERAL, URL))
    ]


@pytest.mark.parametrize(
    "line",
    [
        'rest: {host: 127.0.0.1, token: "${TIDELOG_TOKEN:-choose-a-long-one}"}',
        "  token: choose-a-long-one",
        "  options: {user: tidelog, password: s3cret}",
        "CREATE ROLE tidelog LOGIN PASSWORD 'change-me';",
        "CREATE USER tidelog IDENTIFIED BY 'change-me';",
        'url: "postgresql://tidelog:s3cret@db:5432/shop"',
    ],
)
def test_a_secret_that_works_as_printed_is_found(line: str) -> None:
    assert printed_secrets(line) == [line.strip()]


def test_no_example_holds_a_secret_that_works_as_printed() -> None:
    assert len(FILES) > 100
    found = {
        str(path.relative_to(ROOT)): lines
        for path in FILES
        if (lines := printed_secrets(examples(path)))
    }
    assert found == {}


WITH_VARIABLES = [
    (path, block)
    for path in FILES
    if path.suffix == ".md"
    for block in re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    if re.search(r"^source:", block, re.MULTILINE) and "${" in block
]


def test_a_forgotten_variable_of_an_example_is_an_error_that_names_it(tmp_path: Path) -> None:
    assert len(WITH_VARIABLES) > 10
    for path, block in WITH_VARIABLES:
        names = set(re.findall(r"\$\{(" + SECRET + r")\}", block))
        with pytest.raises(ConfigError) as error:
            parse_config(block, str(path), tmp_path, {"HOSTNAME": "db1"})
        assert [name for name in names if f"{name} is not set" not in str(error.value)] == []
