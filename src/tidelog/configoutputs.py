"""``outputs`` of ``tidelog.yaml``: one model for each kind, told apart by ``kind``.

A new kind is a model here, derived from `OutputSection`, listed in `OUTPUTS` and `AnyOutput`, and a
factory in `tidelog.runtime.outputs`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, model_validator

from tidelog.configtypes import (
    Bytes,
    Duration,
    Location,
    Milliseconds,
    PostgresName,
    SecretUrl,
    Section,
    TablePattern,
)


class DeadLetter(Section):
    """Where records go that a destination rejects."""

    path: Location = Field(
        description="Directory or URL; JSON lines with output, table, version and reason (no "
        "values), one file for each task that had any.",
        examples=["./data/dead-letters"],
    )


class Step(Section):
    """One transform. Exactly one of the actions; they apply in the order they are listed."""

    tables: list[TablePattern] = Field(
        default=["*.*"], min_length=1, description="Of which captured tables."
    )
    select: list[str] | None = Field(default=None, description="Keep these columns only.")
    drop: list[str] | None = Field(default=None, description="Leave these columns out.")
    rename: dict[str, str] | None = Field(default=None, description="Old name: new name.")
    filter: str | None = Field(
        default=None,
        description="A condition in Spark SQL. Where rows are kept by key, a row that no longer "
        "meets it is deleted; of change events those that don't meet it are left out, but deletes "
        "and truncates never.",
        examples=["country = 'DE'"],
    )
    cast: dict[str, str] | None = Field(default=None, description="Column: Spark SQL type.")
    compute: dict[str, str] | None = Field(
        default=None,
        description="Column (new or there): expression in Spark SQL.",
        examples=[{"total": "price * quantity"}],
    )
    mask: dict[str, str] | None = Field(
        default=None, description="Column: the text that takes the place of each value."
    )
    hash: list[str] | None = Field(
        default=None, description="Columns whose values are replaced by their SHA-256."
    )
    salt: str = Field(default="", description="Put before each value that is hashed.")
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
    def _one_action(self) -> Step:
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

SchemaPolicy = Literal["evolve", "lenient", "ignore", "fail"]
Order = Literal["key", "total", "none"]
_NAME = r"^[A-Za-z0-9_-]{1,64}$"


class OutputSection(Section):
    """What all kinds have."""

    kind: str
    name: str
    tables: list[TablePattern] = Field(
        default=["*.*"], min_length=1, description="Which of the captured tables to write."
    )


class ExecutorSection(OutputSection):
    """What all kinds have that are written from executors."""

    steps: list[Step] = Field(default=[], description="Transforms, in order; see *steps*.")
    on_schema_change: SchemaPolicy = Field(
        default="evolve",
        description="Where a table's columns change. `evolve`: added columns are added, types "
        "widened, anything else stops the output. `lenient`: what can't be followed is left as it "
        "is. `ignore`: the columns stay those of the beginning. `fail`: stop.",
    )
    dead_letter: DeadLetter | None = Field(
        default=None,
        description="Records that the destination rejects go there. Unset: the first one stops the "
        "pipeline.",
    )
    parallelism: int = Field(
        default=0, ge=0, le=1024, description="Tasks that write at once. 0: as Spark has cores."
    )


class DeltaOutput(OutputSection):
    """Delta tables, one for each source table, kept by MERGE (docs/outputs/delta.md)."""

    kind: Literal["delta"] = Field(description="The kind of output.")
    name: str = Field(
        default="delta",
        pattern=_NAME,
        description="Names the output in its checkpoint and in the Delta transaction log: keep it "
        "for as long as the output's tables live.",
    )
    path: Location = Field(
        description="Directory or URL; the table `public.orders` goes to `<path>/public/orders`.",
        examples=["./data/lake"],
    )
    steps: list[Step] = Field(default=[], description="Transforms, in order; see *steps*.")
    on_schema_change: SchemaPolicy = Field(
        default="evolve",
        description="Where a table's columns change. `evolve`: added columns are added, types "
        "widened, anything else stops the output. `lenient`: what can't be followed is left as it "
        "is. `ignore`: the columns stay those of the beginning. `fail`: stop.",
    )
    deletes: Literal["hard", "soft"] = Field(
        default="hard",
        description="`hard`: a deleted row is removed. `soft`: it stays as it was last, with "
        "`_deleted` true.",
    )
    partition_by: dict[TablePattern, list[str]] = Field(
        default={},
        description="By table or pattern, the columns that the copy is partitioned by; for good.",
        examples=[{"public.events": ["day"]}],
    )
    cluster_by: dict[TablePattern, Annotated[list[str], Field(min_length=1, max_length=4)]] = Field(
        default={},
        description="By table or pattern, the columns of Delta's liquid clustering, which OPTIMIZE "
        "lays rows out by. May be changed.",
        examples=[{"public.orders": ["customer_id"]}],
    )
    optimize_every: Duration | None = Field(
        default=None,
        description="After so long the small files of tables that were written are rewritten as "
        "large ones (OPTIMIZE), between two batches. Unset: never.",
        examples=["1h"],
    )
    vacuum_after: Duration | None = Field(
        default=None,
        description="With `optimize_every`: then files are removed that no version of the last so "
        "long has (VACUUM). At least a week. Unset: never.",
        examples=["7d"],
    )
    parallelism: int = Field(default=2, ge=1, le=256, description="Tables that are merged at once.")

    @model_validator(mode="after")
    def _vacuum_is_safe(self) -> DeltaOutput:
        if self.vacuum_after is None:
            return self
        if self.optimize_every is None:
            raise ValueError("vacuum_after needs optimize_every")
        if self.vacuum_after < timedelta(days=7):
            raise ValueError("vacuum_after: readers may still need younger files; at least 7d")
        return self


class DebeziumModes(Section):
    """How format `debezium` writes values that JSON has no type for; named as Debezium's properties
    (docs/reference/debezium.md).
    """

    decimal_handling_mode: Literal["string", "precise", "double"] = Field(
        default="string", description="Of decimals."
    )
    time_precision_mode: Literal[
        "microseconds",
        "adaptive",
        "adaptive_time_microseconds",
        "connect",
        "nanoseconds",
        "isostring",
    ] = Field(default="microseconds", description="Of dates and times.")
    binary_handling_mode: Literal["base64", "bytes", "base64-url-safe", "hex"] = Field(
        default="base64", description="Of bytes; `bytes` is `base64` in JSON."
    )


_DEBEZIUM = Field(
    default=None,
    description="How format `debezium` writes decimals, times and bytes. Unset: by default.",
)


class PythonOutput(ExecutorSection):
    """Your own: a class that writes Arrow batches on executors (docs/how-to/your-own-output.md)."""

    kind: Literal["python"] = Field(description="The kind of output.")
    name: str = Field(
        default="python",
        pattern=_NAME,
        description="Names the output's progress in the state store: keep it.",
    )
    class_: str = Field(
        alias="class",
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="`module:Class`, importable by driver and executors.",
        examples=["shop.search:SearchIndex"],
    )
    options: dict[str, Any] = Field(
        default={},
        description="Keyword arguments of the class.",
        examples=[{"url": "http://search:9200"}],
    )
    delivery: Literal["keyed", "ordered"] = Field(
        default="keyed",
        description="`keyed`: the newest state of each key of a batch. `ordered`: every change.",
    )
    order: Order = Field(
        default="key",
        description="Of `ordered` delivery: `key`: a key's changes in order; `total`: all in one "
        "task; `none`: as it comes.",
    )
    format: Literal["rows", "debezium", "flat", "cloudevents"] = Field(
        default="rows",
        description="Of `ordered` delivery: `rows`: columns; else messages with key and value.",
    )


class KafkaOutput(ExecutorSection):
    """Change events as messages, a topic for each table (docs/outputs/kafka.md)."""

    kind: Literal["kafka"] = Field(description="The kind of output.")
    name: str = Field(
        default="kafka",
        pattern=_NAME,
        description="Names the output's progress in the state store: keep it.",
    )
    servers: str = Field(
        min_length=1,
        description="Brokers to begin with, separated by commas.",
        examples=["kafka1:9092,kafka2:9092"],
    )
    topic: str = Field(
        default="{namespace}.{name}",
        min_length=1,
        description="Name of each table's topic; `{namespace}` and `{name}` stand for the "
        "source's, `{table}` for the name that a step `route` gives. Characters that topics can't "
        "have become `_`.",
    )
    format: Literal["debezium", "flat", "cloudevents"] = Field(
        default="debezium", description="Of the messages' values."
    )
    debezium: DebeziumModes | None = _DEBEZIUM
    tombstones: bool = Field(
        default=True, description="After a delete, a message with its key and no value."
    )
    order: Order = Field(
        default="key",
        description="`key`: a key's changes in order. `total`: all in one task, in the log's "
        "order. `none`: as it comes.",
    )
    create_topics: bool = Field(
        default=True, description="Create topics that are not there. `false`: stop."
    )
    partitions: int | None = Field(
        default=None, ge=1, description="Of topics that are created. Unset: as brokers have it."
    )
    replication: int | None = Field(
        default=None, ge=1, description="Of topics that are created. Unset: as brokers have it."
    )
    compact: bool = Field(default=False, description="Create topics with `cleanup.policy=compact`.")
    transactions: bool = Field(
        default=False,
        description="Exactly once for readers with `isolation.level=read_committed`: each task's "
        "messages are a transaction.",
    )
    settings: dict[str, SecretStr] = Field(
        default={},
        description="Settings of librdkafka, for security and tuning. All are treated as secrets.",
        examples=[
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "tidelog",
                "sasl.password": "${KAFKA_PASSWORD}",
            }
        ],
    )


class FilesOutput(ExecutorSection):
    """Every change as a record in files by table and date (docs/outputs/files.md)."""

    kind: Literal["files"] = Field(description="The kind of output.")
    name: str = Field(
        default="files",
        pattern=_NAME,
        description="Names the output's progress and its files: keep it.",
    )
    path: Location = Field(
        description="Directory, or a URL: `s3://`, `gs://`, `abfs://`, `hdfs://`.",
        examples=["./data/activity"],
    )
    layout: str = Field(
        default="table={table}/date={date}",
        min_length=1,
        description="Directories below `path`: `{table}` is the name that a step `route` gives, by "
        "default the source's; `{namespace}`, `{name}` the source's; `{date}`, `{year}`, "
        "`{month}`, `{day}`, `{hour}` of the commit, in UTC.",
        examples=["{namespace}/{name}/date={date}"],
    )
    format: Literal["parquet", "json"] = Field(default="parquet", description="`json`: JSON lines.")
    values: Literal["typed", "json"] = Field(
        default="typed",
        description="Of Parquet's columns `key`, `before`, `after`: `typed`: structs of the "
        "table's columns. `json`: text, so that all tables have the same columns.",
    )
    compression: Literal["zstd", "snappy", "gzip", "none"] | None = Field(
        default=None, description="Unset: Parquet's is `zstd`, JSON's none. JSON takes `gzip` only."
    )
    file_bytes: Bytes = Field(
        default=256 << 20, ge=1 << 20, description="A file of about this size is closed."
    )

    @model_validator(mode="after")
    def _compression_fits(self) -> FilesOutput:
        if self.format == "json" and self.compression in ("zstd", "snappy"):
            raise ValueError("compression of JSON is gzip or none")
        return self


class DocumentPart(Section):
    """Of a document: what another table contributes."""

    table: str = Field(
        min_length=1, description="The captured table.", examples=["shop.order_items"]
    )
    name: str = Field(
        alias="as",
        pattern=r"^[^_./][^./]*$",
        description="The member of the document that holds its row, or the list of its rows.",
        examples=["items"],
    )
    key: list[str] = Field(
        min_length=1,
        description="Its columns that hold the root's key, in that order; of its own key, which "
        "may have more: then its rows are a list.",
        examples=[["order_id"]],
    )


class JoinedDocument(Section):
    """Documents that several tables contribute to, in an index of their own."""

    index: str = Field(min_length=1, description="Name of the alias.", examples=["orders"])
    root: str = Field(
        min_length=1,
        description="The captured table whose rows the documents are; its columns are theirs.",
        examples=["shop.orders"],
    )
    parts: list[DocumentPart] = Field(min_length=1, description="What other tables contribute.")

    @model_validator(mode="after")
    def _tables_differ(self) -> JoinedDocument:
        tables = [self.root, *(part.table for part in self.parts)]
        names = [part.name for part in self.parts]
        if len(set(tables)) < len(tables) or len(set(names)) < len(names):
            raise ValueError("a document's tables, and the names of its parts, differ")
        return self


class OpenSearchOutput(ExecutorSection):
    """Rows as documents, an index for each table (docs/outputs/opensearch.md)."""

    kind: Literal["opensearch"] = Field(description="The kind of output.")
    name: str = Field(
        default="opensearch",
        pattern=_NAME,
        description="Names the output's progress in the state store: keep it.",
    )
    urls: list[Annotated[str, Field(pattern=r"^https?://[^@\s]+$")]] = Field(
        min_length=1,
        description="The cluster's nodes to send to, without user and password.",
        examples=[["https://search1:9200", "https://search2:9200"]],
    )
    user: str | None = Field(default=None, description="For basic authentication.")
    password: SecretStr | None = Field(
        default=None, description="For basic authentication.", examples=["${SEARCH_PASSWORD}"]
    )
    headers: dict[str, SecretStr] = Field(
        default={},
        description="Sent with every request. All are treated as secrets.",
        examples=[{"Authorization": "ApiKey ${SEARCH_KEY}"}],
    )
    ca_file: str | None = Field(
        default=None, description="Certificates of authorities, PEM, on driver and executors."
    )
    index: str = Field(
        default="{namespace}_{name}",
        min_length=1,
        description="Name of each table's alias, which is what to search; `{namespace}` and "
        "`{name}` stand for the source's, `{table}` for the name that a step `route` gives. In "
        "lower case; characters that indices can't have become `_`.",
    )
    create_indices: bool = Field(
        default=True, description="Create indices that are not there. `false`: stop."
    )
    settings: dict[str, Any] = Field(
        default={},
        description="Settings of indices that are created.",
        examples=[{"number_of_shards": 3, "number_of_replicas": 1, "refresh_interval": "5s"}],
    )
    mappings: dict[TablePattern, dict[str, dict[str, Any]]] = Field(
        default={},
        description="By table or pattern, by column: OpenSearch mappings in place of the default.",
        examples=[{"public.products": {"name": {"type": "text", "analyzer": "german"}}}],
    )
    documents: list[JoinedDocument] = Field(
        default=[],
        description="Tables that share documents, instead of an index for each; see *documents*.",
    )
    tombstone_retention: Duration = Field(
        default=timedelta(days=7),
        description="How long the version of a deleted row is kept, as a hidden document. Longer "
        "than any task may hang.",
        examples=["7d"],
    )
    bulk_bytes: Bytes = Field(
        default=4 << 20,
        ge=1,
        le=64 << 20,
        description="About the size of a bulk request, two of which a task has under way.",
    )


class HttpOutput(ExecutorSection):
    """Change events posted to an API in batches (docs/outputs/http.md)."""

    kind: Literal["http"] = Field(description="The kind of output.")
    name: str = Field(
        default="http",
        pattern=_NAME,
        description="Names the output's progress, and is a part of each request's key: keep it.",
    )
    url: SecretUrl = Field(
        description="Where requests go; `{namespace}`, `{name}` stand for the source's table, "
        "`{table}` for the name that a step `route` gives.",
        examples=["https://api.example.com/events/{table}"],
    )
    method: Literal["POST", "PUT", "PATCH"] = Field(default="POST", description="Of requests.")
    token: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="Sent as `Authorization: Bearer`.",
        examples=["${API_TOKEN}"],
    )
    headers: dict[str, SecretStr] = Field(
        default={},
        description="Sent with each request. All are treated as secrets.",
        examples=[{"X-Api-Key": "${API_KEY}"}],
    )
    format: Literal["debezium", "flat", "cloudevents"] = Field(
        default="debezium", description="Of the events."
    )
    debezium: DebeziumModes | None = _DEBEZIUM
    body: Literal["array", "ndjson"] = Field(
        default="array", description="Of a request: a JSON array of events, or an event a line."
    )
    order: Literal["key", "total"] = Field(
        default="key",
        description="`key`: a key's changes in order. `total`: one request after the other, all "
        "in the log's order.",
    )
    connections: int = Field(
        default=4,
        ge=1,
        le=256,
        description="Requests of a table that are under way at once. A key's go one after the "
        "other.",
    )
    batch_rows: int = Field(default=500, ge=1, description="Events in a request at most.")
    batch_bytes: Bytes = Field(
        default=1 << 20, ge=1, le=64 << 20, description="Size of a request, before gzip, at most."
    )
    gzip: bool = Field(default=False, description="Compress requests (`Content-Encoding: gzip`).")
    timeout_ms: Milliseconds = Field(
        default=30_000,
        ge=1,
        description="To connect, and for each part of the answer.",
        examples=["30s"],
    )
    retry_for_ms: Milliseconds = Field(
        default=60_000,
        ge=0,
        description="How long a task tries a request again. Then the batch fails, and the pipeline "
        "tries that again.",
        examples=["60s"],
    )
    ca_file: str | None = Field(
        default=None, description="Certificates of authorities, PEM, on driver and executors."
    )


class DatabaseSection(ExecutorSection):
    """What outputs into tables of databases have in common."""

    deletes: Literal["hard", "soft"] = Field(
        default="hard",
        description="`hard`: rows that the source deletes are deleted. `soft`: they stay, with "
        "`_tidelog_deleted` true.",
    )
    batch_rows: int = Field(
        default=50_000,
        ge=1,
        le=10_000_000,
        description="As many rows of a table are brought over in one transaction, about.",
    )


class PostgresOutput(DatabaseSection):
    """Tables of PostgreSQL, kept equal to the source's by upserts (docs/outputs/postgres.md)."""

    kind: Literal["postgres"] = Field(description="The kind of output.")
    name: str = Field(
        default="postgres",
        pattern=_NAME,
        description="Names the output's progress in the state store and in the database: keep it.",
    )
    url: SecretUrl = Field(
        description="Connection URL, as libpq reads it. The password is never printed.",
        examples=["postgresql://tidelog:${PGPASSWORD}@db:5432/copy"],
    )
    schema_: PostgresName | None = Field(
        default=None,
        alias="schema",
        description="Schema of tables that no step routes. Unset: named as in the source.",
        examples=["shop"],
    )
    own_schema: PostgresName = Field(
        default="tidelog", description="Schema of our own tables, as of deleted keys."
    )


class MySqlOutput(DatabaseSection):
    """Tables of MySQL or MariaDB, kept equal to the source's by upserts (docs/outputs/mysql.md)."""

    kind: Literal["mysql"] = Field(description="The kind of output, MySQL and MariaDB.")
    name: str = Field(
        default="mysql",
        pattern=_NAME,
        description="Names the output's progress in the state store and in the database: keep it.",
    )
    url: SecretUrl = Field(
        description="Connection URL, with the options for TLS that the sources' have. The password "
        "is never printed.",
        examples=["mysql://tidelog:${MYSQL_PASSWORD}@db:3306/copy"],
    )
    database: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Database of tables that no step routes. Unset: named as the source's schema "
        "or database.",
        examples=["shop"],
    )
    own_database: str = Field(
        default="tidelog",
        min_length=1,
        max_length=64,
        description="Database of our own tables, as of deleted keys.",
    )


OUTPUTS: dict[str, type[OutputSection]] = {
    "delta": DeltaOutput,
    "files": FilesOutput,
    "http": HttpOutput,
    "kafka": KafkaOutput,
    "opensearch": OpenSearchOutput,
    "python": PythonOutput,
    "postgres": PostgresOutput,
    "mysql": MySqlOutput,
}

AnyOutput = Annotated[
    MySqlOutput
    | PostgresOutput
    | DeltaOutput
    | FilesOutput
    | HttpOutput
    | PythonOutput
    | KafkaOutput
    | OpenSearchOutput,
    Field(discriminator="kind"),
]
