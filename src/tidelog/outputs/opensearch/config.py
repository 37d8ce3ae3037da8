"""Kind ``opensearch``: its section, its probe, and how it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from tidelog.kinds.sections import Bytes, Duration, Section, TablePattern
from tidelog.model.schema import TableName
from tidelog.outputs.base.builtin_kind import ANSWER_S, BuiltinKind, normal_hosts
from tidelog.outputs.base.progress import has_whole_log
from tidelog.outputs.base.sections import (
    KEYLESS,
    Headers,
    HeaderValue,
    SkipOrFail,
    TypedSection,
    name_field,
)
from tidelog.outputs.delivery_settings import delivery_of
from tidelog.ports import LogExtent, Output, OutputContext, OutputLocation, TargetTable

if TYPE_CHECKING:
    from tidelog.outputs.opensearch.client import ClusterOptions


class DocumentPartSection(Section):
    """A part of a document that another table contributes."""

    table: str = Field(
        min_length=1, description="The captured table.", examples=["shop.order_items"]
    )
    name: str = Field(
        alias="as",
        pattern=r"^[^_./][^./]*$",
        description="The member of the document with its row, or the list of its rows.",
        examples=["items"],
    )
    key: list[str] = Field(
        min_length=1,
        description="Its columns with the root's key, in that order; of its own key, which "
        "may have more: then its rows are a list.",
        examples=[["order_id"]],
    )


class DocumentSection(Section):
    """Documents that several tables contribute to, in an index of their own."""

    index: str = Field(min_length=1, description="Name of the alias.", examples=["orders"])
    root: str = Field(
        min_length=1,
        description="The captured table whose rows the documents are; its columns are theirs.",
        examples=["shop.orders"],
    )
    parts: list[DocumentPartSection] = Field(
        min_length=1, description="What other tables contribute."
    )

    @model_validator(mode="after")
    def _tables_differ(self) -> DocumentSection:
        tables = [self.root, *(part.table for part in self.parts)]
        names = [part.name for part in self.parts]
        if len(set(tables)) < len(tables) or len(set(names)) < len(names):
            raise ValueError("a document's tables, and the names of its parts, differ")
        return self


class OpenSearchSection(TypedSection):
    """Rows as documents, an index for each table (docs/outputs/opensearch.md)."""

    kind: Literal["opensearch"] = Field(description="The kind of output.")
    name: str = name_field("opensearch")
    urls: list[Annotated[str, Field(pattern=r"^https?://[^@\s]+$")]] = Field(
        min_length=1,
        description="The cluster's nodes to send to, without user and password.",
        examples=[["https://search1:9200", "https://search2:9200"]],
    )
    user: str | None = Field(default=None, description="For basic authentication.")
    password: SecretStr | None = Field(
        default=None, description="For basic authentication.", examples=["${SEARCH_PASSWORD}"]
    )
    api_key: HeaderValue | None = Field(
        default=None,
        min_length=1,
        description="Sent as `Authorization: ApiKey`, in place of user and password.",
        examples=["${SEARCH_KEY}"],
    )
    headers: Headers = Field(
        default={},
        description="Sent with every request.",
        examples=[{"Authorization": "Bearer ${SEARCH_TOKEN}"}],
    )
    ca_file: str | None = Field(
        default=None, description="Certificates of authorities, PEM, on driver and executors."
    )
    index: str = Field(
        default="{namespace}_{name}",
        min_length=1,
        description="Name of each table's alias, as of Kafka's topics; in lower case.",
    )
    create_indices: bool = Field(default=True, description="Create missing indices. `false`: stop.")
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
    documents: list[DocumentSection] = Field(
        default=[],
        description="Tables that share documents, instead of an index for each; see *documents*.",
    )
    keyless: SkipOrFail = KEYLESS
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
        description="About the size of a bulk request, of which a task sends two at once.",
    )

    def keyless_of(self, table: TableName) -> SkipOrFail:
        return self.keyless

    @model_validator(mode="after")
    def _one_way_in(self) -> OpenSearchSection:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password go together")
        given = [
            self.user,
            self.api_key,
            *(n for n in self.headers if n.lower() == "authorization"),
        ]
        if sum(each is not None for each in given) > 1:
            raise ValueError("one of user and password, api_key, and a header Authorization")
        return self


def _open(section: OpenSearchSection, context: OutputContext) -> Output:
    from tidelog.outputs.opensearch.output import JoinedIndex, OpenSearchOutput

    joined = []
    for each in section.documents:
        parts = {part.table: (part.name, tuple(part.key)) for part in each.parts}
        joined.append(JoinedIndex(each.index, {each.root: ("", ()), **parts}))
    delivery = delivery_of(section, keyed=True, keyless=section.keyless)
    delivery = replace(delivery, types=section.column_types())
    return OpenSearchOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        delivery,
        cluster=_cluster(section),
        index=section.index,
        create_indices=section.create_indices,
        settings=section.settings,
        mappings=section.mappings,
        tombstone_retention_s=section.tombstone_retention.total_seconds(),
        bulk_bytes=section.bulk_bytes,
        joined=joined,
    )


def _cluster(section: OpenSearchSection) -> ClusterOptions:
    from tidelog.outputs.opensearch.client import ClusterOptions

    password = section.password
    headers = {name: value.get_secret_value() for name, value in section.headers.items()}
    if section.api_key is not None:
        headers["Authorization"] = f"ApiKey {section.api_key.get_secret_value()}"
    return ClusterOptions(
        tuple(section.urls),
        section.user,
        None if password is None else password.get_secret_value(),
        headers,
        section.ca_file,
    )


def _probe(section: OpenSearchSection) -> str:
    from tidelog.outputs.opensearch.client import Cluster

    with closing(Cluster(replace(_cluster(section), timeout_s=ANSWER_S))) as cluster:
        health = cluster.request("GET", "/_cluster/health", params={"level": "cluster"})
    return f"cluster {health['cluster_name']} answers, {health['status']}"


def _location(section: OpenSearchSection) -> OutputLocation:
    found = [normal_hosts(urlsplit(url).netloc.rpartition("@")[2], 9200)[0] for url in section.urls]
    return OutputLocation([section.index], tuple(found))


def _names(section: OpenSearchSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.base.left_out import refused_names
    from tidelog.outputs.formatters.messages import topic_of
    from tidelog.outputs.opensearch.indices import index_name
    from tidelog.outputs.opensearch.output import check_columns

    joined = {each.root for each in section.documents}
    joined |= {part.table for each in section.documents for part in each.parts}

    def address(table: TargetTable) -> str | None:
        if str(table.source) in joined:
            return None
        return f"index {index_name(topic_of(section.index, table))}"

    def check(table: TargetTable) -> None:
        check_columns(section.name, table, table.columns.names)

    return refused_names(section.name, tables, check, address)


def _idle(section: OpenSearchSection, log: LogExtent) -> bool:
    return has_whole_log(log, section.name) and bool(_probe(section))


KIND = BuiltinKind(OpenSearchSection, _open, _location, "opensearchpy", _probe, _names, _idle)
