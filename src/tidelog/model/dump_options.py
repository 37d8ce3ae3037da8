"""The options of dumps, with defaults, bounds, units and descriptions.

This one list is the source of the configuration's section ``dump`` and its reference, of the
command that changes options at run time (`tidelog set`, signals, HTTP), and of the options that
dumps use.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tidelog.model.option_values import Bytes, Milliseconds

DumpMode = Literal["incremental", "blocking"]
"""How a dump reads: in chunks beside the log, or in one snapshot while the log waits."""
STATEMENT_TIMEOUT_MS = 600_000
"""Most time of a chunk's SELECT, unless configured."""


class RunTimeOptions(BaseModel):
    """The options that may change while a dump runs. 0 turns a limit off."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True
    )

    chunk_rows: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Rows that one chunk's SELECT reads."
    )
    parallelism: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Chunks that are read at once, each over its own connection. With 1, chunks "
        "are read one after the other in key order.",
    )
    rows_per_second: int = Field(
        default=0, ge=0, description="Read no more rows a second, over all dumps. 0: no limit."
    )
    delay_ms: Milliseconds = Field(
        default=0, ge=0, description="Pause between two chunks.", examples=["100ms"]
    )
    max_lag_bytes: Bytes = Field(
        default=256 * 2**20,
        ge=0,
        description="Slow dumps down while capture is further than this behind the end of the "
        "source's log. 0: never.",
        examples=["256MiB"],
    )
    max_replica_lag_ms: Milliseconds = Field(
        default=10_000,
        ge=0,
        description="Slow dumps down while a replica of the source is further behind. 0: never.",
        examples=["10s"],
    )
    max_select_ms: Milliseconds = Field(
        default=2_000,
        ge=0,
        description="Slow dumps down while a chunk's SELECT takes longer. 0: never.",
        examples=["2s"],
    )
    max_commit_delay_ms: Milliseconds = Field(
        default=0,
        ge=0,
        description="Slow dumps down while a commit in the source takes so much longer than at "
        "best, and others commit. 0: never.",
        examples=["5ms"],
    )


class DumpOptions(RunTimeOptions):
    """The options of dumps."""

    chunk_bytes: Bytes = Field(
        default=32 * 2**20,
        ge=2**10,
        le=2**30,
        description="A chunk of large rows has fewer of them: about so many bytes. A single row "
        "may be larger.",
        examples=["32MiB"],
    )
    buffer_bytes: Bytes = Field(
        default=256 * 2**20,
        ge=2**20,
        description="Rows that were read and wait for their window to close or for the disk; no "
        "chunk is begun beyond it.",
        examples=["256MiB"],
    )
