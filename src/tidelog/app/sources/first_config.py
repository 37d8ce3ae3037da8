"""Writes a first configuration file: a source, its tables, and outputs."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

from tidelog.app.sources.kinds import source_kind
from tidelog.config import Config, parse_config
from tidelog.config.models import OUTPUTS
from tidelog.config.source import SOURCES
from tidelog.errors import ConfigError, UsageError
from tidelog.model.patterns import EXCLUDE, pattern_of
from tidelog.model.schema import TableName

PASSWORD = "TIDELOG_PASSWORD"  # noqa: S105 - a variable's name
# By the URL's scheme: a kind of this name, or the first that has the scheme.
_KINDS = {
    scheme: kind for kind, section in reversed(SOURCES.items()) for scheme in section.url_schemes
} | {kind: kind for kind in SOURCES}
_SHOWN = 20
_PLACES: Final = ("path", "url", "urls", "servers", "class")
"""The options of outputs that say where they write; each kind has one of them."""
_IN_FRONT: Final = "the answer"
SECRETS = {"password", "sslpassword"}
_KEY = re.compile(r"(?i)token|key|secret|auth|sig|code|pass|credential")
"""Options of a URL that are taken for secrets, such as those of an API."""
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


@dataclass(frozen=True, slots=True)
class FirstLocation:
    """A URL or directory.

    Attributes:
        text: what the file has: ``${NAME}`` in place of a password.
        secrets: the password, by the variable's name. Empty: the text had none, or a variable.
    """

    text: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class FirstSource:
    """The database to capture.

    Attributes:
        kind: as in the file.
        location: its URL.
        namespace: the one that the URL names; empty: all of the database.
    """

    kind: str
    location: FirstLocation
    namespace: str

    @property
    def section(self) -> dict[str, Any]:
        """The options that say which database it is."""
        return {"kind": self.kind, "url": self.location.text}


@dataclass(frozen=True, slots=True)
class FirstOutput:
    """One of the outputs.

    Attributes:
        kind: as in the file.
        name: the kind's own default, or with a number behind it if an output has that already.
        option: the option that says where it writes.
        location: that option's value.
    """

    kind: str
    name: str
    option: str
    location: FirstLocation

    @property
    def section(self) -> dict[str, Any]:
        """The options that the file has."""
        named = {} if self.name == _default_name(self.kind) else {"name": self.name}
        text = self.location.text
        return {"kind": self.kind, **named, self.option: [text] if self.option == "urls" else text}


def read_source(url: str) -> FirstSource:
    """Return the database of a URL; does not connect.

    Raises:
        UsageError: the kind of database is unknown, or the URL can't be used.
    """
    location = _location(url, PASSWORD)
    parts = urlsplit(url)
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        raise UsageError(f"expected {' or '.join(url_forms())}")
    named = unquote(parts.path.strip("/")) if SOURCES[kind].url_has_namespace else ""
    source = FirstSource(kind, location, named)
    _parsed(source, [])
    return source


def url_forms() -> list[str]:
    """Return the forms of the sources' URLs."""
    forms = dict.fromkeys(section.url_form for section in SOURCES.values() if section.url_form)
    return list(forms)


def find_tables(source: FirstSource) -> list[TableName]:
    """Return the tables of the database, or of its namespace that the URL names.

    Raises:
        SourceError, PreflightError: the database can't be reached, or refuses the login.
        MissingExtraError: its driver is not installed.
    """
    catalogue = source_kind(_parsed(source, [])).catalogue()
    try:
        tables = catalogue.tables(["*.*"])
    finally:
        catalogue.close()
    own = source.namespace
    here = [table for table in tables if own in ("", table.namespace)]
    return here or [table for table in tables if table.namespace.casefold() == own.casefold()]


def default_patterns(source: FirstSource, tables: Sequence[TableName]) -> list[str]:
    """Return patterns that select all of these tables, and those that join them later."""
    named = [*schemas_of(tables)] or [source.namespace]
    patterns = [pattern_of(TableName(name, "*")) if name else "*.*" for name in named]
    return patterns if len(patterns) <= _SHOWN else ["*.*"]


def chosen_patterns(given: Sequence[str], default: Sequence[str]) -> list[str]:
    """Return the patterns given; if they only exclude, the default ones without those tables."""
    if all(pattern.startswith(EXCLUDE) for pattern in given):
        return [*default, *given]
    return [*given]


def schemas_of(tables: Iterable[TableName]) -> dict[str, int]:
    """Return the number of tables in each schema (MySQL: database), by name."""
    return dict(sorted(Counter(table.namespace for table in tables).items()))


def output_kinds() -> dict[str, str]:
    """Return the option that says where it writes, for each kind of output; the first is usual."""
    return {
        kind: next(option for option in _PLACES if option in names)
        for kind, section in OUTPUTS.items()
        if (names := {field.alias or name for name, field in section.model_fields.items()})
        and names.intersection(_PLACES)
    }


def example_location(kind: str, others: Sequence[FirstOutput]) -> str:
    """Return a place for an output of this kind; a directory is another than those of the others.
    Raises KeyError: the kind is unknown.
    """
    option = output_kinds()[kind]
    named = {field.alias or name: field for name, field in OUTPUTS[kind].model_fields.items()}
    example = (named[option].examples or [""])[0]
    text = re.sub(r":\$\{\w+\}@", "@", str(example[0] if isinstance(example, list) else example))
    taken = option == "path" and text in {other.location.text for other in others}
    return f"./data/{kind}" if taken else text


def read_output(
    source: FirstSource, kind: str, location: str, others: Sequence[FirstOutput]
) -> FirstOutput:
    """Return an output of ``kind`` that writes to ``place``, beside ``others``.

    Raises:
        UsageError: the kind is unknown, or can't write to such a place.
    """
    kinds = output_kinds()
    if kind not in kinds:
        raise UsageError(f"expected {', '.join(kinds)}, not {kind!r}")
    if not location:
        raise UsageError(f"say where it writes, such as {kind}={example_location(kind, others)}")
    name = base = _default_name(kind)
    number = 1
    while name in {other.name for other in others}:
        number += 1
        name = f"{base}{number}"
    variable = f"TIDELOG_{name.upper().replace('-', '_')}_PASSWORD"
    output = FirstOutput(kind, name, kinds[kind], _location(location, variable))
    _parsed(source, [*others, output])
    return output


def with_password(url: str, password: str) -> str:
    """Return the URL with the password of its user, percent-encoded."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}:{quote(password, safe='')}@{host}"
    return urlunsplit(parts._replace(netloc=netloc))


def lacks_password(location: str) -> bool:
    """Return whether the place is a URL with a user, but no password."""
    parts = urlsplit(location)
    return bool(parts.username) and not parts.password


def _default_name(kind: str) -> str:
    return str(OUTPUTS[kind].model_fields["name"].get_default())


def _parsed(source: FirstSource, outputs: Sequence[FirstOutput]) -> Config:
    """Return the configuration. Raises ConfigError about what is wrong, without a line."""
    given = {
        "source": source.section,
        "log": {"path": "./data/log"},
        "outputs": [output.section for output in outputs],
    }
    secrets = secrets_of(source, outputs)
    try:
        return parse_config(json.dumps(given), _IN_FRONT, Path(), {**os.environ, **secrets})
    except ConfigError as error:
        raise ConfigError(re.sub(rf"(?m)^{_IN_FRONT}:1: ", "", str(error))) from None


def secrets_of(source: FirstSource, outputs: Sequence[FirstOutput]) -> dict[str, str]:
    """Return the passwords that are not in the file, by the names of their variables."""
    locations = [source.location, *(output.location for output in outputs)]
    return {name: value for location in locations for name, value in location.secrets.items()}


def variables_of(source: FirstSource, outputs: Sequence[FirstOutput]) -> list[str]:
    """Return the names of the variables that the file needs."""
    texts = [source.location.text, *(output.location.text for output in outputs)]
    return list(dict.fromkeys(re.findall(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", " ".join(texts))))


def _location(text: str, variable: str) -> FirstLocation:
    """Return the place with ``${variable}`` in place of its password, or of one that is missing if
    the environment has the variable.
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        raise UsageError("that is no URL; are the brackets of an address right?") from None
    if not parts.scheme:
        return FirstLocation(text)
    if SECRETS & {name.lower() for name in parse_qs(parts.query, keep_blank_values=True)}:
        raise UsageError(
            "give the password before the @ (user:password@host), so that it is kept out of "
            "the file; a key file with a password is for a configuration of your own"
        )
    if parts.username and not parts.password and variable in os.environ:
        user, _, host = parts.netloc.rpartition("@")
        netloc = f"{user.partition(':')[0]}:${{{variable}}}@{host}"
        text = urlunsplit(parts._replace(netloc=netloc))
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise UsageError(
            "an @ stands behind the host: write / ? # @ in a password as %2F %3F %23 %40"
        )
    query, secrets = parts.query, dict[str, str]()
    if parts.scheme in ("http", "https"):  # a database's options have names of files
        query, secrets = _without_keys(query, variable.removesuffix("PASSWORD"))
    netloc = parts.netloc
    if parts.password and not _VARIABLE.fullmatch(parts.password):
        user, _, host = netloc.rpartition("@")
        netloc = f"{user.partition(':')[0]}:${{{variable}}}@{host}"
        secrets[variable] = unquote(parts.password)
    if not secrets:
        return FirstLocation(text)
    return FirstLocation(urlunsplit(parts._replace(netloc=netloc, query=query)), secrets)


def _without_keys(query: str, prefix: str) -> tuple[str, dict[str, str]]:
    """Return the query of a URL with variables in place of tokens and keys, and their values as
    they were written. The variables' names begin with ``prefix``.
    """
    options, secrets = [], {}
    for option in query.split("&"):
        name, _, value = option.partition("=")
        if value and _KEY.search(name) and not _VARIABLE.fullmatch(value):
            variable = prefix + re.sub(r"\W", "_", unquote(name)).upper()
            secrets[variable] = value
            option = f"{name}=${{{variable}}}"
        options.append(option)
    return "&".join(options), secrets


def config_text(
    source: FirstSource, patterns: Sequence[str], outputs: Sequence[FirstOutput]
) -> str:
    """Return the text of the file, without passwords."""
    tables = json.dumps([each.replace("${", "$${") for each in patterns], ensure_ascii=False)
    schema = resources.files("tidelog.config") / "tidelog.schema.json"
    names = variables_of(source, outputs)
    needs = f"# Passwords are not in this file: export {' and '.join(names)}.\n" if names else ""
    return f"""\
# yaml-language-server: $schema={Path(str(schema)).as_uri()}
# Every option: docs/reference/configuration.md. `tidelog check` says what the database still needs.
{needs}
source:
  kind: {source.kind}
  url: {json.dumps(source.location.text, ensure_ascii=False)}
  tables: {tables}   # "!*.audit" excludes tables
  snapshot: initial         # the first start dumps all tables; no_data: only changes, dump later

log:
  path: ./data/log          # the event log; s3://bucket/path for several hosts

outputs:                    # kinds: {", ".join(OUTPUTS)}
{"".join(map(_output_text, outputs))}
# A dump that disturbs nobody: raise these as the database allows; `tidelog set` changes them while
# it runs.
dump:
  parallelism: 1
  rows_per_second: 20000
"""


def _output_text(output: FirstOutput) -> str:
    about = " ".join((OUTPUTS[output.kind].__doc__ or "").partition("\n\n")[0].split())
    comment = [f"# {line}" for line in textwrap.wrap(about, 94)]
    first, *others = (f"{name}: {_scalar(value)}" for name, value in output.section.items())
    lines = [*comment, f"- {first}", *(f"  {other}" for other in others)]
    return "".join(f"  {line}\n" for line in lines)


def _scalar(value: Any) -> str:
    """Return the value as YAML: without quotes where it is plainly a text."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_]{3,}\d*|\.{0,2}/[\w./-]+", value):
        return value
    return json.dumps(value, ensure_ascii=False)
