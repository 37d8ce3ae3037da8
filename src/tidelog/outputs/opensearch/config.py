"""The section of outputs of kind ``opensearch``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, model_validator

from tidelog.kinds.sections import Bytes, Duration, Section, TablePattern
from tidelog.model.schema import TableName
from tidelog.outputs.base.sections import (
    KEYLESS,
    ExecutorSection,
    Headers,
    HeaderValue,
    SkipOrFail,
    name_field,
)


class DocumentPart(Section):
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


class OpenSearchSection(ExecutorSection):
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
        description="Sent with every request. All are treated as secrets.",
        examples=[{"Authorization": "Bearer ${SEARCH_TOKEN}"}],
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
    documents: list[JoinedDocument] = Field(
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
