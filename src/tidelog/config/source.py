"""The section ``source`` of ``tidelog.yaml``: one model for each kind of database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self
from urllib.parse import urlencode, urlsplit

from pydantic import Field, field_validator, model_validator

from tidelog.codecs.mysql.server_urls import SCHEMES, parse_url
from tidelog.errors import ConfigError
from tidelog.kinds.sections import (
    EXCLUDED_TABLES,
    SOURCE_TYPES,
    Bytes,
    ColumnPatterns,
    LocalPath,
    MySqlName,
    OneOf,
    PostgresName,
    SecretUrl,
    Section,
    SlotName,
    TablePattern,
    TablePatterns,
    TypesSection,
    add_excluded,
)
from tidelog.model.dump_options import DumpMode

_SIGNAL_TABLE = (
    "Table with the columns `id`, `type`, `data` whose inserted rows are commands, as Debezium's "
    "`signal.data.collection`. It must exist"
)
_WHEN_LOG_IN_DANGER = (
    "What capture does when the server is about to remove log that capture needs, or its disk "
    "fills, [each at its price](../how-to/log-in-danger.md). `warn`: a problem in status, page and "
    "alerts. `pause_dumps`: also, no chunk of a dump is begun until the danger is over"
)
SnapshotMode = Literal[
    "initial",
    "initial_only",
    "no_data",
    "when_needed",
    "always",
    "configuration_based",
    "custom",
]


class SnapshotSection(Section):
    """The decisions of `source.snapshot`, one by one."""

    data: Literal["once", "always", "never"] = Field(
        default="once",
        description="Dump every captured table: once in the life of the event log, at every start, "
        "or not at all.",
    )
    stream: bool = Field(
        default=True,
        description="Read the log after the dumps. `false`: end when all dumps are done.",
    )
    on_gap: bool = Field(
        default=False,
        description="After a gap in the source's log: resume after it and dump every table. "
        "`false`: stop.",
    )
    new_tables: bool = Field(
        default=True,
        description="Dump tables that appear later. `false`: only those whose first rows the log "
        "may lack (PostgreSQL).",
    )


class SourceSection(Section):
    """The options of all kinds of sources.

    Attributes:
        url_schemes: the schemes of the kind's URLs, from which `tidelog init` finds it.
        url_form: the form of the kind's URLs, for messages.
        url_has_namespace: whether a URL's database is one namespace, and not all of them.
        ignores_case_of_columns: whether two columns can't differ in upper and lower case alone.
    """

    url_schemes: ClassVar[tuple[str, ...]] = ()
    url_form: ClassVar[str] = ""
    url_has_namespace: ClassVar[bool] = False
    ignores_case_of_columns: ClassVar[bool] = False

    kind: str
    tables: TablePatterns = Field(
        default=["*.*"],
        min_length=1,
        description="Tables to capture, as [patterns](table-patterns.md); one with `!` in front "
        "excludes. System tables and Tidelog's own never match.",
        examples=[["public.*", "!public.audit", "billing.invoices"]],
    )
    exclude: list[TablePattern] = EXCLUDED_TABLES
    snapshot: SnapshotMode = Field(
        default="initial",
        description="What is dumped at start. `initial`: the first start dumps every captured "
        "table. `initial_only`: the same, then capture ends. `no_data`: nothing; dump later with "
        "`tidelog dump`. A table that is created later is dumped where the log may lack its first "
        "rows (PostgreSQL). `when_needed`: as `initial`, and again after a gap in the source's "
        "log. `always`: every start dumps every table. `configuration_based`: as "
        "`snapshot_configuration` says. `custom`: as `snapshot_class` says.",
    )
    snapshot_mode: DumpMode = Field(
        default="incremental", description="How the dump at start reads."
    )
    snapshot_configuration: SnapshotSection | None = Field(
        default=None, description="For `snapshot: configuration_based`: the single decisions."
    )
    snapshot_class: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="For `snapshot: custom`: `module:Class` of a `tidelog.ext.Snapshotter`.",
        examples=["shop.dumps:OnMondays"],
    )
    signal_table: str | None = None
    keys: dict[TablePattern, list[str]] = Field(
        default={},
        description="For tables without a primary key: columns of a unique, not null key to dump "
        "and match rows by.",
        examples=[{"public.audit": ["event_id"]}],
    )
    when_log_in_danger: Literal["warn", "pause_dumps", "stop", "drop_slot"] = "warn"

    _excluded = model_validator(mode="before")(add_excluded)

    @model_validator(mode="after")
    def _check_snapshot_details(self) -> Self:
        for mode, option in (
            ("configuration_based", "snapshot_configuration"),
            ("custom", "snapshot_class"),
        ):
            if (self.snapshot == mode) != (getattr(self, option) is not None):
                raise ValueError(f"snapshot: {mode} and {option} need each other")
        return self

    @property
    def exclusions(self) -> list[str]:
        """The option ``exclude_columns``; empty for a kind without it."""
        return []

    @property
    def database_names(self) -> list[str]:
        """The option ``databases``; empty for a kind without it."""
        return []

    @property
    def connector(self) -> str:
        """The name of this capture in notifications."""
        return "tidelog"

    @property
    def danger_bytes(self) -> int | None:
        """So much log that the server keeps for capture is a danger; None: its own limits say."""
        return None


class DatabaseSourceSection(SourceSection):
    """What the sections of PostgreSQL and MySQL share."""

    url: SecretUrl
    exclude_columns: ColumnPatterns = Field(
        default=[],
        description="Columns whose values never reach the event log, as "
        "[patterns](table-patterns.md#columns) `namespace.table.column`; one with `!` in front "
        "makes an exception. Columns of the key that rows are matched by are refused.",
        examples=[["public.users.password", "*.*.ssn"]],
    )
    types: TypesSection | None = SOURCE_TYPES

    @property
    def exclusions(self) -> list[str]:
        return self.exclude_columns


class PostgresSourceSection(DatabaseSourceSection):
    """A PostgreSQL database."""

    url_schemes = ("postgresql", "postgres")
    url_form = "postgresql://user:password@host:port/database"

    kind: Literal["postgres"] = Field(description="The kind of database.")
    url: SecretUrl = Field(
        description="Connection URL or `key=value` string as libpq reads it. The role needs "
        "`REPLICATION` and `SELECT` on the tables.",
        examples=["postgresql://tidelog:${PGPASSWORD}@db:5432/shop"],
    )
    databases: list[PostgresName] = Field(
        default=[],
        description="Databases of this server to capture side by side, each with a slot, an "
        "event log and a state whose names have the database's added. Unset: the one of "
        "`url`.",
        examples=[["shop", "billing"]],
    )
    watermarks: Literal["table", "message", "snapshot"] = Field(
        default="table",
        description="How a chunk is placed in the log. `table`: marks in a one-row table. "
        "`message`: marks as logical messages, no table. `snapshot`: nothing is written to the "
        "source at all; also on a standby of PostgreSQL 16 or later.",
    )
    signal_table: str | None = Field(
        default=None,
        pattern=r"^[^.]+\.[^.]+$",
        description=f"{_SIGNAL_TABLE}; it is published with the others.",
        examples=["public.tidelog_signal"],
    )
    slot: SlotName = Field(
        default="tidelog",
        description="Replication slot; created at the first start. One slot for each event log.",
    )
    publication: PostgresName | None = Field(
        default=None,
        description="Publication; created and kept in step with `tables`. Each capture has one of "
        "its own. Unset: named as the slot.",
        examples=["tidelog"],
    )
    watermark_schema: PostgresName = Field(
        default="tidelog",
        description="Schema of the one-row table `watermark` that dumps write their marks to.",
    )
    when_log_in_danger: Literal["warn", "pause_dumps", "stop", "drop_slot"] = Field(
        default="warn",
        description=f"{_WHEN_LOG_IN_DANGER}. `stop`: also, if that does not help within five "
        "minutes, capture ends. `drop_slot`: also, it drops its slot as it ends, so that the "
        "server can free its disk; later changes are lost to capture.",
    )
    log_danger_bytes: Bytes | None = Field(
        default=None,
        ge=2**20,
        description="So much log that the server keeps for capture is a danger. Unset: 80 % of "
        "`max_slot_wal_keep_size`, or 10GiB where the server has no such limit.",
        examples=["50GiB"],
    )

    @property
    def database_names(self) -> list[str]:
        return self.databases

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: SecretUrl) -> SecretUrl:
        text = url.reveal()
        scheme = text.split("://")[0] if "://" in text else ""
        if scheme not in cls.url_schemes and "=" not in text:
            raise ValueError(f"expected {cls.url_form}")
        return url

    @field_validator("databases")
    @classmethod
    def _check_databases(cls, databases: list[str]) -> list[str]:
        for name in databases:
            if databases.count(name) > 1:
                raise ValueError(f"{name!r} is listed {databases.count(name)} times")
        return databases

    @property
    def connector(self) -> str:
        return self.slot

    @property
    def danger_bytes(self) -> int | None:
        return self.log_danger_bytes

    @property
    def publication_name(self) -> str:
        """The name of the publication; the slot's, unless configured."""
        return self.publication or self.slot


class MySqlSourceSection(DatabaseSourceSection):
    """The databases of a MySQL or MariaDB server."""

    url_schemes = SCHEMES
    url_form = "mysql://user:password@host:port/database (or mariadb://…)"
    url_has_namespace = True
    ignores_case_of_columns = True

    kind: Literal["mysql", "mariadb"] = Field(
        description="The kind of server; a server of the other kind is refused."
    )
    url: SecretUrl = Field(
        description="Connection URL. The account needs `REPLICATION SLAVE`, `REPLICATION CLIENT` "
        "and `SELECT` on the tables; `tidelog check` prints the `GRANT` for what it lacks. The "
        "password is never printed.",
        examples=["mysql://tidelog:${MYSQL_PASSWORD}@db:3306/shop"],
    )
    watermarks: Literal["table", "gtid"] = Field(
        default="table",
        description="How a chunk is placed in the log. `table`: marks in a one-row table. `gtid`: "
        "nothing is written to the source at all; also on a replica.",
    )
    signal_table: str | None = Field(
        default=None,
        pattern=r"^[^.]+\.[^.]+$",
        description=f"{_SIGNAL_TABLE}.",
        examples=["shop.tidelog_signal"],
    )
    server_id: int | None = Field(
        default=None,
        ge=1,
        le=2**32 - 1,
        description="The id under which capture reads the binlog, as a replica does; no other "
        "server or replica may have it. Unset: derived from the event log's own id.",
        examples=[5400],
    )
    ssl_mode: (
        Literal["disabled", "preferred", "required", "verify-ca", "verify-identity"] | None
    ) = Field(
        default=None,
        description="TLS, as the option of the `mysql` program. Unset: `verify-ca` with `ssl_ca`, "
        "else `preferred`.",
        examples=["verify-identity"],
    )
    ssl_ca: LocalPath | None = Field(
        default=None,
        description="File with the certificates of trusted authorities.",
        examples=["./ca.pem"],
    )
    ssl_cert: LocalPath | None = Field(
        default=None, description="File with the client's certificate.", examples=["./client.pem"]
    )
    ssl_key: LocalPath | None = Field(
        default=None,
        description="File with the client's private key.",
        examples=["./client-key.pem"],
    )
    watermark_schema: MySqlName = Field(
        default="tidelog",
        description="Database of the one-row table `watermark` that dumps write their marks to.",
    )
    cascades: Literal["refuse", "dump", "accept"] = Field(
        default="refuse",
        description="What to do where foreign keys with `CASCADE` or `SET NULL` change rows of a "
        "captured table, which the binlog does not hold. `refuse`: capture does not start. `dump`: "
        "the table is dumped again whenever rows that it refers to are deleted or their keys "
        "change. `accept`: copies drift from the source until dumped again.",
    )
    when_log_in_danger: Literal["warn", "pause_dumps"] = Field(
        default="warn", description=f"{_WHEN_LOG_IN_DANGER}."
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: SecretUrl) -> SecretUrl:
        if urlsplit(url.reveal()).scheme not in cls.url_schemes:
            raise ValueError(f"expected {cls.url_form}")
        try:
            parse_url(url.reveal())
        except ConfigError as error:
            raise ValueError(str(error).replace("source.url", "the URL")) from None
        return url

    @model_validator(mode="after")
    def _check_key_and_certificate(self) -> MySqlSourceSection:
        if (self.ssl_key is None) != (self.ssl_cert is None):
            raise ValueError("ssl_cert and ssl_key need each other")
        return self

    @property
    def connector(self) -> str:
        return "tidelog" if self.server_id is None else f"tidelog-{self.server_id}"

    @property
    def server_url(self) -> str:
        """The URL with its password and the TLS options."""
        options = {
            "ssl-mode": self.ssl_mode,
            "ssl-ca": self.ssl_ca,
            "ssl-cert": self.ssl_cert,
            "ssl-key": self.ssl_key,
        }
        given = urlencode({name: str(value) for name, value in options.items() if value})
        url = self.url.reveal()
        if not given:
            return url
        return f"{url}{'&' if '?' in url else '?'}{given}"


SOURCES: dict[str, type[SourceSection]] = {
    "postgres": PostgresSourceSection,
    "mysql": MySqlSourceSection,
    "mariadb": MySqlSourceSection,
}

if TYPE_CHECKING:
    AnySource = SourceSection
else:
    AnySource = Annotated[object, OneOf(SOURCES)]
