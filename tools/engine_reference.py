"""docs/reference/engine.md, from the signatures and docstrings of what programs meet."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from tidelog import AsyncEngine, Committer, Event, Events, EventStream, Message
from tidelog.app.base.service import BackgroundService
from tidelog.engine.core import NEXT_STATES
from tidelog.ext import OffsetStore, RecordProcessor, Serializer, StoredOffset

HEAD = """\
# Engine

For programs that [take change events](../how-to/embed.md#change-events). All names are of `tidelog`; the protocols also of `tidelog.ext`. `help(tidelog.AsyncEngine)` has all
signatures.
"""
SHOWN = (
    *(AsyncEngine, EventStream, Event, Events, Message, Committer),
    *(OffsetStore, StoredOffset),
    *(Serializer, RecordProcessor),
)

# What only the engine itself calls.
NOT_SHOWN = {
    *("EventStream.take", "Event.number", "Event.share", "Event.as_share", "Event.replaced"),
    *("Event.to_batch", "Events.pieces"),
}


def engine() -> Iterator[str]:
    yield HEAD
    for shown in SHOWN:
        yield from _class(shown)
    names = ", ".join(f"`{state.name}`" for state in NEXT_STATES)
    yield f"\n## EngineState\n\nIn this order, or from each to `STOPPING`: {names}.\n"


def _class(shown: type[Any]) -> Iterator[str]:
    yield f"\n## {shown.__name__}\n\n{_text(shown)}\n"
    named = issubclass(shown, tuple)
    constructor = shown.__new__ if named else shown.__dict__.get("__init__")
    protocol = getattr(shown, "_is_protocol", False)
    made = shown not in (AsyncEngine, Event, Events, EventStream) and not protocol
    if inspect.isfunction(constructor) and made:
        yield f"\n```text\n{shown.__name__}{_signature(constructor)}\n```\n"
    inherited = vars(BackgroundService) if shown is AsyncEngine else {}
    for name, member in {**inherited, **vars(shown)}.items():
        if name.startswith("_") or f"{shown.__name__}.{name}" in NOT_SHOWN:
            continue
        if isinstance(member, (classmethod, staticmethod)) or (named and name in shown._fields):
            continue
        if isinstance(member, property) and member.fget is not None:
            kind = inspect.signature(member.fget).return_annotation
            yield _member(f"`{name}: {kind}`", member.fget)
        elif inspect.isfunction(member):
            kind = "async " if inspect.iscoroutinefunction(member) else ""
            yield _member(f"`{kind}{name}{_signature(member)}`", member)


def _member(title: str, documented: Any) -> str:
    text = _text(documented)
    return f"\n**{title}**" + (f": {text}\n" if text else "\n")


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.name not in ("self", "_cls")]
    text = str(signature.replace(parameters=own)).replace(" -> 'None'", "").replace(" -> None", "")
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _text(documented: Any) -> str:
    """A docstring as Markdown, without what it raises: its sections are lists."""
    text = inspect.cleandoc(documented.__doc__ or "") if documented.__doc__ else ""
    text = re.sub(
        r"\n*^(?:Raises|Example):\n(?: .*\n?|\n(?= ))*", "\n", text, flags=re.MULTILINE
    ).strip()
    if documented in (EventStream, Events):  # not made by programs
        text = re.sub(r"\n*^Args:\n(?: .*\n?|\n(?= ))*", "\n", text, flags=re.MULTILINE).strip()
    if text.startswith(f"{getattr(documented, '__name__', '')}("):
        return ""  # a dataclass without one
    found, inside = [], False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Attributes):", line):
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
