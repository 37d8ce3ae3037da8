"""GTID sets, and what a SELECT can see by them."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest

from tidelog.codecs.mysql.binlog.items import BinlogServer, GtidsSeen
from tidelog.sources.mysql.stream.gtids import KEPT_BATCHES, GtidSet, SeenGtids, gtid_set

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4f22fa47-71ca-11e1-9e33-c80aa9429562"


def seen(*pairs: tuple[int, int], uuid: str = A) -> GtidsSeen:
    """(position, number) of one source."""
    return GtidsSeen(
        np.array([position for position, _ in pairs], np.int64),
        np.array([number for _, number in pairs], np.int64),
        np.zeros(len(pairs), np.int32),
        (BinlogServer(UUID(uuid)),),
    )


def test_sets_are_read_and_written_as_the_server_does() -> None:
    text = f"{A}:1-3:5:tag:1-2,\n{B}:7"
    found = GtidSet.parse(text)
    assert str(found) == text.replace("\n", "")
    numbers = np.arange(1, 8)
    assert found.contains_all((UUID(A), ""), numbers).tolist() == [1, 1, 1, 0, 1, 0, 0]
    assert found.contains_all((UUID(A), "tag"), numbers).tolist() == [1, 1, 0, 0, 0, 0, 0]
    assert not found.contains_all((UUID(B), "tag"), numbers).any()
    assert str(GtidSet.parse(f"{A}:5-6:1-4")) == f"{A}:1-6"
    assert str(GtidSet.parse("")) == ""
    with pytest.raises(ValueError, match="badly formed"):
        GtidSet.parse("nonsense:1")


def test_supersets() -> None:
    large, small = GtidSet.parse(f"{A}:1-10,{B}:1"), GtidSet.parse(f"{A}:2-3:9")
    assert large.issuperset(small)
    assert not small.issuperset(large)
    assert large.issuperset(GtidSet())
    assert str(small.union(GtidSet.parse(f"{A}:4-8"))) == f"{A}:2-9"


def test_transactions_from_the_first_that_is_not_executed_count_as_invisible() -> None:
    known = SeenGtids()
    known.start(100)
    known.publish(seen((100, 1), (200, 2), (300, 3)))
    known.reach(400)
    assert known.visible_before(GtidSet.parse(f"{A}:1-2"), 400) == 300
    assert known.visible_before(GtidSet.parse(f"{A}:1-3"), 400) == 400


def test_what_lies_before_the_start_must_be_known_to_be_visible() -> None:
    known = SeenGtids()
    known.start(100)
    assert known.visible_before(GtidSet(), 100) is None
    known.publish(seen((100, 1)))
    assert known.visible_before(GtidSet(), 200) is None
    assert known.visible_before(GtidSet(), 200, none_owned=True) == 100
    known.start(100, settled=True)
    assert known.visible_before(GtidSet(), 100) == 100


def test_old_transactions_are_kept_as_a_set() -> None:
    known = SeenGtids()
    known.start(0, settled=True)
    for number in range(1, 2 * KEPT_BATCHES):
        known.publish(seen((10 * number, number)))
    end = 20 * KEPT_BATCHES
    assert known.visible_before(GtidSet.parse(f"{A}:1-{2 * KEPT_BATCHES}"), end) == end
    late = 2 * KEPT_BATCHES - 3
    assert known.visible_before(GtidSet.parse(f"{A}:1-{late - 1}"), end) == 10 * late
    assert known.visible_before(GtidSet.parse(f"{A}:2-{2 * KEPT_BATCHES}"), end) == 10


def test_batches_become_sets() -> None:
    assert str(gtid_set(seen((1, 5), (2, 6), (3, 9)))) == f"{A}:5-6:9"
