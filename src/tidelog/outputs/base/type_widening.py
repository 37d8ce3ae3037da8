"""Which types hold every value of another one, however a destination spells its types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_DECIMAL = re.compile(r"(decimal\w*)\((\d+), ?(\d+)\)")

Wider = Mapping[str, Sequence[str]]


def holds(wide: str, narrow: str, wider: Wider, *, rescales: bool = True) -> bool:
    """Does every value of the type ``narrow`` fit into ``wide``, another type?

    Args:
        wide: the one's name; a decimal's ends in its precision and scale, ``(p, s)``.
        narrow: the other's name.
        wider: by a type's name, those that hold all its values; without decimals.
        rescales: a decimal of more digits may have a larger scale, too.
    """
    if wide in wider.get(narrow, ()):
        return True
    one, other = _DECIMAL.fullmatch(wide), _DECIMAL.fullmatch(narrow)
    if one is None or other is None or one[1] != other[1]:
        return False
    digits, scale = int(one[2]), int(one[3])
    if not rescales and scale != int(other[3]):
        return False
    return scale >= int(other[3]) and digits - scale >= int(other[2]) - int(other[3])
