"""``tidelog.yaml``: the models, and how a file becomes a `Config`.

Relative paths are resolved against the directory of the file. Everything wrong in a file is
reported at once, each with its line.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from tidelog.adapters import OUTPUT_KINDS, SOURCE_KINDS
from tidelog.brought import add_sections, section_of
from tidelog.config.file import MarkedData, read_yaml
from tidelog.config.source import SOURCES, AnySource, PostgresSourceSection, SourceBase
from tidelog.errors import ConfigError
from tidelog.eventlog.storage.opening import is_url
from tidelog.model.dump_options import DumpOptions
from tidelog.outputs.registry import (
    OUTPUTS,
    AnyOutput,
    DeadLetter,
    DeltaSection,
    OutputSection,
    StepSection,
)
from tidelog.registry import Registry
from tidelog.sections import (
    Bytes,
    Duration,
    LocalPath,
    Location,
    LogPlace,
    Milliseconds,
    Section,
    as_text,
    base_directory,
)
from tidelog.state.opening import checked_url

# ---------------------------------------------------------------- models

Option = Annotated[SecretStr, BeforeValidator(as_text)]


class Log(Section):
    """The event log."""

    path: LogPlace = Field(
        description="Directory of the segments, or where they are on an object store: "
        "`s3://bucket/prefix`, `gs://…`, `az://…`.",
        examples=["./data/log"],
    )
    storage_options: dict[str, Option] = Field(
        default={},
        description="Of the object store, such as `endpoint`, `region`, `access_key_id`, "
        "`secret_access_key`, `allow_http`; what is not given is taken from the environment "
        "(`AWS_…`, `GOOGLE_…`, `AZURE_…`). All are treated as secrets.",
        examples=[{"region": "eu-central-1"}],
    )
    retention: Duration | None = Field(
        default=None,
        description="Remove segments older than this, but none that an output still has to read. "
        "Unset: keep all.",
        examples=["7d"],
    )
    retention_cap: Duration | None = Field(
        default=None,
        description="Remove segments older than this even if an output has not read them; that "
        "output then stops with an error and has to be dumped again. Unset: never.",
        examples=["30d"],
    )
    rollup_bytes: Bytes = Field(
        default=64 * 2**20,
        ge=0,
        description="Merge small old segments into ones of about this size. 0: never.",
        examples=["64MiB"],
    )

    @model_validator(mode="after")
    def _cap_not_below_retention(self) -> Log:
        if self.retention and self.retention_cap and self.retention_cap < self.retention:
            raise ValueError("retention_cap is shorter than retention")
        return self

    @model_validator(mode="after")
    def _options_have_a_store(self) -> Log:
        if self.storage_options and not is_url(self.path):
            raise ValueError("storage_options are for an object store; path is a local directory")
        return self


class State(Section):
    """Where progress of dumps, commands and leadership are kept."""

    url: str = Field(
        default="sqlite:///data/state.db",
        description="`sqlite:///relative/path` or `sqlite:////absolute/path`, or a URL of "
        "[another store](../how-to/extend.md). Captures that stand by for each other share it.",
        examples=["sqlite:///data/state.db"],
    )

    @field_validator("url")
    @classmethod
    def _url_of_a_store(cls, url: str, info: ValidationInfo) -> str:
        return checked_url(url, base_directory(info))


class CaptureSection(Section):
    """How log capture buffers and flushes."""

    flush_bytes: Bytes = Field(
        default=4 * 2**20,
        ge=1024,
        le=2**30,
        description="Write a segment when this much is buffered.",
        examples=["4MiB"],
    )
    flush_ms: Milliseconds = Field(
        default=50,
        ge=1,
        le=60_000,
        description="Write a segment when its oldest record has waited this long.",
        examples=["50ms"],
    )
    buffer_bytes: Bytes = Field(
        default=32 * 2**20,
        ge=4096,
        description="Output buffer between reader and writer. When it is full the reader waits.",
        examples=["32MiB"],
    )
    lease_ms: Milliseconds = Field(
        default=10_000,
        ge=1_000,
        description="Leadership ends this long after its last renewal; a capture that stands by "
        "takes over then.",
        examples=["10s"],
    )

    @model_validator(mode="after")
    def _buffer_holds_a_flush(self) -> CaptureSection:
        if self.buffer_bytes < self.flush_bytes:
            raise ValueError("buffer_bytes is smaller than flush_bytes")
        return self


class Dump(DumpOptions, Section):
    """How dumps read; `tidelog set` changes these at run time, but for the last three."""

    statement_timeout_ms: Milliseconds = Field(
        default=600_000,
        ge=1,
        description="A chunk's SELECT that takes longer is ended; the chunk is tried again, then "
        "halved.",
        examples=["10m"],
    )


class Rest(Section):
    """The HTTP interface for commands and status, served by the capture that leads."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8490, ge=0, le=65_535, description="0: a free one.")
    token: SecretStr = Field(
        min_length=8,
        description="Every request carries it as `Authorization: Bearer …`. Never printed.",
        examples=["${TIDELOG_TOKEN}"],
    )
    schema_token: SecretStr | None = Field(
        default=None,
        min_length=8,
        description="With this token schemas of Avro messages can be read, and nothing else. "
        "Unset: `token` is needed for that, too.",
        examples=["${TIDELOG_SCHEMA_TOKEN}"],
    )


class Control(Section):
    """Channels for commands and notifications beside the command line."""

    rest: Rest | None = Field(default=None, description="Unset: no HTTP interface.")
    signal_file: LocalPath | None = Field(
        default=None,
        description="File whose appended lines are commands, as Debezium's file channel: one JSON "
        "object `{id, type, data}` a line.",
        examples=["./signals.jsonl"],
    )
    notifications: list[Literal["log", "file", "eventlog"]] = Field(
        default=["eventlog"],
        description="Where notifications of dumps go: the process's own log lines, a file of JSON "
        "lines, control records of the event log.",
    )
    notification_file: LocalPath | None = Field(
        default=None, description="For `file`.", examples=["./notifications.jsonl"]
    )

    @model_validator(mode="after")
    def _file_is_named(self) -> Control:
        if "file" in self.notifications and self.notification_file is None:
            raise ValueError("notifications to a file need notification_file")
        return self


class Pipeline(Section):
    """How Spark runs."""

    name: str = Field(
        default="pipeline",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Names it among those that read the event log, which keeps for each what it "
        "has not read. Pipelines that read one log side by side have names, and checkpoints, of "
        "their own.",
    )
    checkpoint: Location = Field(
        default="./data/checkpoint",
        description="Directory of the streaming queries' checkpoints, one for each output. It may "
        "be lost: outputs know what they have.",
    )
    trigger_ms: Milliseconds = Field(
        default=1_000, ge=0, description="Start a micro-batch at most this often.", examples=["1s"]
    )
    batch_bytes: Bytes = Field(
        default=512 * 2**20,
        ge=2**20,
        description="Event log bytes that one micro-batch reads at most.",
        examples=["512MiB"],
    )
    master: str | None = Field(
        default=None,
        description="Spark master. Unset: `local[*]`, or what `spark-submit` sets.",
        examples=["local[4]"],
    )
    conf: dict[str, str | int | float | bool] = Field(
        default={},
        description="Further Spark settings, passed on as they are.",
        examples=[{"spark.driver.memory": "4g"}],
    )


# Validated like a section of the file, so that default paths are resolved too.
_EMPTY: Any = {}


class Config(Section):
    """All of ``tidelog.yaml``."""

    source: AnySource = Field(
        description="The database that is captured; `kind` decides its options."
    )
    log: Log
    state: State = Field(default=_EMPTY)
    capture: CaptureSection = Field(default=_EMPTY)
    dump: Dump = Field(default=_EMPTY)
    control: Control = Field(default=_EMPTY)
    pipeline: Pipeline = Field(default=_EMPTY)
    outputs: list[AnyOutput] = Field(
        default=[], description="Destinations of the pipeline; none: capture alone."
    )

    @model_validator(mode="after")
    def _names_of_outputs_differ(self) -> Config:
        names = [output.name for output in self.outputs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"{names.count(name)} outputs are named {name!r}; give each a name"
                )
        return self


# ---------------------------------------------------------------- from a file


def load_config(path: str | Path, environ: Mapping[str, str] | None = None) -> Config:
    """Read ``path`` and fill in ``${NAME}`` from ``environ`` (None: the process's).

    Raises:
        ConfigError: names file and line of everything that is wrong.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `tidelog check` needs a configuration") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_config(text, str(path), path.parent, os.environ if environ is None else environ)


def parse_config(text: str, file_name: str, base: Path, environ: Mapping[str, str]) -> Config:
    """Like `load_config`, from a text; relative paths are below ``base``."""
    marked = read_yaml(text, file_name, environ)
    if not isinstance(marked.data, dict):
        raise ConfigError(f"{file_name}:1: expected the sections source, log, outputs, …")
    new = add_sections(OUTPUT_KINDS, OutputSection, OUTPUTS)
    if add_sections(SOURCE_KINDS, SourceBase, SOURCES) or new:
        Config.model_rebuild(force=True)
    try:
        return Config.model_validate(marked.data, context={"base": base})
    except ValidationError as error:
        problems = [
            (marked.line(_place(details)), _explain(details, marked)) for details in error.errors()
        ]
    raise ConfigError("\n".join(f"{file_name}:{line}: {text}" for line, text in sorted(problems)))


# pydantic's error type → ours, with the values of its context
_EXPLANATIONS = {
    "missing": "is missing",
    "string_type": "expected a text (put it in quotes)",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "list_type": "expected a list, such as [a, b]",
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

# Options that hold secrets, or mappings whose values are; whoever writes them into the file itself.
_SECRET = frozenset(
    (
        *("api_key", "catalog", "conf", "headers", "password", "schema_token", "settings"),
        *("storage_options", "token", "url"),
    )
)


def _explain(details: ErrorDetails, marked: MarkedData) -> str:
    """One problem as text. Values are shown only where they can't be secret."""
    location, context = _place(details), details.get("ctx", {})
    name = _dotted(location)
    if details["type"] == "extra_forbidden":
        return f"{name}: unknown key{_did_you_mean(details['loc'])}"
    if details["type"] == "union_tag_invalid":
        return f"{name}: {_unusable(location, str(context['tag']))}"
    if details["type"] == "union_tag_not_found":
        return f"{name}.kind: is missing; expected {_kinds(location)}"
    if details["type"] == "value_error":
        explanation = str(context["error"])
    elif details["type"] in _EXPLANATIONS:
        explanation = _EXPLANATIONS[details["type"]].format(**context)
        if context.get("min_length", 1) > 1 and details["input"]:
            # To pydantic a secret is short as a list is.
            unit = "characters" if isinstance(details["input"], str) else "entries"
            explanation = f"must have at least {context['min_length']} {unit}"
    else:
        explanation = details["msg"]
    given = details["input"]
    shown = isinstance(given, (str, int, float)) and location not in marked.interpolated
    if shown and location and not _SECRET.intersection(location):
        explanation += f", not {given!r}"
    return f"{name}: {explanation}" if name else explanation


def _place(details: ErrorDetails) -> tuple[str | int, ...]:
    """Where in the file: pydantic puts a kind behind ``source`` and ``outputs[n]``."""
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
    """Why a kind is none: it may be one that another distribution brings, and be broken."""
    outputs = location[0] == "outputs"
    registry: Registry[Any] = OUTPUT_KINDS if outputs else SOURCE_KINDS
    if kind in registry.others:
        try:
            section_of(registry, kind, OutputSection if outputs else SourceBase)
        except ConfigError as error:
            return str(error)
    return f"expected {_kinds(location)}, not {kind!r}"


def _dotted(location: tuple[str | int, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _did_you_mean(location: tuple[str | int, ...]) -> str:
    """``location`` as pydantic gives it, with the source's kind."""
    section, unknown = _section_at(location[:-1]), str(location[-1])
    kinds: Mapping[str, type[Section]] = OUTPUTS if section in OUTPUTS.values() else SOURCES
    if section in kinds.values():
        for kind, model in kinds.items():
            if unknown in _options(model):
                return f"; {unknown!r} is an option of kind {kind!r}"
    near = difflib.get_close_matches(unknown, _options(section), n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    for other, model in SECTIONS.items():
        if unknown in model.model_fields and model is not section:
            return f"; {unknown!r} belongs under {other!r}"
    return f"; known are {', '.join(_options(section))}"


def _options(model: type[Section]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


SECTIONS: dict[str, type[Section]] = {
    "source": PostgresSourceSection,
    "log": Log,
    "state": State,
    "capture": CaptureSection,
    "dump": Dump,
    "control": Control,
    "pipeline": Pipeline,
    "outputs": DeltaSection,
}


def _section_at(location: tuple[str | int, ...]) -> type[Section]:
    if not location:
        return Config
    if location[0] == "source" and len(location) > 1:
        return SOURCES[str(location[1])]
    if location[0] == "outputs" and len(location) > 2:
        found: Any = OUTPUTS[str(location[2])]
        if len(location) > 3:  # a section inside an output
            found = {"steps": StepSection, "dead_letter": DeadLetter}.get(str(location[3]), found)
        return found  # type: ignore[no-any-return]
    return SECTIONS[str(location[0])]
