"""What went wrong in a Python process of Spark comes back as text: find our error in it."""

from __future__ import annotations

import re

from tidelog import errors

_OURS = re.compile(
    r"tidelog\.errors\.(\w+): (.+?)(?=\n\s*\n|\n\s*at |\n[^\n]*SQLSTATE|\Z)", re.DOTALL
)


def find_error(text: str) -> errors.TidelogError | None:
    """The TidelogError that a Python traceback in ``text`` ends with, rebuilt; else None."""
    found = _OURS.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.TidelogError)):
        return None
    if kind is errors.MissingExtraError:
        return errors.UsageError(message.strip())
    return kind(message.strip())
