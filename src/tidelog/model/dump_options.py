"""How dumps read: the one list of options, with defaults, bounds, units and what they mean.

Of it are made: the section ``dump`` of the configuration and its reference, the command that
changes options at run time (`tidelog set`, signals, HTTP), and what dumps go by.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from tidelog.model.quantities import Bytes, Milliseconds


class RunTimeOptions(BaseModel):
    """What may change while a dump runs. 0 turns a limit off."""

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
        description="Chunks that are read at once, each over a connection of its own. With 1, "
        "chunks come one after the other in key order.",
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
    """How dumps read."""

    chunk_bytes: Bytes = Field(
        default=32 * 2**20,
        ge=2**10,
        le=2**30,
        description="A chunk of larger rows has fewer of them: as many as take about so much. A "
        "single row may take more.",
        examples=["32MiB"],
    )
    buffer_bytes: Bytes = Field(
        default=256 * 2**20,
        ge=2**20,
        description="Rows that were read and wait for their window to close or for the disk; no "
        "chunk is begun beyond it.",
        examples=["256MiB"],
    )
