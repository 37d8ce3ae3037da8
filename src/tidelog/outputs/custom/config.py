"""Kind ``python``: the user's own output, its section and how it is opened."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tidelog.model.schema import TableName
from tidelog.outputs.base.builtin_kind import BuiltinKind
from tidelog.outputs.base.sections import (
    KEYLESS,
    ExecutorSection,
    Order,
    RowsOrFormatName,
    SkipOrFail,
    name_field,
)
from tidelog.outputs.delivery_settings import delivery_of
from tidelog.ports import Output, OutputContext, OutputLocation


class PythonSection(ExecutorSection):
    """Your own: a class that writes Arrow batches on executors (docs/how-to/your-own-output.md)."""

    spark_jars = "delta"  # a class of the user may use them

    kind: Literal["python"] = Field(description="The kind of output.")
    name: str = name_field("python")
    class_: str = Field(
        alias="class",
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="`module:Class`, importable by driver and executors.",
        examples=["shop.search:SearchIndex"],
    )
    options: dict[str, Any] = Field(
        default={},
        description="Keyword arguments of the class.",
        examples=[{"url": "http://search:9200"}],
    )
    delivery: Literal["keyed", "ordered"] = Field(
        default="keyed",
        description="`keyed`: the newest state of each key of a batch. `ordered`: every change.",
    )
    keyless: SkipOrFail = KEYLESS
    order: Order = Field(
        default="key",
        description="For `ordered` delivery: `key`: a key's changes in order; `total`: all in one "
        "task; `none`: as it comes.",
    )
    format: RowsOrFormatName = Field(
        default="rows",
        description="For `ordered` delivery: `rows`: columns; else messages with key and value.",
    )

    def keyless_of(self, table: TableName) -> SkipOrFail | None:
        return self.keyless if self.delivery == "keyed" else None


def _open(section: PythonSection, context: OutputContext) -> Output:
    from tidelog.outputs.custom.output import PythonOutput

    keyed = section.delivery == "keyed"
    delivery = delivery_of(
        section,
        keyed=keyed,
        keyless=section.keyless,
        order=section.order,
        message_format=section.format,
    )
    return PythonOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        delivery,
        section.class_,
        section.options,
    )


def _location(section: PythonSection) -> OutputLocation:
    # Options of your own output may have any meaning: another value need not mean another
    # destination.
    return OutputLocation("python", qualifier=[section.class_, section.options])


KIND = BuiltinKind(PythonSection, _open, _location)
