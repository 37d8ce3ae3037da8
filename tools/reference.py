"""Write docs/reference from the code, or with --check report what is out of date."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer.main
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tidelog import cli
from tidelog.app.web.metrics import LEADING, METRICS
from tidelog.capture.dumps.state import DUMPS, TABLES
from tidelog.config import SECTIONS, Config
from tidelog.config.models import OUTPUTS
from tidelog.config.source import MySqlSourceSection
from tidelog.model.state_machine import Transitions
from tidelog.model.units import format_bytes, format_milliseconds
from tidelog.spark.datasource import options

sys.path.append(str(Path(__file__).parents[1]))
from tools.engine_reference import engine
from tools.failure_index import anchor
from tools.grafana import dashboard

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
DASHBOARD = ROOT / "docs" / "how-to" / "tidelog-dashboard.json"
SCHEMA = ROOT / "src" / "tidelog" / "config" / "tidelog.schema.json"
NOTE = "<!-- Written by `make docs` from the code; do not edit. -->\n"

CONFIGURATION_HEAD = """\
# Configuration

One YAML file, by custom `tidelog.yaml`. The same as a JSON schema for editors:
[tidelog.schema.json](../../src/tidelog/config/tidelog.schema.json); `tidelog init` names it in the file it writes.

```yaml
source: {kind: postgres, url: "postgresql://user:${PGPASSWORD}@host:5432/shop", tables: ["public.*"], snapshot: initial}
log:    {path: ./data/log, retention: 7d}
state:  {url: "sqlite:///data/state.db"}
outputs:
  - {kind: delta, path: ./data/lake, tables: ["public.*"]}
```

- **Paths** that are relative are below the directory of the file.
- **Variables**: `${NAME}` is replaced by the environment variable, `${NAME:-text}` by `text` if it is
  not set; `$${` is a literal `${`. Inside a URL's `user:password@` the value is percent-encoded, so
  a password is given as it is. `${HOSTNAME}` is the host's name also where the environment has none.
  A variable under `control` may be unset for commands that start no capture and serve no page, one
  under `outputs` for those that deliver and compare nothing: `tidelog status` needs no token.
- **Durations** are written `50ms`, `30s`, `15m`, `12h`, `7d`, `2w`, also `1h 30m`. Where a name ends
  in `_ms`, a bare number is milliseconds.
- **Sizes** are written `64KiB`, `4MiB`, `1GiB` (powers of 1024) or `500MB` (powers of 1000); a bare
  number is bytes.
- Everything wrong in a file is reported at once, each with its line; the exit code is 2.
- An option that names no type is a text, one that names no **default** is unset, or empty. Passwords, tokens and options of stores and clients are secrets: never printed.
"""


def configuration() -> Iterator[str]:
    yield NOTE + CONFIGURATION_HEAD
    sections: list[tuple[str, type[BaseModel]]] = [*SECTIONS.items()]
    sections.insert(1, ("source", MySqlSourceSection))
    sections += [("outputs", model) for kind, model in OUTPUTS.items() if kind != "delta"]
    lists = {"outputs", "dumps"}
    for name, model in sections:  # which grow by those that are nested in them
        for option, field in model.model_fields.items():
            below, is_list = nested(field.annotation)
            known = {each for _, each in sections}
            path = f"{name}.{field.alias or option}"
            sections += [(path, each) for each in dict.fromkeys(below) if each not in known]
            lists |= {path} if is_list else set()
    # Where each option was described first, so that no page section describes it again.
    described: dict[str, str] = {}
    for name, model in sections:
        several = " (a list)" if name in lists else ""
        tags = [tag for tag in ("kind", "type") if tag in model.model_fields]
        kinds = "".join(f", {tag} {kind_of(model, tag)}" for tag in tags)
        heading = f"`{name}`{several}{kinds}"
        about = re.sub(r"\s\(docs/[^)]*\)", "", inspect.cleandoc(model.__doc__ or ""))
        more = re.findall(r"docs/([\w/-]+\.md)", model.__doc__ or "")
        link = f" [More](../{more[0]})." if more else ""
        yield f"\n## {heading}\n\n{about}{link}\n\n"
        schema = model.model_json_schema()["properties"]
        shared: dict[str, list[str]] = {}
        options = sorted(model.model_fields.items(), key=lambda each: not each[1].is_required())
        for option, field in options:
            if option in tags:
                continue
            written = entry(option, field, schema[field.alias or option])
            first = described.setdefault(written, heading)
            if first == heading:
                yield written
            else:
                shared.setdefault(first, []).append(f"`{field.alias or option}`")
        if shared:
            parts = (
                f"{', '.join(names)} of [{short(first)}](#{anchor(first)})"
                for first, names in shared.items()
            )
            yield f"- Also {'; '.join(parts)}.\n"


def nested(annotation: Any) -> tuple[list[type[BaseModel]], bool]:
    """Return the sections that an option holds, and whether it is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation], False
    found: list[type[BaseModel]] = []
    if any(
        get_origin(part) is Literal for part in get_args(annotation)
    ):  # described with the option itself
        return found, False
    for part in get_args(annotation):
        found += nested(part)[0]
    return found, bool(found) and get_origin(annotation) is list


def entry(option: str, field: FieldInfo, schema: dict[str, Any]) -> str:
    """Return the list item of an option: type, default, meaning, example; values below it."""
    sentences = sentences_of(field.description or "")
    values = [text for text in sentences if VALUE.match(text)]
    if len(values) < 3:
        values = []
    meaning = " ".join(text for text in sentences if text not in values)
    default = default_of(option, field)
    type_ = type_of(option, schema)
    listed = {text.split("`")[1] for text in values}
    if listed and listed >= set(re.findall(r"`([^`]+)`", type_)):
        type_ = ""
    type_ = "" if type_ == "text" else type_
    facts = [type_, default if default == "required" else f"default {default}"]
    if default in ("unset", "`[]`", "`{}`"):
        facts.pop()
    if field.examples and not values and type_ not in ("", "duration", "size", "path"):
        shown = field.examples[0]
        text = shown if isinstance(shown, str) else json.dumps(shown)
        if f"`{text}`" != default and not text.startswith("${"):
            meaning += f" Example: `{text}`."
    in_brackets = ", ".join(fact for fact in facts if fact)
    about = f" ({in_brackets})" if in_brackets else ""
    below = "".join(f"  - {value}\n" for value in values)
    return f"- `{field.alias or option}`{about}: {meaning}".rstrip() + f"\n{below}"


def short(heading: str) -> str:
    """Return what tells a section from others: its kind, or its name."""
    return heading.rsplit("kind ", 1)[-1]


VALUE = re.compile(r"`[^`]+`: ")


SENTENCE = re.compile(r"(?<=[.:]) (?=[A-Z`\"\[])")


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text; what ends with a colon goes with the next one."""
    found: list[str] = []
    for part in SENTENCE.split(text):
        if found and found[-1].endswith(":"):
            found[-1] += f" {part}"
        else:
            found.append(part)
    return found


def kind_of(model: type[BaseModel], tag: str) -> str:
    schema = model.model_json_schema()["properties"][tag]
    return " or ".join(f"`{value}`" for value in schema.get("enum") or [schema["const"]])


def type_of(option: str, schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        schema, *others = [part for part in schema["anyOf"] if part.get("type") != "null"]
        if "const" in schema and others:
            return f"`{schema['const']}` or a mapping"
    if {"$ref", "oneOf"} & schema.keys():
        return "section, below"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return alternatives(schema["enum"])
    if isinstance(schema.get("type"), list):
        return "duration" if option.endswith("_ms") else "size"
    if schema.get("examples") == ["7d", "12h"]:
        return "duration"
    if schema.get("format") == "path":
        return "path"
    if schema["type"] == "array" and {"$ref", "oneOf"} & schema["items"].keys():
        return "list, below"
    if schema["type"] == "array":
        return "list"
    if schema["type"] == "integer":
        limits = [str(schema[limit]) for limit in ("minimum", "maximum") if limit in schema]
        return f"integer, {' to '.join(limits)}" if len(limits) == 2 else "integer"
    return {"string": "text", "object": "mapping", "boolean": "boolean"}[schema["type"]]


def alternatives(values: list[Any]) -> str:
    """Return the values as text: `a`, `b` or `c`."""
    *first, last = (f"`{value}`" for value in values)
    return f"{', '.join(first)} or {last}" if first else last


def default_of(option: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value == "":
        return "unset"
    if isinstance(value, timedelta):
        return f"`{format_milliseconds(round(value.total_seconds() * 1000))}`"
    if isinstance(value, int) and option.endswith("_bytes"):
        return f"`{format_bytes(value)}`"
    if isinstance(value, int) and option.endswith("_ms"):
        return f"`{format_milliseconds(value)}`" if value else "`0`"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


CLI_HEAD = """\
# Command line

Exit codes: 0 done; 1 failed, or `verify` and `demo` found a difference; 2 bad usage or configuration, or `check` found what has to be fixed;
130 interrupted. SIGINT and SIGTERM end `run`, `capture` and `pipeline` in order (exit 0): what was read is made durable first. A second one
ends the process at once, which is safe too. An output that has stopped ends no `run`; `pipeline` ends once all of its outputs have stopped,
with the code of the first one's error.

Of several commands:

- `CONFIG`, the first argument: the configuration file; by default `tidelog.yaml` in the current directory.
- `--json`: results go to stdout, one JSON document a line; errors are also written as `{"error": {"kind": …, "message": …}}`. Messages for people about
  errors go to stderr.
- `--table, -t TABLE`: `namespace.table`, `*` for any text, `!` in front to exclude; may be repeated. `--exclude TABLE` is the same as `--table '!TABLE'`.
- `--timeout SECONDS`: how long to wait until capture has handled it; by default 10, and 30 with `log:` state. The command stays queued after it.

`--log-level` (or `TIDELOG_LOG_LEVEL`) stands before the command, as does `--database`: where a configuration
has `source.databases`, `run` and `capture` take them all, every other command the one named. `TIDELOG_DEBUG=1` shows the full text of
unexpected errors, which may hold data of rows; without it only the place is shown. `TIDELOG_JARS` names
a directory for jars, `TIDELOG_MAVEN_REPOSITORY` the Maven repository to fetch them from, by its URL.
"""


COMMON = (
    "The configuration file; default: tidelog.yaml in the current directory.",
    "Write JSON, one document a line.",
    "How long to wait until capture has handled it; default: 10, and 30 with log: state.",
    "namespace.table, * for any text, '!' in front to exclude; may be repeated.",
    "As --table with '!' in front: all but this table, or those of --table; may be repeated.",
)
"""What several commands take: the head of the page describes it."""


def command_line() -> Iterator[str]:
    yield NOTE + CLI_HEAD
    group: Any = typer.main.get_command(cli.app)
    order = [
        command.name or getattr(command.callback, "__name__", "")
        for command in cli.app.registered_commands
    ]
    named = {name: group.commands[name] for name in order}
    for first, (_, seconds) in cli.GROUPS.items():
        commands = group.commands[first].commands
        named |= {f"{first} {second}": commands[second] for second in seconds}
    for name, command in named.items():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        flags = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
        names = {a.name: str(a.metavar or a.name.upper()) for a in arguments}
        names |= {a.name: f"[{names[a.name]}]" for a in arguments if not a.required}
        yield f"\n## `tidelog {name}`\n\n{command.help.strip()}\n"
        if [*names.values()] != ["[CONFIG]"]:
            yield f"\n```\n{' '.join(['tidelog', name, *names.values()])} [OPTIONS]\n```\n"
        items = [(f"`{names[a.name]}`", a.help, "") for a in arguments]
        for option in flags:
            if option.name == "help":
                continue
            spelled = ", ".join(option.opts)
            if option.metavar:
                spelled += f" {option.metavar}"
            shown = option.default is not None and option.default is not False
            default = f" Default: `{option.default}`." if shown else ""
            items.append((f"`{spelled}`", option.help, default))
        common = [name for name, about, _ in items if about in COMMON and name.startswith("`--")]
        own = [item for item in items if item[1] not in COMMON]
        if own or common:
            yield "\n" + "".join(f"- {name}: {about}{default}\n" for name, about, default in own)
        if common:
            yield f"- {', '.join(common)}\n"


SPARK_HEAD = """\
# Spark source

`format("tidelog")`, for `spark.readStream` and `spark.read`.
How to use it: [read in Spark](../how-to/read-in-spark.md). Names of options may be written in any case.

"""

SPARK_TAIL = """\

## Columns

`typed`, of one table:

| column | type | meaning |
|---|---|---|
| `op` | string | `c` create, `u` update, `d` delete, `r` row of a dump, `t` truncate |
| `before`, `after` | struct of the table's columns | NULL where there is no such image; what `before` holds is the [replica identity's](types.md#columns-that-a-record-does-not-carry) to say |
| `key` | struct | what rows are matched by |
| `version` | bigint | grows strictly over the whole log |
| `schema_version` | int | the version that the record was written under |
| `source` | struct | `table`, `position` (LSN), `ordinal`, `xid`, `commit_ts`, `origin` |
| `ts` | timestamp | of the commit; of a dump row: when it was read |
| `missing` | array of strings | columns of `after` that the record does not carry (unchanged TOAST) |

`events`, of one table, flat: `_tidelog_op`, `_tidelog_version`, the table's columns, `_tidelog_missing` (places of columns that the
record does not carry), `_tidelog_before` and `_tidelog_source` (`commit_ts` in microseconds). The columns are of the new row; of a
delete what is known of the old one, its key at least; of a truncate NULL. A change of the key is two rows of one version: the old
key's `d` and the new key's `c`. It is what [flows of declarative pipelines](../../examples/auto_cdc/README.md) take.

`envelope`, of all tables: `table`, `op`, `version`, `schema_version`, `ts`, and `key` and `value` as JSON,
[Debezium's](debezium.md).

`variant`, of all tables: `table`, `op`, `version`, `schema_version`, `ts`; `key`, `before` and `after` as VARIANT, objects whose
fields are the table's columns with their types; `source` and `missing` as in `typed`. What the record does not carry is a null of
the object, and named in `missing`.

`raw`, records as they lie in the log: `offset`, `kind`, `schema_id`, `position`, `ordinal`, `xid`, `commit_ts`, `payload`,
and `table` and `schema` (JSON). The [kinds](event-log-format.md#segments) are `insert`, `update`, `delete`, `truncate`,
`dump_row`, `absent`, `message` and `control`. The latter two have a JSON payload. A `control` record marks where the dump of a
table began or was complete, and comes with that table: [wait for a dump](../how-to/dump-a-table.md#wait-for-a-dump). A `message` belongs to
no table, and is given only without `table` and `tables`. It is of the application (`pg_logical_emit_message`); `tidelog log` prints it with `op` `m`; its content is
in base64. The other shapes leave it out.

`raw` and `segments` know the options `path`, `tables`, those of start and end, `maxBytesPerTrigger`, `maxRecordsPerTrigger`,
`partitions` and `partitionBytes`.

`segments`, what the log holds, without reading it: `first`, `next`, `table`, `schema_ids`, `rows`, `bytes`, and `control`, the
JSON of records that mark dumps.
"""


def spark_source() -> Iterator[str]:
    yield NOTE + SPARK_HEAD
    for name, meaning in options._NAMES.items():
        yield f"- `{name}`: {meaning}\n"
    yield SPARK_TAIL


STATES_HEAD = """\
# States of dumps

What a dump and its tables go through, as `tidelog status` shows it and as it is stored. Capture applies these very tables, and those of a table's run,
its chunks (`TABLE_RUNS`, `CHUNKS` in `tidelog.capture.dumps.state`) and their windows (`WINDOWS` in `tidelog.capture.windows`): what stands in none of
them is a mistake, and ends the session, which restarts from what is stored. [Why](../adr/0024-dumps-decide-under-a-lock-and-act-after-it.md);
how to pause, resume and cancel: [dump a table](../how-to/dump-a-table.md#a-large-dump-beside-a-busy-application).
"""


def dump_states() -> Iterator[str]:
    yield NOTE + STATES_HEAD
    table: Transitions[Any, Any]
    for table in (DUMPS, TABLES):
        yield f"\n## A {table.name}\n\n{table.about}\n"
        yield "\n"
        states: dict[tuple[Any, str, str], list[str]] = {}
        for row in table.rows:
            cells = (row.input.value, _state(row.then), row.effect)
            states.setdefault(cells, []).append(_state(row.state))
        for cells, of in states.items():
            happens, then, effect = cells
            yield f"- {', '.join(of)}, *{happens}* → {then}{f': {effect}' if effect else ''}\n"
        ends = ", ".join(_state(end) for end in type(table.start) if end in table.ends())
        yield f"\nIt begins as {_state(table.start)} and ends as {ends}.\n"
        if table.stays:
            yield "What comes late changes nothing:\n\n"
            late: dict[str, list[str]] = {}
            for state, several in table.stays:
                news = "; ".join(each.value for each in several)
                late.setdefault(news, []).append(_state(state))
            yield from (f"- {', '.join(of)}: {news}.\n" for news, of in late.items())


METRICS_HEAD = """# Metrics

`GET /metrics` of the [HTTP interface](../how-to/control.md#http) gives them to Prometheus, as text or OpenMetrics, and `control.otlp`
pushes the same by OpenTelemetry: [how to scrape, push and alert](../how-to/monitor.md).
All but `tidelog_leading` come from the process that leads. What is not known is left out, never 0. In brackets: kind and labels.

"""


def metrics() -> Iterator[str]:
    yield NOTE + METRICS_HEAD
    for metric in (LEADING, *METRICS):
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        facts = f"{metric.kind}; {labels}" if labels else metric.kind
        yield f"- `{metric.name}` ({facts}): {metric.about}\n"


def _state(state: Enum) -> str:
    text = state.value if isinstance(state, str) else state.name.lower().replace("_", " ")
    return f"`{text}`"


def pages() -> dict[Path, str]:
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    written = {
        "configuration.md": "".join(configuration()),
        "engine.md": NOTE + "".join(engine()),
        "cli.md": "".join(command_line()),
        "spark-source.md": "".join(spark_source()),
        "dump-states.md": "".join(dump_states()),
        "metrics.md": "".join(metrics()),
    }
    pages = {REFERENCE / name: text for name, text in written.items()}
    return {**pages, SCHEMA: json.dumps(schema, indent=2) + "\n", DASHBOARD: dashboard()}


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = 0
    for path, text in pages().items():
        present = path.read_text(encoding="utf-8") if path.exists() else ""
        if present == text:
            continue
        if not check:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
            continue
        stale = 1
        print(f"{path.relative_to(ROOT)} is out of date: run `make docs`")
        diff = difflib.unified_diff(present.splitlines(), text.splitlines(), lineterm="", n=0)
        print("\n".join(list(diff)[:20]))
    return stale


if __name__ == "__main__":
    sys.exit(main())
