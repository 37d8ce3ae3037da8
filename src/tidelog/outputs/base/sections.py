"""The options that sections of several kinds of outputs share."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, WithJsonSchema, model_validator

from tidelog.eventlog.storage import provide_options
from tidelog.kinds.adapters import FORMATTERS
from tidelog.kinds.sections import (
    EXCLUDED_TABLES,
    Location,
    Section,
    StorageOption,
    TablePattern,
    TablePatterns,
    TypesSection,
    add_excluded,
)
from tidelog.model.option_values import (
    ALL_TEXT,
    BigintUnsignedMode,
    BinaryMode,
    ColumnTypes,
    DecimalMode,
    EventFormat,
    JsonFormat,
    TimeMode,
    is_object_store,
)
from tidelog.model.schema import TableName
from tidelog.outputs.base.hadoop_settings import store_options

_UNSET: Any = ""  # becomes an empty secret by validation


def _check_header_value(value: SecretStr) -> SecretStr:
    """Checks a header's value by RFC 9110, 5.5, without letters beyond ASCII. Clients raise an
    invalid value only when they send it, which looks like a network error.
    """
    text = value.get_secret_value()
    if re.fullmatch(r"[\t -~]*", text) is None or text != text.strip():
        raise ValueError(
            "what is sent in a header is one line of printable ASCII characters, with no space at "
            "its ends; is there a line end at the end of a file or variable?"
        )
    return value


HeaderValue = Annotated[SecretStr, AfterValidator(_check_header_value)]
HeaderName = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
Headers = dict[HeaderName, HeaderValue]


class DeadLetterSection(Section):
    """Where rejected records go."""

    path: Location = Field(
        description="Directory or URL; JSON lines with output, table, version and reason "
        "(no values).",
        examples=["./data/dead-letters"],
    )


class StepSection(Section):
    """One transform, with exactly one of the actions; steps apply in the order they are listed.

    Names of columns are exact: `v` and `V` are two. A step that does not fit a table is refused at
    the start. Where a record lacks a column (unchanged TOAST), a column that a step computes from
    it is missing too: a copy keeps the value that it has.
    """

    tables: TablePatterns = Field(
        default=["*.*"],
        min_length=1,
        description="The captured tables, as [patterns](table-patterns.md); one with `!` in front "
        "excludes.",
    )
    select: list[str] | None = Field(default=None, description="Keep these columns only.")
    drop: list[str] | None = Field(default=None, description="Leave these columns out.")
    rename: dict[str, str] | None = Field(
        default=None, description="Old name: new name; all at once, so that two may swap."
    )
    filter: str | None = Field(
        default=None,
        description="A condition in Spark SQL. Where rows are kept by key, a row that no "
        "longer meets it is deleted. Change events that don't meet it are left out, except "
        "deletes and truncates. If a record lacks columns that the condition reads, the row "
        "stays as it is, or is read again from the source.",
        examples=["country = 'DE'"],
    )
    cast: dict[str, str] | None = Field(
        default=None,
        description="Column: Spark SQL type. It must keep values of a key distinct. A value "
        "that does not fit leaves out the table, or stops an output of changes; `try_cast` in "
        "`compute` makes it NULL.",
    )
    compute: dict[str, str] | None = Field(
        default=None,
        description="Column (new or existing): expression in Spark SQL. It reads the columns as "
        "they were before the step, and those that earlier expressions of the step add.",
        examples=[{"total": "price * quantity"}],
    )
    mask: dict[str, str] | None = Field(
        default=None, description="Column: the text that replaces each value."
    )
    hash: list[str] | None = Field(
        default=None, description="Columns whose values are replaced by their SHA-256."
    )
    salt: SecretStr = Field(
        default=_UNSET,
        description="Put before each value that is hashed. Never printed: whoever has it finds "
        "short values by trying.",
        examples=["${TIDELOG_SALT}"],
    )
    route: str | None = Field(
        default=None,
        description="The destination's name of the table; `{namespace}` and `{name}` stand for the "
        "source's.",
        examples=["sales.{name}"],
    )
    python: str | None = Field(
        default=None,
        description="`module:function`, called with a DataFrame, returns one. It keeps the columns "
        "of the key and those that begin with `_tidelog_`.",
    )

    @model_validator(mode="after")
    def _one_action(self) -> StepSection:
        given = [name for name in STEP_ACTIONS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a step has one action of {', '.join(STEP_ACTIONS)}; this one has {len(given)}"
            )
        return self

    @property
    def action(self) -> str:
        """The name of the one action."""
        return next(name for name in STEP_ACTIONS if getattr(self, name) is not None)


STEP_ACTIONS = (
    "select", "drop", "rename", "filter", "cast", "compute", "mask", "hash", "route", "python",
)  # fmt: skip


def _format_type(ours: Any) -> Any:
    """Return the type of a format's name: one of Tidelog's, or one of another distribution."""

    def checked(name: str) -> str:
        known = (*get_args(ours), *FORMATTERS.others)
        if name not in known:
            *others, last = (repr(each) for each in known)
            raise ValueError(f"expected {', '.join(others)} or {last}")
        return name

    schema = {"anyOf": [{"enum": list(get_args(ours))}, {"type": "string"}]}
    return Annotated[str, AfterValidator(checked), WithJsonSchema(schema)]


if TYPE_CHECKING:
    FormatName = str
    JsonFormatName = str
    RowsOrFormatName = str
else:
    FormatName = _format_type(EventFormat)
    JsonFormatName = _format_type(JsonFormat)
    RowsOrFormatName = _format_type(Literal["rows", EventFormat])

SchemaPolicy = Literal["evolve", "lenient", "ignore", "fail"]
Order = Literal["key", "total", "none"]
KeylessPolicy = Literal["append", "skip", "fail"]


def name_field(
    default: str, description: str = "Names the output's progress in the state store: keep it."
) -> Any:
    """Return the field ``name`` of a kind; ``default`` applies where the user gives none."""
    return Field(default=default, pattern=r"^[A-Za-z0-9_-]{1,64}$", description=description)


class OutputSection(Section):
    """The options of all kinds of outputs."""

    copies: ClassVar[Literal["by_output", "as_source"] | None] = None
    """What reads its copies for `tidelog verify`: the output (`tidelog.ext.ReadableOutput`), or a
    source of its kind at its ``url``. None: it keeps none.
    """
    spark_jars: ClassVar[Literal["delta", "iceberg"] | None] = None
    """The lake whose jars Spark needs for it, or may need."""

    kind: str
    name: str
    tables: TablePatterns = Field(
        default=["*.*"],
        min_length=1,
        description="Which of the captured tables to write, as [patterns](table-patterns.md); one "
        "with `!` in front excludes.",
        examples=[["public.*", "!public.audit"]],
    )
    exclude: list[TablePattern] = EXCLUDED_TABLES

    _excluded = model_validator(mode="before")(add_excluded)

    def keeps_copy(self, table: TableName) -> bool:
        """Return whether it keeps the rows of the source's table, and not its changes."""
        del table
        return self.copies is not None

    def option_apart(self, url: str, schemes: Collection[str], tables: Sequence[str]) -> str | None:
        """Return the option to set so that it does not write to captured tables of the source;
        None: it does not, as far as can be seen.

        Args:
            url: the source's.
            schemes: of URLs that may lead to the source.
            tables: patterns of the captured tables.
        """
        del url, schemes, tables
        return None

    def calls_java(self) -> bool:
        """Return whether this process calls Java libraries for it, also over Spark Connect."""
        return False

    def keyless_of(self, table: TableName) -> KeylessPolicy | None:
        """Return what the output does with a table if it has no key; None: it needs none."""
        return None

    def with_source_types(self, types: TypesSection) -> Self:
        """Return the section with the option ``types`` of the source, where it sets none itself."""
        del types
        return self


class SteppedSection(OutputSection):
    """The options of all kinds whose rows go through transforms."""

    steps: list[StepSection] = Field(default=[], description="Transforms, in order; see *steps*.")
    on_schema_change: SchemaPolicy = Field(
        default="evolve",
        description="Where a table's columns change. `evolve`: added columns are added, types "
        "widened; a table with any other change is left out, except that an output of changes "
        "stops. `lenient`: what can't be followed is left as it is. `ignore`: the columns stay "
        "those of the beginning. `fail`: stop.",
    )


class ExecutorSection(SteppedSection):
    """The options of all kinds that write from executors."""

    dead_letter: DeadLetterSection | None = Field(
        default=None,
        description="Records that the destination rejects go there. Unset: the first one leaves "
        "out its table; where every change is delivered, it stops the output.",
    )
    parallelism: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="Tasks that write at once. 0: as many as Spark has cores.",
    )


class TypedSection(ExecutorSection):
    """The options of all kinds that have arrays and others as text unless they are asked for."""

    types: TypesSection | None = Field(
        default=None,
        description="Types of arrays, `hstore` and others, in new columns; see *types*. Unset: all "
        "are text.",
        examples=[{"arrays": "native"}],
    )

    def with_source_types(self, types: TypesSection) -> Self:
        return self.model_copy(update={"types": types.of_messages(self.types)})

    def column_types(self) -> ColumnTypes:
        """Return the types of columns; JSON is text."""
        found = ALL_TEXT if self.types is None else self.types.column_types()
        return replace(found, json="text")


class MessageSection(TypedSection):
    """The options of all kinds that write every change as a message of some format."""

    format: str
    types: TypesSection | None = Field(
        default=None,
        description="For formats `flat`, `cloudevents` and `avro_flat`: types of arrays, `hstore` "
        "and others, in new columns; see *types*. Unset: all are text.",
        examples=[{"arrays": "native"}],
    )

    def with_source_types(self, types: TypesSection) -> Self:
        return super().with_source_types(types) if self.format in TYPED_FORMATS else self

    @model_validator(mode="after")
    def _check_types(self) -> Self:
        if self.types is not None and self.format not in TYPED_FORMATS:
            raise ValueError(f"types: format {self.format} has the types of Debezium")
        if self.types is not None and self.types.json_ == "variant":
            raise ValueError("types: json: messages have no VARIANT: leave it text")
        return self


TYPED_FORMATS = ("flat", "cloudevents", "avro_flat")


class DebeziumSection(Section):
    """How format `debezium` writes values that JSON has no type for; named like Debezium's
    properties (docs/reference/debezium.md).
    """

    decimal_handling_mode: DecimalMode = Field(default="string", description="For decimals.")
    time_precision_mode: TimeMode = Field(
        default="microseconds", description="For dates and times."
    )
    binary_handling_mode: BinaryMode = Field(
        default="base64", description="For bytes; `bytes` is `base64` in JSON."
    )
    bigint_unsigned_handling_mode: BigintUnsignedMode = Field(
        default="long",
        description="For MySQL's BIGINT UNSIGNED: `long` is a JSON number, also above 2^63 - 1; "
        "`precise` is as `decimal_handling_mode` says.",
    )
    schemas_enable: bool = Field(
        default=False,
        description="Each key and value with its schema, as Kafka Connect's JSON converter "
        "writes them by default.",
    )
    extended_headers_enabled: bool = Field(
        default=True,
        description="Kafka's messages have headers of connector and task. They cost a third of "
        "the CPU of a message.",
    )


SkipOrFail = Literal["skip", "fail"]
KEYLESS: Any = Field(
    default="skip",
    description="What to do with a table that has no key. `skip`: it is left out, with a "
    "warning, until it has one. `fail`: stop.",
)

SkippedOperations = list[Literal["c", "u", "d", "t"]]
SKIPPED = Field(
    default=None,
    description="Changes that are left out, by `op`: `c`, `u`, `d`, `t`. Unset: `[t]` with "
    "format `debezium` or `avro`, as Debezium. A truncate empties a compacted topic in "
    "any case.",
    examples=[["t"], []],
)


DEBEZIUM = Field(
    default=None,
    description="How format `debezium` writes decimals, times and bytes. Unset: by default.",
)


# Options of all kinds that write files into a directory or an object store by themselves.


class StorageOptionsSection(Section):
    """A mixin for an `OutputSection`."""

    storage_options: dict[str, StorageOption] = Field(
        default={},
        description="Options of the object store, as in `log.storage_options`. Unset: what "
        "`fs.s3a.*`, `fs.azure.*` or `fs.gs.*` in `pipeline.conf` say. What neither says is taken "
        "from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`).",
        examples=[{"region": "eu-central-1"}],
    )

    _conf: dict[str, Any] = PrivateAttr(default_factory=dict)

    def options(self) -> dict[str, str]:
        """Return the options in clear text."""
        return {name: value.get_secret_value() for name, value in self.storage_options.items()}

    def with_pipeline_conf(self, conf: Mapping[str, Any]) -> Self:
        """Return the section with what it takes from ``pipeline.conf``. Raises ValueError, without
        values.
        """
        found = self.model_copy()
        found._conf = dict(conf)
        return found

    @property
    def pipeline_conf(self) -> Mapping[str, Any]:
        """Spark's settings, as the pipeline has them."""
        return self._conf


class FileStoreSection(StorageOptionsSection):
    """A mixin for an `OutputSection` that has one path."""

    path: Location

    @model_validator(mode="after")
    def _options_have_a_store(self) -> Self:
        if self.storage_options and not is_object_store(self.path):
            raise ValueError("storage_options are for an object store; path is a local directory")
        return self

    def with_pipeline_conf(self, conf: Mapping[str, Any]) -> Self:
        """See `StorageOptionsSection`: the options, if the section has none of its own."""
        found = super().with_pipeline_conf(conf)
        if found.storage_options or not is_object_store(found.path):
            return found
        options = store_options(found.path, conf)
        secret = {name: SecretStr(value) for name, value in options.items()}
        return found.model_copy(update={"storage_options": secret})

    def provide_options(self) -> None:
        """Make the options known to this process and the processes that it starts; to Spark's
        tasks, once `tidelog.spark.datasource.source.register` is called.
        """
        provide_options(self.path, self.options())
