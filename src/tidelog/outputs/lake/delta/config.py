"""The section of outputs of kind ``delta``."""

from __future__ import annotations

import socket
from typing import Annotated, Final, Literal

from pydantic import Field

from tidelog.errors import OutputError
from tidelog.kinds.sections import (
    Duration,
    Location,
    Section,
    TablePattern,
)
from tidelog.outputs.base.sections import FileStoreSection, name_field
from tidelog.outputs.lake.config import LakeSection

_PROBE_S: Final = 5.0


class HiveSection(Section):
    """A Hive Metastore in which an output registers its tables."""

    type: Literal["hive"] = Field(description="The kind of catalog.")
    uri: str = Field(
        pattern=r"^thrift://[^\s/,]+:\d+(,thrift://[^\s/,]+:\d+)*$",
        description="`thrift://host:port`; several, separated by commas: one that answers.",
        examples=["thrift://metastore:9083"],
    )

    def probe(self) -> str:
        """Returns what `tidelog check` finds there. Raises OutputError."""
        failed = ""
        for uri in self.uri.split(","):
            host, _, port = uri.removeprefix("thrift://").rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), _PROBE_S).close()
            except (OSError, UnicodeError) as error:  # the second: no host has such a name
                why = getattr(error, "strerror", None) or error
                failed = f"the Hive Metastore at {uri} does not answer: {why}"
            else:
                return f"the Hive Metastore answers at {uri}"
        raise OutputError(failed)


class DeltaSection(FileStoreSection, LakeSection):
    """Delta tables, one for each source table (docs/outputs/delta.md)."""

    without_type = ("time", "time: Delta has no type for times of day: leave it text")

    kind: Literal["delta"] = Field(description="The kind of output.")
    name: str = name_field(
        "delta",
        "Names the output in the event log and in the Delta transaction log: keep it for as "
        "long as the output's tables live.",
    )
    path: Location = Field(
        description="Directory or URL; the table `public.orders` goes to `<path>/public/orders`.",
        examples=["./data/lake"],
    )
    deletes: Literal["hard", "soft"] = Field(
        default="hard",
        description="For copies. `hard`: a deleted row is removed. `soft`: it stays as it was "
        "last, with `_deleted` true.",
    )
    partition_by: dict[TablePattern, list[str]] = Field(
        default={},
        description="By table or pattern, the columns that its table is partitioned by. They can't "
        "be changed later.",
        examples=[{"public.events": ["day"]}],
    )
    cluster_by: dict[TablePattern, Annotated[list[str], Field(min_length=1, max_length=4)]] = Field(
        default={},
        description="By table or pattern, the columns of Delta's liquid clustering, which OPTIMIZE "
        "lays rows out by. May be changed.",
        examples=[{"public.orders": ["customer_id"]}],
    )
    deletion_vectors: bool = Field(
        default=True,
        description="Whether new copies have deletion vectors. Without them the file of a "
        "changed row is rewritten, which costs much more, but older readers can read the "
        "table.",
    )
    names: Literal["plain", "exact"] = Field(
        default="plain",
        description="Names of new columns. `plain`: a character that Delta refuses (space, "
        "tab, newline, `,;{}()=`) becomes `_`. `exact`: the source's names, by column "
        "mapping, which some readers read wrongly.",
    )
    catalog: HiveSection | None = Field(
        default=None,
        description="Where tables are registered, so that people query them by name. Unset: "
        "nowhere.",
        examples=[{"type": "hive", "uri": "thrift://metastore:9083"}],
    )
    vacuum_after: Duration | None = Field(
        default=None,
        description="Once a day, files are removed that no version of this last period has. At "
        "least a week. Unset: never.",
        examples=["7d"],
    )

    def probe(self) -> str | None:
        found = super().probe()
        if self.catalog is None:
            return found
        return "; ".join(each for each in (found, self.catalog.probe()) if each)
