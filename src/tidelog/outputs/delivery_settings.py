"""Converts sections of the configuration into the options that outputs are created with.

Kinds are looked up where there is no Spark: code that needs it is imported when an output is
created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidelog.outputs.base.sections import (
    DebeziumSection,
    ExecutorSection,
    KeylessPolicy,
    SkippedOperations,
    SteppedSection,
)

if TYPE_CHECKING:
    from tidelog.outputs.base.writer import Delivery
    from tidelog.spark.formats.json_values import ValueModes
    from tidelog.spark.transforms import Step


class MessagesSection(Protocol):
    """The options of sections whose outputs send messages."""

    @property
    def format(self) -> str: ...

    @property
    def debezium(self) -> DebeziumSection | None: ...

    @property
    def skipped_operations(self) -> SkippedOperations | None: ...


def delivery_of(
    section: ExecutorSection,
    *,
    keyed: bool,
    keyless: KeylessPolicy = "skip",
    order: str = "key",
    message_format: str = "rows",
) -> Delivery:
    """Return the `Delivery` that all outputs share that write from executors.

    Args:
        section: the output's section.
        keyed: whether to deliver the newest state of keys; else every change.
        keyless: what to do with a table without a key where one is needed.
        order: the order of every change: key, total or none.
        message_format: a formatter's name for every change, or ``rows``.
    """
    from tidelog.outputs.base.writer import Delivery, JsonDeadLetters, StopAtRejection
    from tidelog.outputs.formatters import formatter

    letters = section.dead_letter
    return Delivery(
        section.name,
        tuple(section.tables),
        keyed=keyed,
        keyless=keyless,
        order=order,
        formatter=None if message_format == "rows" else formatter(message_format),
        steps=transform_steps(section),
        on_schema_change=section.on_schema_change,
        dead_letters=StopAtRejection() if letters is None else JsonDeadLetters(str(letters.path)),
        parallelism=section.parallelism,
    )


def transform_steps(section: SteppedSection) -> tuple[Step, ...]:
    """Return the section's steps, for `tidelog.spark.transforms`."""
    from tidelog.spark.transforms import Step

    return tuple(
        Step(
            each.action,
            getattr(each, each.action),
            tuple(each.tables),
            each.salt.get_secret_value(),
        )
        for each in section.steps
    )


def handling_of(section: MessagesSection) -> ValueModes:
    """Return the section's modes of format ``debezium``."""
    from tidelog.spark.formats.json_values import ValueModes

    modes = section.debezium
    if modes is None:
        return ValueModes()
    return ValueModes(
        modes.decimal_handling_mode,
        modes.time_precision_mode,
        modes.binary_handling_mode,
        modes.bigint_unsigned_handling_mode,
        modes.schemas_enable,
        modes.extended_headers_enabled,
    )


def skipped_of(section: MessagesSection) -> frozenset[str]:
    """Return the operations that the section's events leave out."""
    if section.skipped_operations is None:
        return frozenset("t") if section.format in ("debezium", "avro") else frozenset()
    return frozenset(section.skipped_operations)
