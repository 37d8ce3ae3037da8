"""Which transactions an event log holds, by their GTIDs, as of each place that is written."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.codecs.mysql.binlog.items import BinlogServer, GtidSource, GtidsSeen, MariaDbSource
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.model.records import Resume
from tidelog.sources.mysql.stream.gtids import GtidSet, LoggedGtids, MariaDbGtids, difference, parse

UUID_A = UUID(int=1)
SOURCES: dict[Flavor, GtidSource] = {
    Flavor.MYSQL: BinlogServer(UUID_A),
    Flavor.MARIADB: MariaDbSource(0, 7),
}


def seen(source: GtidSource, begins: Iterable[tuple[int, int]]) -> GtidsSeen:
    """``begins``: position and number of each."""
    positions, numbers = zip(*begins, strict=True)
    count = len(positions)
    return GtidsSeen(
        np.array(positions, np.int64),
        np.array(numbers, np.int64),
        np.zeros(count, np.int32),
        (source,),
    )


def logged(flavor: Flavor, text: str) -> LoggedGtids:
    found = LoggedGtids()
    found.begin(flavor, parse(flavor, text), Resume(100, 0, -1))
    return found


@pytest.fixture(params=[Flavor.MYSQL, Flavor.MARIADB])
def flavor(request: pytest.FixtureRequest) -> Flavor:
    found: Flavor = request.param
    return found


def texts(flavor: Flavor, last: int) -> str:
    source = SOURCES[flavor]
    return source.text(last) if flavor is Flavor.MARIADB else f"{UUID_A}:1-{last}"


def test_a_place_holds_what_begins_before_it(flavor: Flavor) -> None:
    found = logged(flavor, texts(flavor, 1))
    found.publish(seen(SOURCES[flavor], [(100, 2), (200, 3), (300, 4), (400, 5)]))
    # The transaction at 200 ends at 300, and all of it is written.
    resume = found.with_gtids(Resume(300, 200, 4))
    assert (resume.executed, resume.begun) == (texts(flavor, 3), "")
    # The one at 300 in part.
    resume = found.with_gtids(Resume(300, 300, 0))
    assert (resume.executed, resume.begun) == (texts(flavor, 3), SOURCES[flavor].text(4))
    assert found.with_gtids(Resume(300, 300, 0)) == resume, (
        "asked again where a write is tried again"
    )
    resume = found.with_gtids(Resume(500, 400, 0))
    assert (resume.executed, resume.begun) == (texts(flavor, 5), "")


def test_a_batch_that_is_cut_does_not_claim_its_rest(flavor: Flavor) -> None:
    """At a watermark: the place that may be acknowledged stays, records are written."""
    found = logged(flavor, texts(flavor, 1))
    found.publish(seen(SOURCES[flavor], [(100, 2), (200, 3), (300, 4)]))
    resume = found.with_gtids(Resume(100, 200, 1))
    assert (resume.executed, resume.begun) == (texts(flavor, 2), SOURCES[flavor].text(3))


def test_what_is_not_known_is_not_said(flavor: Flavor) -> None:
    found = LoggedGtids()
    assert found.with_gtids(Resume(9, 3, 0)) == Resume(9, 3, 0)
    found = logged(flavor, texts(flavor, 1))
    assert found.with_gtids(Resume(150, 160, 0)).executed == "", "a transaction without a GTID"


def numbered(parts: set[int]) -> GtidSet:
    return GtidSet.parse(":".join([str(UUID_A), *map(str, sorted(parts))]) if parts else "")


@given(st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)))
def test_sets_without_others(left: set[int], right: set[int]) -> None:
    assert str(numbered(left).minus(numbered(right))) == str(numbered(left - right))


def test_mariadbs_last_numbers() -> None:
    held = MariaDbGtids.parse("0-1-5,0-2-9,1-1-3")
    other = MariaDbGtids.parse("0-1-5,0-2-8")
    assert str(difference(held, other)) == "0-2-9,1-1-3"
    assert not difference(other, held)
    assert str(held.union(MariaDbGtids.parse("0-1-7"))) == "0-1-7,0-2-9,1-1-3"
    assert held.contains(MariaDbSource(0, 2), np.array([8, 9, 10])).tolist() == [True, True, False]
    assert held.contains(MariaDbSource(0, 3), np.array([1])).tolist() == [False]
