"""Outputs by kind: what makes each from its section of the configuration.

A new one of ours is a function here, which imports its adapter when it is called, a `_Kind` that
`tidelog.adapters` names, and a model in `tidelog.outputs.registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidelog.adapters import OUTPUT_KINDS
from tidelog.app.log_location import log_place
from tidelog.app.output_places import PLACES
from tidelog.config import Config
from tidelog.errors import MissingExtraError
from tidelog.outputs import registry as sections
from tidelog.ports import Output, OutputContext, TaskWriter
from tidelog.state.opening import open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.outputs.base.output import Delivery
    from tidelog.outputs.database.dialect import Dialect
    from tidelog.outputs.registry import ExecutorSection
    from tidelog.spark.formats.json_values import Handling
    from tidelog.spark.transforms import Step

S = TypeVar("S", bound="sections.OutputSection")

# A missing module → the pip extra that holds it.
_EXTRAS: Mapping[str, str] = {
    "confluent_kafka": "kafka",
    "httpx": "http",
    "opensearchpy": "opensearch",
    "pymysql": "mysql",
    "pyspark": "spark",
}


def make_outputs(config: Config, spark: SparkSession) -> list[Output]:
    """The outputs of the configuration, in its order.

    Raises MissingExtraError, which names the pip extra, if one needs what is not installed.
    """
    made: list[Output] = []
    try:
        made += [make_output(config, section, spark) for section in config.outputs]
    except BaseException:
        for output in made:
            output.close()
        raise
    return made


def make_output(config: Config, section: sections.OutputSection, spark: SparkSession) -> Output:
    """One output. Raises MissingExtraError."""
    context = OutputContext(
        spark, log_place(config), lambda: open_state(config.state.url), _Deliver(config, spark)
    )
    return OUTPUT_KINDS.get(section.kind).open(section, context)


@dataclass(frozen=True)
class _Deliver:
    """See `tidelog.ports.OutputContext`."""

    config: Config
    spark: SparkSession

    def __call__(
        self,
        section: ExecutorSection,
        make: Callable[[], TaskWriter],
        *,
        keyed: bool = True,
        order: str = "key",
        message_format: str = "rows",
    ) -> Output:
        from tidelog.outputs.base.made import MadeOutput

        delivery = delivery_of(section, keyed=keyed, order=order, message_format=message_format)
        state = open_state(self.config.state.url)
        return MadeOutput(self.spark, log_place(self.config), state, delivery, make)


def delivery_of(
    section: ExecutorSection, *, keyed: bool, order: str = "key", message_format: str = "rows"
) -> Delivery:
    """What all outputs that write from executors have in common.

    Args:
        section: the output's.
        keyed: deliver the newest state of keys; else every change.
        order: of every change: key, total or none.
        message_format: of every change: a formatter's name, or ``rows``.
    """
    from tidelog.outputs.base.output import Delivery
    from tidelog.outputs.base.rejections import JsonDeadLetters, StopAtRejection
    from tidelog.outputs.formatters import formatter

    letters = section.dead_letter
    return Delivery(
        section.name,
        tuple(section.tables),
        keyed=keyed,
        order=order,
        formatter=None if message_format == "rows" else formatter(message_format),
        steps=transform_steps(section),
        on_schema_change=section.on_schema_change,
        dead_letters=StopAtRejection() if letters is None else JsonDeadLetters(str(letters.path)),
        parallelism=section.parallelism,
    )


def transform_steps(section: sections.SteppedSection) -> tuple[Step, ...]:
    """The section's steps, for `tidelog.spark.transforms`."""
    from tidelog.spark.transforms import Step

    return tuple(
        Step(each.action, getattr(each, each.action), tuple(each.tables), each.salt)
        for each in section.steps
    )


def handling_of(section: Any) -> Handling:
    """The section's modes of format ``debezium``."""
    from tidelog.spark.formats.json_values import Handling

    modes = section.debezium
    if modes is None:
        return Handling()
    return Handling(
        modes.decimal_handling_mode,
        modes.time_precision_mode,
        modes.binary_handling_mode,
        modes.bigint_unsigned_handling_mode,
        modes.schemas_enable,
    )


def skipped_of(section: Any) -> frozenset[str]:
    """Operations that the section's events are without."""
    if section.skipped_operations is None:
        return frozenset("t") if section.format in ("debezium", "avro") else frozenset()
    return frozenset(section.skipped_operations)


def _delta(section: sections.DeltaSection, context: OutputContext) -> Output:
    from tidelog.outputs.lake.delta import DeltaOptions, DeltaOutput

    options = DeltaOptions(**_lake_options(section), cluster_by=section.cluster_by)
    return DeltaOutput(
        context.spark,
        context.log_path,
        str(section.path),
        tables=section.tables,
        name=section.name,
        options=options,
        parallel_tables=section.parallelism,
    )


def _iceberg(section: sections.IcebergSection, context: OutputContext) -> Output:
    from tidelog.outputs.lake.iceberg import IcebergOptions, IcebergOutput

    options = IcebergOptions(
        **_lake_options(section), mode=section.mode, format_version=section.format_version
    )
    return IcebergOutput(
        context.spark,
        context.log_path,
        section.catalog_properties(),
        tables=section.tables,
        name=section.name,
        options=options,
        parallel_tables=section.parallelism,
    )


def _lake_options(section: sections.DeltaSection | sections.IcebergSection) -> dict[str, Any]:
    every, after = section.optimize_every, section.vacuum_after
    return {
        "steps": transform_steps(section),
        "on_schema_change": section.on_schema_change,
        "soft_deletes": section.deletes == "soft",
        "partition_by": section.partition_by,
        "optimize_every_s": None if every is None else every.total_seconds(),
        "vacuum_after_s": None if after is None else after.total_seconds(),
    }


def _files(section: sections.FilesSection, context: OutputContext) -> Output:
    from tidelog.outputs.files.output import FilesOutput
    from tidelog.outputs.files.writer import FileFormat

    compression = section.compression or ("zstd" if section.format == "parquet" else "none")
    return FilesOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        delivery_of(section, keyed=False, order="none"),
        path=section.path,
        layout=section.layout,
        file_format=FileFormat(section.format, section.values, compression, section.file_bytes),
    )


def _http(section: sections.HttpSection, context: OutputContext) -> Output:
    from tidelog.outputs.formatters import formatter
    from tidelog.outputs.http.client import Endpoint
    from tidelog.outputs.http.output import HttpOutput
    from tidelog.outputs.http.requests import Body

    headers = {name: value.get_secret_value() for name, value in section.headers.items()}
    if section.token is not None:
        headers["Authorization"] = f"Bearer {section.token.get_secret_value()}"
    endpoint = Endpoint(
        section.url.reveal(),
        section.method,
        headers,
        gzip=section.gzip,
        timeout_s=section.timeout_ms / 1000,
        retry_for_s=section.retry_for_ms / 1000,
        ca_file=section.ca_file,
    )
    delivery = delivery_of(section, keyed=False, order=section.order)
    return HttpOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        replace(
            delivery,
            formatter=formatter(section.format, tombstones=False, handling=handling_of(section)),
            skipped=skipped_of(section),
        ),
        endpoint=endpoint,
        body=Body(section.body, section.batch_rows, section.batch_bytes),
        lanes=section.connections,
    )


def _kafka(section: sections.KafkaSection, context: OutputContext) -> Output:
    from tidelog.outputs.formatters import formatter
    from tidelog.outputs.kafka.output import KafkaOutput

    delivery = delivery_of(section, keyed=False, order=section.order)
    made = formatter(
        section.format,
        topic=section.topic,
        tombstones=section.tombstones,
        handling=handling_of(section),
    )
    return KafkaOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        # Formatting and sending cost more than reading: several tasks pay off sooner.
        replace(delivery, formatter=made, part_bytes=4 << 20, skipped=skipped_of(section)),
        servers=section.servers,
        topic=section.topic,
        partitions=section.partitions,
        replication=section.replication,
        compact=section.compact,
        create_topics=section.create_topics,
        transactions=section.transactions,
        settings={name: value.get_secret_value() for name, value in section.settings.items()},
    )


def _opensearch(section: sections.OpenSearchSection, context: OutputContext) -> Output:
    from tidelog.outputs.opensearch.client import ClusterOptions
    from tidelog.outputs.opensearch.output import Joined, OpenSearchOutput

    joined = []
    for each in section.documents:
        parts = {part.table: (part.name, tuple(part.key)) for part in each.parts}
        joined.append(Joined(each.index, {each.root: ("", ()), **parts}))
    delivery = delivery_of(section, keyed=True)
    password = section.password
    headers = {name: value.get_secret_value() for name, value in section.headers.items()}
    if section.api_key is not None:
        headers["Authorization"] = f"ApiKey {section.api_key.get_secret_value()}"
    return OpenSearchOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        delivery,
        cluster=ClusterOptions(
            tuple(section.urls),
            section.user,
            None if password is None else password.get_secret_value(),
            headers,
            section.ca_file,
        ),
        index=section.index,
        create_indices=section.create_indices,
        settings=section.settings,
        mappings=section.mappings,
        tombstone_retention_s=section.tombstone_retention.total_seconds(),
        bulk_bytes=section.bulk_bytes,
        joined=joined,
    )


def _python(section: sections.PythonSection, context: OutputContext) -> Output:
    from tidelog.outputs.custom.output import PythonOutput

    keyed = section.delivery == "keyed"
    delivery = delivery_of(section, keyed=keyed, order=section.order, message_format=section.format)
    return PythonOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        delivery,
        section.class_,
        section.options,
    )


def _postgres(section: sections.PostgresSection, context: OutputContext) -> Output:
    from tidelog.outputs.database.postgres import Postgres

    places = {"namespace": section.schema_, "own": section.own_schema}
    return _database(section, context, Postgres(section.url.reveal()), **places)


def _mysql(section: sections.MySqlSection, context: OutputContext) -> Output:
    from tidelog.outputs.database.mysql import MySql

    places = {"namespace": section.database, "own": section.own_database}
    return _database(section, context, MySql(section.url.reveal()), **places)


def _database(
    section: sections.DatabaseSection, context: OutputContext, dialect: Dialect, **places: Any
) -> Output:
    from tidelog.outputs.database.output import DatabaseOutput

    return DatabaseOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        delivery_of(section, keyed=True),
        dialect,
        deletes=section.deletes,
        batch_rows=section.batch_rows,
        **places,
    )


@dataclass(frozen=True)
class _Kind(Generic[S]):
    """`tidelog.ports.OutputKind` of ours."""

    section: type[S]
    make: Callable[[S, OutputContext], Output]

    def open(self, section: S, context: OutputContext) -> Output:
        try:
            return self.make(section, context)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing in _EXTRAS:
                raise MissingExtraError(missing, _EXTRAS[missing]) from error
            raise

    def place(self, section: S) -> object:
        return PLACES[section.kind](section)[0]

    def hosts(self, section: S) -> Sequence[str]:
        return PLACES[section.kind](section)[1]


# where `tidelog.adapters` finds them
DELTA = _Kind(sections.DeltaSection, _delta)
ICEBERG = _Kind(sections.IcebergSection, _iceberg)
FILES = _Kind(sections.FilesSection, _files)
HTTP = _Kind(sections.HttpSection, _http)
KAFKA = _Kind(sections.KafkaSection, _kafka)
OPENSEARCH = _Kind(sections.OpenSearchSection, _opensearch)
PYTHON = _Kind(sections.PythonSection, _python)
POSTGRES = _Kind(sections.PostgresSection, _postgres)
MYSQL = _Kind(sections.MySqlSection, _mysql)
