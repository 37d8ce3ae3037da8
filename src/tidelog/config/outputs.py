"""``outputs`` of ``tidelog.yaml``: the model of each kind's section, selected by ``kind``.

A new kind of ours is a folder of `tidelog.outputs` whose ``config.py`` has its section, derived
from one of `tidelog.outputs.base.sections`, and its `BuiltinKind`, and one line in
`tidelog.kinds.adapters`. Kinds of other distributions are found by entry points
(docs/how-to/extend.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.kinds.sections import OneOf, section_of
from tidelog.outputs.base.sections import OutputSection

OUTPUTS: dict[str, type[OutputSection]] = {
    kind: section_of(OUTPUT_KINDS, kind, OutputSection) for kind in OUTPUT_KINDS.built_in
}

if TYPE_CHECKING:
    AnyOutput = OutputSection
else:
    AnyOutput = Annotated[object, OneOf(OUTPUTS)]
