"""Loads and validates a configuration file, and derives a configuration for each database.

Relative paths are resolved against the directory of the file. All errors of a file are reported at
once, each with its line.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import socket
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tidelog.config.models import OUTPUTS, SECTIONS, Config
from tidelog.config.source import SOURCES, SourceSection
from tidelog.errors import ConfigError
from tidelog.kinds.adapters import OUTPUT_KINDS, SOURCE_KINDS, Registry
from tidelog.kinds.sections import SecretUrl, Section, StateUrl, add_sections, section_of
from tidelog.outputs.base.sections import DeadLetterSection, OutputSection, StepSection

KeyPath = tuple[str | int, ...]
# A configuration, the path of a ``tidelog.yaml``, or the contents of one.
AnyConfig = Config | Mapping[str, Any] | str | Path

# ${NAME} must be set, ${NAME:-default} may be unset, $${ is a literal ${.
_VARIABLE = re.compile(r"(\$\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|(\$\{)")
_UNSET = "unset-variable-{name}"
"""The placeholder; long enough for a token."""
_USER_INFO = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/]*@")


@dataclass(slots=True)
class MarkedData:
    """The data of a file, with its lines.

    Attributes:
        data: mappings, lists and scalars.
        lines: the 1-based line of each value by its path; a mapping's value has the line of its
            key.
        interpolated: the paths whose text came from a variable, and may be secret.
        unset: the variables that are not set, in sections that nobody reads: a sentence for each.
    """

    data: Any = None
    unset: list[str] = field(default_factory=list)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    interpolated: set[KeyPath] = field(default_factory=set)

    def line(self, path: KeyPath) -> int:
        """Return the line of ``path``, or of the nearest part of it that the file has."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(
    text: str, file_name: str, environ: Mapping[str, str], unread: Collection[str] = ()
) -> MarkedData:
    """Parse ``text`` and fill in variables from ``environ``.

    In the sections ``unread`` a variable may be unset: see `load_config`.

    Raises:
        ConfigError: a syntax error, a duplicate key, a variable that is not set; each with
            ``file_name`` and line. All missing variables are named at once.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        reader = _Reader(loader, file_name, environ, unread)
        if node is not None:
            reader.marked.data = reader.read(node, (), ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file_name}:{mark.line + 1}" if mark else file_name
        hint = _NEEDS_QUOTES if _BARE_EXCLUSION.search(text) else ""
        raise ConfigError(f"{where}: not valid YAML: {_yaml_problem(error)}{hint}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file_name}: not valid YAML: {error}") from None
    finally:
        loader.dispose()
    if reader.problems:
        raise ConfigError("\n".join(reader.problems))
    return reader.marked


_BARE_EXCLUSION = re.compile(r"[\s\[,]![\w*]+\.")
_NEEDS_QUOTES = '; a text with ! in front needs quotes, as "!public.audit"'


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "syntax error"
    return f"{error.context}, {problem}" if error.context else problem


class _Reader:
    """Converts YAML nodes to data, and fills in variables."""

    def __init__(
        self,
        loader: yaml.SafeLoader,
        file_name: str,
        environ: Mapping[str, str],
        unread: Collection[str],
    ) -> None:
        self.unread = unread
        self.loader = loader
        self.file_name = file_name
        self.environ = environ
        self.marked = MarkedData()
        self.problems: list[str] = []

    def read(self, node: yaml.Node, path: KeyPath, parents: tuple[int, ...]) -> Any:
        line = node.start_mark.line + 1
        self.marked.lines.setdefault(path, line)
        if id(node) in parents:
            raise ConfigError(f"{self.file_name}:{line}: an alias refers to what contains it")
        parents = (*parents, id(node))
        if isinstance(node, yaml.MappingNode):
            return {
                key: self.read(value, (*path, key), parents)
                for key, value in self._entries(node, path)
            }
        if isinstance(node, yaml.SequenceNode):
            return [
                self.read(item, (*path, index), parents) for index, item in enumerate(node.value)
            ]
        value = self.loader.construct_object(node, deep=True)
        return self._fill_in(value, path, line) if isinstance(value, str) else value

    def _entries(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[str, yaml.Node]]:
        seen: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                self.problems.append(f"{self.file_name}:{line}: a key must be a plain word")
            elif key in seen and key != "<<":
                self.problems.append(
                    f"{self.file_name}:{line}: {key!r} is given twice, first on line {seen[key]}"
                )
            else:
                seen[key] = line
        self.loader.flatten_mapping(node)
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                self.marked.lines[(*path, key_node.value)] = key_node.start_mark.line + 1
                yield key_node.value, value_node

    def _fill_in(self, text: str, path: KeyPath, line: int) -> str:
        user_info = _USER_INFO.match(text)
        encode_before = user_info.end() if user_info else 0

        def replacement(match: re.Match[str]) -> str:
            escaped, name, default, malformed = match.group(1, 2, 3, 4)
            if escaped:
                return "${"
            if malformed:
                self.problems.append(
                    f"{self.file_name}:{line}: ${{ does not start a variable; "
                    "write ${NAME} or ${NAME:-default}, or $${ for a literal ${"
                )
                return ""
            value: str | None = self.environ.get(name, default)
            if value is None:
                optional = bool(path) and path[0] in self.unread
                (self.marked.unset if optional else self.problems).append(
                    f"{self.file_name}:{line}: environment variable {name} is not set; "
                    f"export it, or write ${{{name}:-default}}"
                )
                value = _UNSET.format(name=name) if optional else ""
            self.marked.interpolated.add(path)
            # A password is inserted as it is; in a URL's user:password@ it must be percent-encoded.
            return quote(value, safe="") if match.start() < encode_before else value

        return _VARIABLE.sub(replacement, text)


def load_config(
    path: str | Path, environ: Mapping[str, str] | None = None, *, unread: Collection[str] = ()
) -> Config:
    """Read ``path`` and fill in ``${NAME}`` from ``environ``.

    Args:
        path: the file.
        environ: None: the process's environment; ``HOSTNAME`` is always known, because shells do
            not export it.
        unread: the sections that the caller does not read. There a variable may be unset, and is
            filled in by a placeholder: `tidelog status` needs no token of the web page.

    Raises:
        ConfigError: names file and line of every error.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `tidelog init {path}` writes one") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if environ is None:
        environ = {"HOSTNAME": socket.gethostname(), **os.environ}
    config = parse_config(text, str(path), path.parent, environ, unread)
    config._file = str(path)
    return config


def as_config(given: AnyConfig) -> Config:
    """Return a configuration as it is, load that of a path, or parse the contents of a file.

    Raises:
        ConfigError: as `load_config` does.
    """
    if isinstance(given, Config):
        return given
    if isinstance(given, Mapping):  # JSON is YAML
        return parse_config(json.dumps(given, default=str), "configuration", Path(), os.environ)
    return load_config(given)


def parse_config(
    text: str,
    file_name: str,
    base: Path,
    environ: Mapping[str, str],
    unread: Collection[str] = (),
) -> Config:
    """Like `load_config`, from a text; relative paths are below ``base``."""
    marked = read_yaml(text, file_name, environ, unread)
    if not isinstance(marked.data, dict):
        raise ConfigError(f"{file_name}:1: expected the sections source, log, outputs, …")
    new = add_sections(OUTPUT_KINDS, OutputSection, OUTPUTS)
    if add_sections(SOURCE_KINDS, SourceSection, SOURCES) or new:
        Config.model_rebuild(force=True)
    try:
        config = Config.model_validate(marked.data, context={"base": base})
    except ValidationError as error:
        problems = [
            (marked.line(_place(details)), _explain(details, marked)) for details in error.errors()
        ]
    else:
        return config.with_variables(marked.interpolated)
    if marked.unset:  # a placeholder may be no valid value
        raise ConfigError("\n".join(marked.unset))
    raise ConfigError("\n".join(f"{file_name}:{line}: {text}" for line, text in sorted(problems)))


# pydantic's error type → our message, with the values of its context
_EXPLANATIONS = {
    "missing": "is missing",
    "string_type": "expected a text (put it in quotes)",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping of options",
    "path_type": "expected a path",
    "literal_error": "expected {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must not be empty",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
}

# Options that may have secrets, or mappings whose values may, if the file has them in plain text.
SECRET_OPTIONS = frozenset(
    (
        *(
            "api_key",
            "catalog",
            "conf",
            "endpoint",
            "headers",
            "metrics_token",
            "options",
            "password",
            "remote",
        ),
        *("salt", "schema_token", "settings", "storage_options", "token", "url", "viewer_token"),
    )
)


def _explain(details: ErrorDetails, marked: MarkedData) -> str:
    """Describe one problem. Values are shown only where they can't be secret."""
    location, context = _place(details), details.get("ctx", {})
    name = dotted(location)
    if details["type"] == "extra_forbidden":
        return f"{name}: unknown key{_did_you_mean(details['loc'])}"
    if details["type"] == "union_tag_invalid":
        return f"{name}: {_unusable(location, str(context['tag']))}"
    if details["type"] == "union_tag_not_found":
        return f"{name}.kind: is missing; expected {_kinds(location)}"
    if details["type"] == "value_error":
        explanation = str(context["error"])
    elif details["type"] == "list_type":
        explanation = f"expected a list, such as {_list_example(details['loc'])}"
    elif details["type"] in _EXPLANATIONS:
        explanation = _EXPLANATIONS[details["type"]].format(**context)
        if context.get("min_length", 1) > 1 and details["input"]:
            # For pydantic a short secret is "too short", as a list is.
            unit = "characters" if isinstance(details["input"], str) else "entries"
            explanation = f"must have at least {context['min_length']} {unit}"
    else:
        explanation = details["msg"]
    given = details["input"]
    shown = isinstance(given, (str, int, float)) and location not in marked.interpolated
    if shown and location and not SECRET_OPTIONS.intersection(location):
        given = SecretUrl(given).redacted if isinstance(given, str) else given
        explanation += f", not {given!r}"
    return f"{name}: {explanation}" if name else explanation


def _place(details: ErrorDetails) -> tuple[str | int, ...]:
    """Return the path in the file: pydantic adds the kind after ``source`` and ``outputs[n]``."""
    location = details["loc"]
    if details["type"] == "union_tag_invalid":
        return (*location, "kind")
    if len(location) > 1 and location[0] == "source" and location[1] in SOURCES:
        return ("source", *location[2:])
    if len(location) > 2 and location[0] == "outputs" and location[2] in OUTPUTS:
        location = (*location[:2], *location[3:])
    return location


def _kinds(location: tuple[str | int, ...]) -> str:
    known = OUTPUTS if location[0] == "outputs" else SOURCES
    *first, last = (repr(kind) for kind in known)
    return f"{', '.join(first)} or {last}"


def _unusable(location: tuple[str | int, ...], kind: str) -> str:
    """Explain why a kind is unusable: a plugin may have it, and be broken."""
    outputs = location[0] == "outputs"
    registry: Registry[Any] = OUTPUT_KINDS if outputs else SOURCE_KINDS
    if kind in registry.others:
        try:
            section_of(registry, kind, OutputSection if outputs else SourceSection)
        except ConfigError as error:
            return str(error)
    near = difflib.get_close_matches(kind, OUTPUTS if outputs else SOURCES, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"expected {_kinds(location)}, not {kind!r}{hint}"


def dotted(location: tuple[str | int, ...]) -> str:
    """Return an option's name as in messages: ``outputs[0].url``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _did_you_mean(location: tuple[str | int, ...]) -> str:
    """Return a hint for an unknown key; ``location``: pydantic's, with the source's kind."""
    section, unknown = _section_at(location[:-1]), str(location[-1])
    kinds: Mapping[str, type[Section]] = OUTPUTS if section in OUTPUTS.values() else SOURCES
    if section in kinds.values():
        for kind, model in kinds.items():
            if unknown in _options(model):
                return f"; {unknown!r} is an option of kind {kind!r}"
    if "tables" in _options(section) and re.search(
        "(exclude.*|drop_?)columns?|column.*exclude", unknown
    ):
        if "exclude_columns" in _options(section):
            return "; did you mean 'exclude_columns'?"
        if "steps" in _options(section):
            return "; an output leaves columns out by a step: steps: [{drop: [COLUMN]}]"
    if "tables" in _options(section) and re.search("exclude(_?tables?)?$|exclude_?list$", unknown):
        return '; write what is left out in tables, as "!public.audit"'
    near = difflib.get_close_matches(unknown, _options(section), n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    for other, model in SECTIONS.items():
        if unknown in model.model_fields and model is not section:
            return f"; {unknown!r} belongs under {other!r}"
    return f"; known are {', '.join(_options(section))}"


def _list_example(location: tuple[str | int, ...]) -> str:
    """Return the example of the option's reference. ``location``: pydantic's, with the kind."""
    field = _section_at(location[:-1]).model_fields.get(str(location[-1]))
    examples = None if field is None else field.examples
    return json.dumps(examples[0]) if examples else "[a, b]"


def _options(model: type[Section]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _section_at(location: tuple[str | int, ...]) -> type[Section]:
    if not location:
        return Config
    if location[0] == "source" and len(location) > 1:
        return _inner(SOURCES[str(location[1])], location[2:])
    if location[0] == "outputs" and len(location) > 2:
        model: Any = OUTPUTS[str(location[2])]
        if len(location) > 3:  # a section inside an output
            lists = {"steps": StepSection, "dead_letter": DeadLetterSection}
            model = lists.get(str(location[3])) or _inner(model, location[3:])
        return model  # type: ignore[no-any-return]
    return _inner(SECTIONS[str(location[0])], location[1:])


def _inner(section: type[Section], location: tuple[str | int, ...]) -> type[Section]:
    """Return the section of an option that has just one, such as ``control.rest``."""
    field = section.model_fields.get(str(location[0])) if location else None
    if field is None:
        return section
    kinds = [
        each for each in get_args(field.annotation) or [field.annotation] if each is not NoneType
    ]
    if len(kinds) != 1 or not (isinstance(kinds[0], type) and issubclass(kinds[0], Section)):
        return section
    return _inner(kinds[0], location[1:])


# A configuration for each database of ``source.databases``.

_PLAIN: Final = re.compile(r"[a-z0-9_]{1,30}")
_LONGEST_SLOT: Final = 63


def databases_of(config: Config) -> list[str]:
    """Return the databases of ``source.databases``; empty: the configuration has one database."""
    return list(config.source.database_names)


def database_config(config: Config, database: str) -> Config:
    """Return the configuration of one of the databases of ``config``.

    Raises:
        ConfigError: it is not one of ``source.databases``.
    """
    names = databases_of(config)
    if database not in names:
        known_names = f"they are {', '.join(names)}" if names else "there are none"
        raise ConfigError(f"{database!r} is not in source.databases: {known_names}")
    source: Any = config.source
    label = label_of(database)
    slot = _slot(source.slot, label)
    own_source = source.model_copy(
        update={
            "databases": [],
            "url": SecretUrl(_url(source.url.reveal(), database)),
            "slot": slot,
        }
    )
    file = config.control.notification_file
    signals, kafka = config.control.signal_file, config.control.signal_kafka
    if kafka is not None and kafka.key is not None:
        kafka = kafka.model_copy(update={"key": f"{kafka.key}_{label}"})
    otlp = config.control.otlp
    if otlp is not None and otlp.service_name is not None:
        # Otherwise two databases of one name would share one series.
        otlp = otlp.model_copy(update={"service_name": f"{otlp.service_name}_{label}"})
    control = config.control.model_copy(
        update={
            "notification_file": file and file.with_name(_with_label(file.name, label)),
            "signal_file": signals and signals.with_name(_with_label(signals.name, label)),
            "signal_kafka": kafka,
            "otlp": otlp,
        }
    )
    log = config.log.model_copy(update={"path": f"{config.log.path.rstrip('/')}/{label}"})
    state = config.state.model_copy(update={"url": _state_url(config.state.url, label)})
    changed = {"source": own_source, "control": control, "log": log, "state": state}
    chosen = config.model_copy(update=changed)
    chosen._database = database
    return chosen


def config_by_database(config: Config) -> dict[str, Config]:
    """Return the configurations by database; with one database: itself, under an empty name."""
    names = databases_of(config)
    return {name: database_config(config, name) for name in names} if names else {"": config}


def one_database_config(config: Config) -> Config:
    """Return ``config``. Raises ConfigError if it has several databases."""
    names = databases_of(config)
    if names:
        raise ConfigError(
            f"the configuration is of the databases {', '.join(names)}: this works on one of them. "
            "On the command line name it before the command, `tidelog --database "
            f"{names[0]} …`; in a program take `tidelog.database_config`"
        )
    return config


def label_of(database: str) -> str:
    """Return the database's label in names of slots, directories and files; each has its own."""
    if _PLAIN.fullmatch(database):
        return database
    plain = re.sub(r"[^a-z0-9_]", "_", database.lower())[:20]
    return f"{plain}_{hashlib.sha256(database.encode()).hexdigest()[:8]}"


def _slot(slot: str, label: str) -> str:
    name = f"{slot}_{label}"
    if len(name) <= _LONGEST_SLOT:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_SLOT - 9]}_{digest}"


def _url(url: str, database: str) -> str:
    if "://" not in url:
        escaped = database.replace("\\", "\\\\").replace("'", "\\'")
        return f"{url} dbname='{escaped}'"  # libpq uses the last one
    parts = urlsplit(url)
    options = [(k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True) if k != "dbname"]
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    # By hand: urlunsplit omits the slashes before an empty host.
    return f"{parts.scheme}://{parts.netloc}/{quote(database, safe='')}{query}"


def _with_label(file: str, label: str) -> str:
    stem, dot, suffix = file.rpartition(".")
    return f"{stem}-{label}.{suffix}" if dot and stem else f"{file}-{label}"


def _state_url(url: StateUrl, label: str) -> StateUrl:
    """Return the database's state URL: ``…/state.db`` → ``…/state-shop.db``.

    PostgreSQL: a part of the one table, which stays in the schema that is never captured; else
    ``…/path/shop``, as the event log's path.
    """
    place, asked, query = url.reveal().partition("?")
    if place.startswith("postgresql:"):
        return url.with_options({"part": label})
    if place.startswith("sqlite:"):
        folder, _, file = place.rpartition("/")
        return StateUrl(f"{folder}/{_with_label(file, label)}{asked}{query}")
    return StateUrl(f"{place.rstrip('/')}/{label}{asked}{query}")
