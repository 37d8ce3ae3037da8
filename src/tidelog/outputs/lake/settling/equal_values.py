"""Compares values of any type, row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.model.records import Bools


def equal_values(left: pa.Array, right: pa.Array) -> Bools:
    """Returns bool[n]: which values are equal; null is equal to null, and NaN to NaN, but −0.0 is
    not 0.0. Values of a type that can't be compared, such as maps, are different.

    Args:
        left: n values.
        right: as many, of the same type.
    """
    kind = left.type
    if pa.types.is_list(kind):
        return _equal_lists(left, right)
    if pa.types.is_struct(kind):
        found = _flags(pc.equal(left.is_valid(), right.is_valid()))
        for ours, theirs in zip(left.flatten(), right.flatten(), strict=True):
            found &= equal_values(ours, theirs)
        return found
    try:
        same = pc.equal(left, right)
    except pa.ArrowNotImplementedError:
        return np.zeros(len(left), np.bool_)
    found = _flags(same.fill_null(False)) | _both(left.is_null(), right.is_null())
    if pa.types.is_floating(kind):
        signs = (np.signbit(each.fill_null(0).to_numpy()) for each in (left, right))
        found &= np.equal(*signs)
        found |= _both(pc.is_nan(left).fill_null(False), pc.is_nan(right).fill_null(False))
    return found


def _equal_lists(left: pa.Array, right: pa.Array) -> Bools:
    lengths = [
        pc.list_value_length(each).fill_null(-1).to_numpy(zero_copy_only=False)
        for each in (left, right)
    ]
    found: Bools = lengths[0] == lengths[1]
    at = np.flatnonzero(found & (lengths[0] > 0))
    ours, theirs = (each.take(pa.array(at)).flatten() for each in (left, right))
    of_row = np.repeat(at, lengths[0][at])
    found[of_row[~equal_values(ours, theirs)]] = False
    return found


def _both(left: pa.Array, right: pa.Array) -> Bools:
    return _flags(pc.and_(left, right))


def _flags(values: pa.Array) -> Bools:
    found: Bools = values.to_numpy(zero_copy_only=False).astype(np.bool_)
    return found
