"""docs/reference/engine.md, from the signatures and docstrings of what programs meet."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from tidelog import AsyncEngine, Committer, Event, Events, EventStream, Happened, Message
from tidelog.engine.core import NEXT_STATES
from tidelog.engine.event_batches import EventBatch
from tidelog.ext import OffsetStore, RecordProcessor, RecordService, Serializer, StoredOffset
from tidelog.testing import TestingEngine

HEAD = """\
# Engine

What a program meets that [takes change events](../how-to/embed.md#change-events). All names are of `tidelog` but `TestingEngine`, which is of
`tidelog.testing`, and `EventBatch`, which is not made by programs.
"""
SHOWN = (
    *(AsyncEngine, EventStream, Event, Events, EventBatch, Message, Committer),
    *(OffsetStore, StoredOffset),
    *(Serializer, RecordProcessor, RecordService, Happened, TestingEngine),
)

# What only the engine itself calls.
NOT_SHOWN = {
    *("EventStream.take", "Event.number", "Event.share", "Event.as_share", "Event.replaced"),
    *("EventBatch.slice", "EventBatch.value", "EventBatch.versions"),
}


def engine() -> Iterator[str]:
    yield HEAD
    for shown in SHOWN:
        yield from _class(shown)
    yield "\n## EngineState\n\n| state | next |\n|---|---|\n"
    for state, following in NEXT_STATES.items():
        names = ", ".join(f"`{each.name}`" for each in NEXT_STATES if each in following)
        yield f"| `{state.name}` | {names or 'none: make a new engine'} |\n"


def _class(shown: type[Any]) -> Iterator[str]:
    yield f"\n## {shown.__name__}\n\n{_text(shown)}\n"
    named = issubclass(shown, tuple)
    constructor = shown.__new__ if named else shown.__dict__.get("__init__")
    protocol = getattr(shown, "_is_protocol", False)
    made = shown not in (Event, EventBatch, Events, EventStream) and not protocol
    if inspect.isfunction(constructor) and made:
        yield f"\n```text\n{shown.__name__}{_signature(constructor)}\n```\n"
    for name, member in vars(shown).items():
        if name.startswith("_") or f"{shown.__name__}.{name}" in NOT_SHOWN:
            continue
        if isinstance(member, (classmethod, staticmethod)) or (named and name in shown._fields):
            continue
        if isinstance(member, property) and member.fget is not None:
            kind = inspect.signature(member.fget).return_annotation
            yield f"\n**`{name}: {kind}`**\n\n{_text(member.fget)}\n"
        elif inspect.isfunction(member):
            kind = "async " if inspect.iscoroutinefunction(member) else ""
            yield f"\n**`{kind}{name}{_signature(member)}`**\n\n{_text(member)}\n"


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.name not in ("self", "_cls")]
    text = str(signature.replace(parameters=own)).replace(" -> 'None'", "").replace(" -> None", "")
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _text(documented: Any) -> str:
    """A docstring as Markdown: its sections as paragraphs, what they tell as lists."""
    text = inspect.cleandoc(documented.__doc__ or "") if documented.__doc__ else ""
    if text.startswith(f"{getattr(documented, '__name__', '')}("):
        return ""  # a dataclass without one
    found, inside = [], False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Raises|Attributes|Example):", line):
            found.append(f"{line[:-1]}:\n")
            inside = True
        elif inside and re.match(r"    \S", line):
            found.append(f"- {line.strip()}")
        elif inside and line.strip():
            found.append(f"  {line.strip()}")
        else:
            inside = inside and not line.strip()
            found.append(line)
    joined = "\n".join(found).replace("``", "`")
    return re.sub(r"`tidelog\.[\w.]+\.(\w+)`", r"`\1`", joined)
