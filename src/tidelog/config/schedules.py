"""The section ``dumps``: dumps that are requested at given times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field, field_validator, model_validator

from tidelog.control.commands import OUR_IDS, ExecuteSnapshot
from tidelog.errors import UsageError
from tidelog.kinds.sections import Section
from tidelog.model.patterns import check_listed

FIELDS = 5


class ScheduledDump(Section):
    """A dump that capture requests by itself, at the times of ``cron``
    (docs/how-to/dump-a-table.md).
    """

    name: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,40}$",
        description="Its dumps are named after it and their time.",
        examples=["nightly"],
    )
    cron: str = Field(
        description="When: minute, hour, day of month, month, day of week, as Debian's cron has "
        "them. Times that passed while no capture led are made up for, once.",
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
    mode: Literal["incremental", "blocking"] = Field(
        default="incremental", description="How it reads."
    )
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
            if len(cron.split()) != FIELDS:
                raise CronSimError("wrong number of fields")
            next(CronSim(cron, datetime.now(UTC)))
        except CronSimError as error:
            raise ValueError(f"{str(error).lower()}; expected five fields, as 0 3 * * *") from None
        except StopIteration:
            raise ValueError("no such time comes in the next 50 years") from None
        return cron

    @model_validator(mode="after")
    def _check_command(self) -> ScheduledDump:
        self.command(datetime.now(UTC))
        return self

    def last_due(self, now: datetime) -> datetime | None:
        """Return the newest time until ``now``, inclusive; None: there was none."""
        # Backward from a time with a fraction, its own second comes first.
        local = now.astimezone(ZoneInfo(self.time_zone)).replace(microsecond=1)
        due = next(CronSim(self.cron, local, reverse=True), None)
        return None if due is None else due.astimezone(UTC)

    def command(self, due: datetime) -> ExecuteSnapshot:
        """Return the command that requests the dump of that time."""
        try:
            return ExecuteSnapshot(
                dump_id=f"{self.name}-{due.astimezone(UTC):%Y%m%dT%H%MZ}",
                tables=tuple(self.tables),
                where=self.where,
                mode=self.mode,
                priority=self.priority,
            )
        except UsageError as error:
            raise ValueError(str(error)) from None
