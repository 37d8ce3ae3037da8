"""Which columns a table map calls unsigned: YEAR has a bit there in some versions alone.

The bytes are those of two servers, of ``t (id INT PRIMARY KEY, y YEAR, n INT, u INT UNSIGNED)``
with ``binlog_row_metadata=FULL``.
"""

from __future__ import annotations

import pytest

from tidelog.codecs.mysql.binlog.scanner import parse_table_map
from tidelog.codecs.mysql.flavor import Flavor

OF_8_0_12 = bytes.fromhex(
    "550000000000010001640001740004030d0303000e01012004090269640179016e0175080100"
)
OF_9_7_4 = bytes.fromhex(
    "6a0000000000010001640001740004030d0303000e01015004090269640179016e01750801000c01f0"
)
NAMES = ("id", "y", "n", "u")


@pytest.mark.parametrize(
    ("body", "version"), [(OF_8_0_12, (8, 0, 12)), (OF_9_7_4, (9, 7, 4)), (OF_9_7_4, (8, 0, 29))]
)
def test_signs_behind_a_year_are_those_of_their_columns(
    body: bytes, version: tuple[int, ...]
) -> None:
    metadata = parse_table_map(body, 0, Flavor.MYSQL, version).metadata
    assert metadata.unsigned == (False, False, False, True)
    assert metadata.names == NAMES


@pytest.mark.parametrize("version", [(8, 0, 20), (8, 0), ()])
def test_where_the_version_does_not_tell_the_catalogue_has_to(version: tuple[int, ...]) -> None:
    """Without names, as with MINIMAL metadata."""
    for body in (OF_8_0_12, OF_9_7_4):
        metadata = parse_table_map(body, 0, Flavor.MYSQL, version).metadata
        assert metadata.unsigned is None
        assert metadata.names is None


@pytest.mark.parametrize("version", [(8, 0, 12), (8, 0, 20), (9, 7, 4)])
def test_signs_of_another_length_are_malformed_metadata(version: tuple[int, ...]) -> None:
    at = OF_8_0_12.index(b"\x01\x01\x20")
    longer = OF_8_0_12[:at] + b"\x01\x03\x20\x00\x00" + OF_8_0_12[at + 3 :]
    seen = parse_table_map(longer, 0, Flavor.MYSQL, version)
    assert seen.malformed == "the optional metadata (signs)"
    assert seen.has_readable_rows
