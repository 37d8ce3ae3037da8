"""Kind ``python``."""

from __future__ import annotations

from tidelog.outputs.base.kinds import BuiltinKind
from tidelog.outputs.custom.config import PythonSection
from tidelog.outputs.delivery_settings import delivery_of
from tidelog.ports import Output, OutputContext, OutputPlace


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


def _place(section: PythonSection) -> OutputPlace:
    # Options of your own output may have any meaning: another value need not mean another
    # destination.
    return OutputPlace("python", now=[section.class_, section.options])


KIND = BuiltinKind(PythonSection, _open, _place)
