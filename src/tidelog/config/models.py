"""The models of ``tidelog.yaml`` and its sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypedDict
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tidelog.config.control import ControlSection
from tidelog.config.source import AnySource, PostgresSourceSection
from tidelog.control.commands import OUR_IDS, StartDump
from tidelog.engine.options import (
    BATCH_SIZE,
    CommitPolicy,
    EngineOptions,
    Order,
    ProcessingOn,
    Tolerance,
)
from tidelog.errors import UsageError
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.kinds.sections import (
    Bytes,
    Duration,
    LocalPath,
    LogLocation,
    Milliseconds,
    OneOf,
    RemoteUrl,
    Section,
    StateUrl,
    StorageOption,
    base_directory,
    section_of,
)
from tidelog.model.command_text import name_config
from tidelog.model.dump_options import STATEMENT_TIMEOUT_MS, DumpMode, DumpOptions
from tidelog.model.option_values import is_url
from tidelog.model.patterns import check_listed
from tidelog.outputs.base.sections import OutputSection, StorageOptionsSection
from tidelog.outputs.lake.delta.config import DeltaSection
from tidelog.state.lease_polling import RENEWALS
from tidelog.state.opening import checked_url, pays_per_request

# The section ``outputs``: the model of each kind's section, selected by ``kind``.

OUTPUTS: dict[str, type[OutputSection]] = {
    kind: section_of(OUTPUT_KINDS, kind, OutputSection) for kind in OUTPUT_KINDS.built_in
}

if TYPE_CHECKING:
    AnyOutput = OutputSection
else:
    AnyOutput = Annotated[object, OneOf(OUTPUTS)]

# The section ``engine``.

ENGINE_DEFAULTS = EngineOptions()


class EngineSection(Section):
    """Options of an [engine in your program](../how-to/embed.md); arguments of `AsyncEngine`
    override them.

    The command line ignores it.
    """

    record_processing_threads: int | None = Field(
        default=None,
        ge=1,
        description="Threads, processes or Spark tasks that transform, serialize and, in "
        "parallel, consume. Unset: as many as this machine has cores.",
        examples=[4],
    )
    record_processing_on: ProcessingOn = Field(
        default=ENGINE_DEFAULTS.record_processing_on,
        description="Where transforms, formats and a consumer in parallel run; see "
        "[embed](../how-to/embed.md#transforms-that-cost-cpu).",
    )
    concurrent_coroutines: int = Field(
        default=ENGINE_DEFAULTS.concurrent_coroutines,
        ge=1,
        description="So many coroutines of transforms, or of a consumer in parallel, at once. "
        "A thread waits for each: give hundreds, not thousands.",
    )
    consume_records_async: bool = Field(
        default=False, description="Call the consumer of single events in parallel."
    )
    order: Order | None = Field(
        default=None,
        description="`total`: as in the log. `key`: events of one key are, keys at once. `none`: "
        "any. Unset: `none` with `consume_records_async`, else `total`.",
    )
    batch_size: int = Field(default=BATCH_SIZE, ge=1, description="The most records of a batch.")
    task_management_timeout_ms: Milliseconds = Field(
        default=ENGINE_DEFAULTS.task_management_timeout_ms,
        ge=1,
        description="For all tasks to start; again for all to stop.",
    )
    polling_shutdown_timeout_ms: Milliseconds = Field(
        default=ENGINE_DEFAULTS.polling_shutdown_timeout_ms,
        ge=0,
        description="How long events may still be processed when the engine stops. 0: not at all.",
    )
    errors_max_retries: int = Field(
        default=ENGINE_DEFAULTS.errors_max_retries,
        ge=-1,
        description="How often a transient error is retried, also one that capture meets at the "
        "source or the state store. -1: without limit.",
    )
    errors_retry_delay_initial_ms: Milliseconds = Field(
        default=ENGINE_DEFAULTS.errors_retry_delay_initial_ms,
        ge=1,
        description="Before the first retry; doubled before each further one.",
    )
    errors_retry_delay_max_ms: Milliseconds = Field(
        default=ENGINE_DEFAULTS.errors_retry_delay_max_ms, ge=1, description="The longest delay."
    )
    errors_tolerance: Tolerance = Field(
        default=ENGINE_DEFAULTS.errors_tolerance,
        description="What to do with an event for which a transform, the serializer or a consumer "
        "of single events raises. `none`: the engine ends. `dead_letter`: it is written to "
        "`dead_letter`, and skipped.",
    )
    dead_letter: LocalPath | None = Field(
        default=None,
        description="Directory of a file of JSON lines with database, table, version, op and "
        "reason (no values).",
        examples=["./data/dead-letters"],
    )
    offset_commit_policy: CommitPolicy = Field(
        default=ENGINE_DEFAULTS.offset_commit_policy,
        description="`always`: after every batch. `periodic`: every `offset_commit_interval_ms`. "
        "In either case, done events are committed at the end.",
    )
    offset_commit_interval_ms: Milliseconds = Field(
        default=ENGINE_DEFAULTS.offset_commit_interval_ms, ge=1, description="For `periodic`."
    )

    @model_validator(mode="after")
    def _check_delays(self) -> EngineSection:
        if self.errors_retry_delay_max_ms < self.errors_retry_delay_initial_ms:
            raise ValueError("errors_retry_delay_max_ms is below errors_retry_delay_initial_ms")
        return self


class EngineArguments(TypedDict, total=False):
    """The options of the section as keyword arguments of `AsyncEngine`, for type checkers."""

    record_processing_threads: int | None
    record_processing_on: ProcessingOn
    concurrent_coroutines: int
    consume_records_async: bool
    order: Order | None
    batch_size: int
    task_management_timeout_ms: int
    polling_shutdown_timeout_ms: int
    errors_max_retries: int
    errors_retry_delay_initial_ms: int
    errors_retry_delay_max_ms: int
    errors_tolerance: Tolerance
    dead_letter: str | Path | None
    offset_commit_policy: CommitPolicy
    offset_commit_interval_ms: int


# The section ``dumps``: dumps that are requested at given times.

CRON_FIELDS = 5


class ScheduledDumpSection(Section):
    """A dump that capture requests by itself, at the times of ``cron``
    (docs/how-to/dump-a-table.md).
    """

    name: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,40}$",
        description="Its dumps are named after it and their time.",
        examples=["nightly"],
    )
    cron: str = Field(
        description="When: minute, hour, day of month, month, day of week.",
        examples=["0 3 * * *"],
    )
    time_zone: str = Field(default="UTC", description="Of `cron`.", examples=["Europe/Berlin"])
    tables: list[Annotated[str, AfterValidator(check_listed)]] = Field(
        default=[],
        description="Patterns, as in `source.tables`; none: all captured tables; only ones with "
        "`!`: all but these.",
        examples=[["public.orders"]],
    )
    where: str | None = Field(
        default=None,
        description="SQL condition on the rows of the one table.",
        examples=["changed > now() - interval '2 days'"],
    )
    mode: DumpMode = Field(default="incremental", description="How it reads.")
    priority: int = Field(
        default=0,
        ge=-100,
        le=100,
        description="Dumps of the highest priority are read first: three chunks of four.",
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if OUR_IDS.fullmatch(f"{name}-0"):
            raise ValueError("this name is used by capture itself: choose another")
        return name

    @field_validator("time_zone")
    @classmethod
    def _check_time_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            raise ValueError("no such time zone; expected a name such as Europe/Berlin") from None
        return name

    @field_validator("cron")
    @classmethod
    def _check_cron(cls, cron: str) -> str:
        try:
            if len(cron.split()) != CRON_FIELDS:
                raise CronSimError("wrong number of fields")
            next(CronSim(cron, datetime.now(UTC)))
        except CronSimError as error:
            raise ValueError(f"{str(error).lower()}; expected five fields, as 0 3 * * *") from None
        except StopIteration:
            raise ValueError("no such time comes in the next 50 years") from None
        return cron

    @model_validator(mode="after")
    def _check_command(self) -> ScheduledDumpSection:
        self.command(datetime.now(UTC))
        return self

    def last_due(self, now: datetime) -> datetime | None:
        """Return the newest time until ``now``, inclusive; None: there was none."""
        # Backward from a time with a fraction, its own second comes first.
        local = now.astimezone(ZoneInfo(self.time_zone)).replace(microsecond=1)
        due = next(CronSim(self.cron, local, reverse=True), None)
        return None if due is None else due.astimezone(UTC)

    def command(self, due: datetime) -> StartDump:
        """Return the command that requests the dump of that time."""
        try:
            return StartDump(
                dump_id=f"{self.name}-{due.astimezone(UTC):%Y%m%dT%H%MZ}",
                tables=tuple(self.tables),
                where=self.where,
                mode=self.mode,
                priority=self.priority,
            )
        except UsageError as error:
            raise ValueError(str(error)) from None


# The other sections, and the whole file.

UNSET_STATE = StateUrl("")
_UNSET: Any = ""  # validated to UNSET_STATE
DEFAULT_STATE = "sqlite:///data/state.db"
LEASE_S, PAID_LEASE_S = 10.0, 30.0


class LogSection(Section):
    """The event log."""

    path: LogLocation = Field(
        description="Directory of the segments, or where they are on an object store: "
        "`s3://bucket/prefix`, `gs://…`, `az://…`.",
        examples=["./data/log"],
    )
    storage_options: dict[str, StorageOption] = Field(
        default={},
        description="Options of the object store, such as `endpoint`, `region`, `access_key_id`, "
        "`secret_access_key`, `allow_http`; what is not given is taken from the environment "
        "(`AWS_…`, `GOOGLE_…`, `AZURE_…`).",
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
        description="Remove segments older than this even if an output has not read them; "
        "it then stops, and copies are dumped again. Unset: never.",
        examples=["30d"],
    )
    rollup_bytes: Bytes = Field(
        default=64 * 2**20,
        ge=0,
        description="Merge small old segments into ones of about this size. 0: never.",
        examples=["64MiB"],
    )

    @model_validator(mode="after")
    def _check_retention_cap(self) -> LogSection:
        if self.retention and self.retention_cap and self.retention_cap < self.retention:
            raise ValueError("retention_cap is shorter than retention")
        return self

    @model_validator(mode="after")
    def _check_storage_options(self) -> LogSection:
        if self.storage_options and not is_url(self.path):
            raise ValueError("storage_options are for an object store; path is a local directory")
        return self


class StateSection(Section):
    """The store for progress of dumps, commands and leadership."""

    url: StateUrl = Field(
        default=_UNSET,
        description="[Where](../how-to/state-store.md): `sqlite:///relative/path` or "
        "`sqlite:////absolute/path`, `log:` (beside an event log on an object store), "
        "`zookeeper://host:2181,host:2181/path`, `postgresql://user@host/database`, or a URL of "
        "[another store](../how-to/extend.md). Captures that stand by for each other share it. "
        "Unset: `log:` if `log.path` is on an object store, else `sqlite:///data/state.db`.",
        examples=["sqlite:///data/state.db"],
    )
    options: dict[str, StorageOption] = Field(
        default={},
        description="Options of the store, such as `user`, `password`, `tls_ca`; each store's page "
        "names its own.",
        examples=[{"user": "tidelog", "password": "${STATE_PASSWORD}"}],
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: StateUrl, info: ValidationInfo) -> StateUrl:
        if url == UNSET_STATE:
            return url
        return StateUrl(checked_url(url.reveal(), base_directory(info)))

    @field_validator("options")
    @classmethod
    def _check_options(
        cls, options: dict[str, SecretStr], info: ValidationInfo
    ) -> dict[str, SecretStr]:
        url = info.data.get("url")
        if options and url == UNSET_STATE:
            raise ValueError("options are of a store: name it in url")
        if options and url is not None:
            checked_url(_with_options(url, options).reveal(), base_directory(info))
        return options

    @property
    def location(self) -> StateUrl:
        """The URL with the options, for `tidelog.state.opening`."""
        return _with_options(self.url, self.options)


def _with_options(url: StateUrl, options: Mapping[str, SecretStr]) -> StateUrl:
    return url.with_options({name: value.get_secret_value() for name, value in options.items()})


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
        description="Write a segment when its oldest record has waited this long; in a backlog "
        "(PostgreSQL) 4 ×.",
        examples=["50ms"],
    )
    buffer_bytes: Bytes = Field(
        default=32 * 2**20,
        ge=4096,
        description="Output buffer between reader and writer. When it is full the reader waits.",
        examples=["32MiB"],
    )
    lease_ms: Milliseconds | None = Field(
        default=None,
        ge=1_000,
        description="Leadership ends this long after its last renewal; then a standby takes over. "
        "Unset: `10s`, and `30s` with the state in `log:`, where each renewal costs money.",
        examples=["10s"],
    )

    read_bytes_per_second: Bytes | None = Field(
        default=None,
        ge=1024,
        description="Read at most so much of the source's log a second; the source keeps "
        "the rest. Unset: no limit.",
        examples=["20MiB"],
    )
    zone: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_.:/-]{1,64}$",
        description="Where this process runs, such as an availability zone.",
        examples=["${ZONE}"],
    )
    prefer_zones: list[str] = Field(
        default=[],
        description="Captures outside these zones take over later. A leader keeps its lease.",
        examples=[["eu-central-1a"]],
    )
    takeover_delay_ms: Milliseconds = Field(
        default=5_000,
        description="How much later, if nobody in a preferred zone takes over.",
        examples=["5s"],
    )

    @property
    def handicap_s(self) -> float:
        """Seconds to wait before taking a free lease, so that preferred zones win."""
        preferred = not self.prefer_zones or self.zone in self.prefer_zones
        return 0.0 if preferred else self.takeover_delay_ms / 1000

    @model_validator(mode="after")
    def _check_buffer(self) -> CaptureSection:
        if self.buffer_bytes < self.flush_bytes:
            raise ValueError("buffer_bytes is smaller than flush_bytes")
        return self


class DumpSection(DumpOptions, Section):
    """How dumps read. `tidelog set` changes these at run time, except for `chunk_bytes`,
    `buffer_bytes` and `statement_timeout_ms`.
    """

    statement_timeout_ms: Milliseconds = Field(
        default=STATEMENT_TIMEOUT_MS,
        ge=1,
        description="A chunk's SELECT that takes longer is ended; the chunk is read again, then "
        "halved.",
        examples=["10m"],
    )


class PipelineSection(Section):
    """How Spark runs."""

    name: str = Field(
        default="pipeline",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Pipelines that read one event log need different names.",
    )
    checkpoint: LogLocation = Field(
        default="./data/checkpoint",
        description="Directory, or URL of an object store, for a second copy of each "
        "output's progress: it shows that an output is ahead of a restored event log. It may "
        "be lost.",
    )
    trigger_ms: Milliseconds | None = Field(
        default=None,
        ge=0,
        description="Start a batch of an output at most this often. Unset: `1s`; for databases, "
        "Kafka, HTTP and OpenSearch twice what a batch takes, `200ms` to `1s`, unless event log "
        "or state is on an object store.",
        examples=["1s"],
    )
    batch_bytes: Bytes = Field(
        default=512 * 2**20,
        ge=2**20,
        description="Event log bytes that one batch reads at most.",
        examples=["512MiB"],
    )
    small_batch_bytes: Bytes = Field(
        default=2 * 2**20,
        ge=0,
        description="On a local `master` this process writes a batch up to this size itself, "
        "without a Spark job. `0`: never.",
        examples=["2MiB"],
    )
    master: str | None = Field(
        default=None,
        description="Spark master. Unset: `$SPARK_MASTER`, else `local[*]`.",
        examples=["local[4]"],
    )
    remote: RemoteUrl | None = Field(
        default=None,
        description="A [Spark Connect](../how-to/spark-connect.md) server that runs the outputs' "
        "tasks, instead of `master`: `sc://host:15002`, or `sc://host:443/;token=${SPARK_TOKEN}`. "
        "Unset: `$SPARK_REMOTE`, if that is set and `master` is not.",
        examples=["sc://spark.example.org:15002"],
    )
    remote_token_file: LocalPath | None = Field(
        default=None,
        description="A file with the token for `remote`, read again when the server ends the "
        "session or refuses its token: renew it there before it expires.",
        examples=["/run/secrets/spark-token"],
    )
    conf: dict[str, str | int | float | bool] = Field(
        default={},
        description="Further Spark settings, passed on as they are.",
        examples=[{"spark.driver.memory": "4g"}],
    )
    log_level: Literal["error", "warn", "info", "debug"] | None = Field(
        default=None,
        description="Level of Spark's own log, on standard error. Unset: errors, but not of jobs: "
        "Tidelog reports these itself.",
    )

    @model_validator(mode="after")
    def _check_remote(self) -> Self:
        if self.remote is not None and self.master is not None:
            raise ValueError("remote names a Spark that runs already: leave out master")
        if self.remote_token_file is not None:
            if self.remote is None:
                raise ValueError("remote_token_file: remote names no server")
            if ";token=" in self.remote.reveal():
                raise ValueError("remote_token_file: leave out the token of remote")
        return self


# Validated like a section of the file, so that default paths are resolved, too.
_EMPTY: Any = {}


class Config(Section):
    """The whole ``tidelog.yaml``."""

    source: AnySource = Field(
        description="The database that is captured; `kind` decides its options."
    )
    log: LogSection
    state: StateSection = Field(default=_EMPTY)
    capture: CaptureSection = Field(default=_EMPTY)
    dump: DumpSection = Field(default=_EMPTY)
    dumps: list[ScheduledDumpSection] = Field(
        default=[], description="Dumps that are requested at given times."
    )
    control: ControlSection = Field(default=_EMPTY)
    pipeline: PipelineSection = Field(default=_EMPTY)
    engine: EngineSection = Field(default=_EMPTY)
    outputs: list[AnyOutput] = Field(
        default=[], description="Destinations of the pipeline; none: capture alone."
    )
    _from_variables: frozenset[tuple[str | int, ...]] = PrivateAttr(frozenset())
    _file: str = PrivateAttr("CONFIG")
    _database: str = PrivateAttr("")

    def name_commands(self, text: str) -> str:
        """Return the text, its commands as a user can type them: see `name_config`."""
        return name_config(text, self._file, self._database)

    @field_validator("state")
    @classmethod
    def _default_state(cls, state: StateSection, info: ValidationInfo) -> StateSection:
        log, base = info.data.get("log"), base_directory(info)
        text = state.url.reveal()
        if log is None or text not in ("", "log:"):
            return state
        if is_url(log.path):
            former = base / DEFAULT_STATE.removeprefix("sqlite:///")
            if not text and former.exists():
                raise ValueError(
                    f"{former} holds a state, and with the event log on an object store `log:` is "
                    f"the default: set url to {DEFAULT_STATE}, or to log: after `tidelog state "
                    "copy` (docs/how-to/state-store.md)"
                )
            text = "log:"
        elif not text:
            text = DEFAULT_STATE
        options = state.options
        if text == "log:":
            text, options = f"log:{log.path}", {**log.storage_options, **options}
        url = StateUrl(checked_url(text, base))
        return state.model_copy(update={"url": url, "options": options})

    @field_validator("outputs")
    @classmethod
    def _pass_spark_settings(cls, outputs: list[Any], info: ValidationInfo) -> list[Any]:
        pipeline = info.data.get("pipeline")
        if pipeline is None:  # it is wrong, which is reported
            return outputs
        return [
            each.with_pipeline_conf(pipeline.conf)
            if isinstance(each, StorageOptionsSection)
            else each
            for each in outputs
        ]

    @field_validator("outputs")
    @classmethod
    def _pass_types(cls, outputs: list[Any], info: ValidationInfo) -> list[Any]:
        types = getattr(info.data.get("source"), "types", None)
        if types is None:
            return outputs
        return [
            each.with_source_types(types) if isinstance(each, OutputSection) else each
            for each in outputs
        ]

    @property
    def from_variables(self) -> frozenset[tuple[str | int, ...]]:
        """The options in the file whose text came from ``${…}``, and may be secret."""
        return self._from_variables

    def with_variables(self, locations: Iterable[tuple[str | int, ...]]) -> Self:
        """Return a copy with these as `from_variables`."""
        config = self.model_copy()
        config._from_variables = frozenset(locations)
        return config

    @property
    def renewal_s(self) -> tuple[float, float]:
        """How long the lease lasts, and how often it is renewed, in seconds."""
        given = self.capture.lease_ms
        lease_s = (
            (PAID_LEASE_S if pays_per_request(self.state.location) else LEASE_S)
            if given is None
            else given / 1000
        )
        return lease_s, lease_s / (RENEWALS if pays_per_request(self.state.location) else 4)

    @model_validator(mode="after")
    def _check_several_databases(self) -> Config:
        if not self.source.database_names:
            return self
        rest = self.control.rest
        if self.outputs:
            raise ValueError(
                "source.databases has no outputs: an output reads one event log, and each database "
                "has its own. Give each database a configuration of its own, with its outputs"
            )
        if rest is not None and rest.port:
            raise ValueError(
                "source.databases: several captures can't listen on control.rest.port "
                f"{rest.port}; set it to 0, and each takes a free one"
            )
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Config:
        for what, named in (("outputs", self.outputs), ("dumps", self.dumps)):
            names = [each.name for each in named]
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(
                        f"{names.count(name)} {what} are named {name!r}; give each a name"
                    )
        return self

    @model_validator(mode="after")
    def _keep_source_apart(self) -> Config:
        url = getattr(self.source, "url", None)
        for output in self.outputs:
            option = url and output.option_apart(
                url.reveal(), self.source.url_schemes, self.source.tables
            )
            if option:
                raise ValueError(
                    f"output {output.name} would write to captured tables of the source itself: "
                    f"its url leads to the same server. Set its option {option} to one "
                    "whose tables source.tables does not match (exclude them: '!copy.*')"
                )
        return self


SECTIONS: dict[str, type[Section]] = {
    "source": PostgresSourceSection,
    "log": LogSection,
    "state": StateSection,
    "capture": CaptureSection,
    "dump": DumpSection,
    "dumps": ScheduledDumpSection,
    "control": ControlSection,
    "pipeline": PipelineSection,
    "engine": EngineSection,
    "outputs": DeltaSection,
}
