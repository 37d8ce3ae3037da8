"""Handles updates that change the key: downstream, a delete of the old key and a creation of the
new one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.decode import Decoded
from tidelog.codecs.wire_formats import nan_key
from tidelog.model.records import Bools, Int64s
from tidelog.model.schema import TableSchema


def find_key_changes(decoded: Decoded, target: TableSchema) -> Bools:
    """bool[n]: True for updates whose key differs from the old row's."""
    before, after = decoded.before, decoded.after
    assert before is not None
    assert after is not None
    moved = np.zeros(len(decoded), np.bool_)
    both = pc.and_(before.is_valid(), after.is_valid())
    if not both.true_count:
        return moved
    nan_columns = nan_key(target)
    for name in target.match_key:
        at = before.type.get_field_index(name)
        old, new = before.field(at), after.field(at)
        # A null old key is not in the record: it is unchanged.
        differs = pc.fill_null(pc.not_equal(old, new), False)
        if name in nan_columns and (target.identity_kind == "f" or name in target.identity):
            differs = pc.or_(differs, pc.not_equal(old.is_null(), new.is_null()))  # NaN
        moved |= pc.and_(both, differs).to_numpy(zero_copy_only=False)
    return moved


def expand_key_changes(moved: Bools) -> tuple[Int64s, Bools]:
    """Expand each key change of ``n`` records to two events.

    Returns int64[m], the record of each event; and bool[m], True for the first of two, the old
    key's delete.
    """
    at = np.repeat(np.arange(len(moved), dtype=np.int64), 1 + moved)
    first = np.zeros(len(at), np.bool_)
    first[np.flatnonzero(moved[at])[::2]] = True
    return at, first


def ops_of(op: pa.Array, moved: Bools, at: Int64s, first: Bools) -> pa.Array:
    """The op of each event of `expand_key_changes`."""
    op = op.take(pa.array(at))
    return pc.if_else(pa.array(first), "d", pc.if_else(pa.array(moved[at]), "c", op))
