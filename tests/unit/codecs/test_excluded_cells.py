"""Records without the cells of excluded columns, against records that are built without them."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from tests.support import pgoutput_messages as pg
from tests.support.binlog_events import BinlogBytes

from tidelog.codecs.mysql.binlog.items import TableMapSeen
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.postgres.pgoutput import PgoutputScanner, RelationSeen
from tidelog.errors import DecodeError
from tidelog.model.records import LogBatch

TABLE, OTHER = 16_384, 16_390
INT, VARCHAR, JSON = 3, 15, 245
ABSENT = "absent"
Value = bytes | str | None


def payloads(batches: Sequence[object]) -> list[bytes]:
    found = []
    for batch in batches:
        if isinstance(batch, LogBatch):
            found += [batch.payload[a:b].tobytes() for a, b in pairwise(batch.payload_offsets)]
    return found


# ---------------------------------------------------------------------- PostgreSQL


def scanned(messages: Sequence[bytes], excluded: Sequence[int]) -> list[bytes]:
    scanner = PgoutputScanner()
    columns = [(1, "id", 23, -1)]
    announced = [pg.relation(number, "public", f"t{number}", columns) for number in (TABLE, OTHER)]
    batches = []
    stream = [*announced, pg.begin(1000), *messages, pg.commit(1000, 1048)]
    for item in scanner.feed(*pg.packed(stream)):
        if isinstance(item, RelationSeen):
            mine = item.relation_id == TABLE
            scanner.bind(item.relation_id, 7 if mine else 8, excluded=excluded if mine else ())
        batches.append(item)
    return payloads(batches)


def random_messages(chance: random.Random, excluded: Sequence[int], count: int) -> list[bytes]:
    """Messages of a table of ``count`` columns without the excluded ones, by their numbers."""
    values = [None, pg.UNCHANGED, "", "text", "long" * 100]

    def row() -> list[pg.Value]:
        every = [chance.choice(values) for _ in range(count)]
        return [value for place, value in enumerate(every) if place not in excluded]

    found = []
    for _ in range(20):
        kinds = [
            lambda: pg.insert(TABLE, row()),
            lambda: pg.update(TABLE, row()),
            lambda: pg.update(TABLE, row(), key=row()),
            lambda: pg.update(TABLE, row(), old=row()),
            lambda: pg.delete(TABLE, key=row()),
            lambda: pg.delete(TABLE, old=row()),
        ]
        found.append(chance.choice(kinds)())
    return found


@pytest.mark.parametrize("seed", range(20))
def test_messages_of_postgresql_are_those_of_a_table_without_the_columns(seed: int) -> None:
    count = random.Random(seed).randint(1, 12)
    excluded = sorted(
        random.Random(seed).sample(range(count), random.Random(seed).randint(0, count))
    )
    others = [pg.insert(OTHER, ["1", "one"]), pg.delete(OTHER, key=["1", None])]
    whole = random_messages(random.Random(seed), [], count)
    kept = random_messages(random.Random(seed), excluded, count)
    mixed = [whole[0], others[0], *whole[1:], others[1]]
    expected = [kept[0], others[0], *kept[1:], others[1]]
    assert scanned(mixed, excluded) == expected


def test_a_batch_without_such_rows_is_not_copied() -> None:
    scanner = PgoutputScanner()
    stream = [pg.relation(OTHER, "public", "t", [(1, "id", 23, -1)]), pg.begin(1000)]
    for item in scanner.feed(*pg.packed(stream)):
        if isinstance(item, RelationSeen):
            scanner.bind(OTHER, 8)
            scanner.bind(TABLE, 7, excluded=[0])
    (batch,) = scanner.feed(*pg.packed([pg.insert(OTHER, ["1"])]))
    assert isinstance(batch, LogBatch)
    assert scanner._excluded.remove(batch) is batch


@pytest.mark.parametrize(
    "message",
    [
        pg.insert(TABLE, ["1"]),  # no column 1
        pg.insert(TABLE, ["1", "two"])[:-1],
        pg.insert(TABLE, ["1", "two"])[:-8] + b"x" + pg.insert(TABLE, ["1", "two"])[-7:],
    ],
)
def test_nothing_passes_that_is_not_understood(message: bytes) -> None:
    with pytest.raises(DecodeError, match="a row of schema 7 is malformed"):
        scanned([message], [1])


# ---------------------------------------------------------------------- MySQL, MariaDB


def bits(values: Sequence[bool], unused: bool = False) -> bytes:
    padded = [*values, *[unused] * (-len(values) % 8)]
    return np.packbits(np.array(padded, np.bool_), bitorder="little").tobytes()


def image(types: Sequence[int], values: Sequence[Value]) -> bytes:
    """A row image without the bitmap of its columns."""
    present = [(code, value) for code, value in zip(types, values, strict=True) if value != ABSENT]
    data = bits([value is None for _, value in present])
    for code, value in present:
        if isinstance(value, bytes):
            size = {INT: 0, VARCHAR: 1, JSON: 4}[code]
            data += len(value).to_bytes(size, "little") + value if size else value
    return data


def random_values(
    chance: random.Random, types: Sequence[int], present: Sequence[bool]
) -> list[Value]:
    choices: dict[int, list[Value]] = {
        INT: [None, b"\1\2\3\4"],
        VARCHAR: [None, b"", b"some text"],
        JSON: [None, b"{}", b"document" * 50],
    }
    return [
        chance.choice(choices[code]) if is_present else ABSENT
        for code, is_present in zip(types, present, strict=True)
    ]


@pytest.mark.parametrize("seed", range(30))
def test_images_of_a_binlog_are_those_of_a_table_without_the_columns(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 20)
    types = [chance.choice([INT, VARCHAR, JSON]) for _ in range(count)]
    excluded = sorted(chance.sample(range(count), chance.randint(1, count)))
    kept = [place for place in range(count) if place not in excluded]
    partial = chance.random() < 0.5
    bitmaps = [[chance.random() < 0.8 for _ in range(count)] for _ in range(2)]
    for bitmap in bitmaps:
        bitmap[0] = True
    rows, expected = b"", []
    for _ in range(5):
        before, after = (random_values(chance, types, bitmap) for bitmap in bitmaps)
        json_places = [place for place, code in enumerate(types) if code == JSON]
        is_partial = [chance.random() < 0.5 for code in types if code == JSON]
        of_place = dict(zip(json_places, is_partial, strict=True))
        options = kept_options = b""
        if partial:
            of_kept = [value for place, value in of_place.items() if place in kept]
            options, kept_options = b"\1" + bits(is_partial), b"\1" + bits(of_kept)
        rows += image(types, before) + options + image(types, after)
        kept_types = [types[place] for place in kept]
        expected.append(
            bytes([1, 7 if partial else 3, len(kept), 0])
            + bits([bitmaps[0][place] for place in kept])
            + image(kept_types, [before[place] for place in kept])
            + bits([bitmaps[1][place] for place in kept])
            + kept_options
            + image(kept_types, [after[place] for place in kept])
        )
    log = BinlogBytes()
    log.format_description("8.0.40")
    log.gtid(1)
    log.query("BEGIN")
    metas = {INT: b"", VARCHAR: struct.pack("<H", 80), JSON: b"\4"}
    log.table_map(5, bytes(types), b"".join(metas[code] for code in types))
    before_bits, after_bits = map(bits, bitmaps)
    log.rows(39 if partial else 31, 5, count, rows, before=before_bits, after=after_bits)
    log.xid()
    scanner = BinlogScanner(Flavor.MYSQL, checksum=True, file_number=1, offset=4)
    batches = []
    for item in scanner.feed(*log.arrays()):
        if isinstance(item, TableMapSeen):
            scanner.bind(item.table_id, 7, left_out=excluded)
        batches.append(item)
    assert payloads(batches) == expected
