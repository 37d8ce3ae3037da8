"""The scanner over the binlog files that real servers wrote, against what was written."""

from __future__ import annotations

import random
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

from tidelog.codecs.mysql.binlog import items
from tidelog.codecs.mysql.binlog.items import (
    GtidsSeen,
    QuerySeen,
    RowsOfPreparedTransaction,
    TableMapSeen,
    XaSeen,
    XaState,
)
from tidelog.codecs.mysql.binlog.kernels import split_events
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.model.records import LogBatch, Resume

pytestmark = [pytest.mark.integration]

Row = tuple[str | None, bytes | None]


@pytest.fixture(params=["mysql", "mariadb"], scope="module")
def server(request):
    made = MySqlServer() if request.param == "mysql" else MariaDbServer()
    with made as server:
        server.execute("CREATE DATABASE shop")
        yield server


def binlog_files(server: MySqlFamilyServer) -> list[Path]:
    base = Path(server.execute("SELECT @@log_bin_basename")[0][0])
    return [base.parent / name for name, *_ in server.execute("SHOW BINARY LOGS")]


def wait_for_checkpoint(server: MySqlFamilyServer) -> None:
    """Return once MariaDB has written the last event of its own into its newest file."""
    if server.flavor == "mysql":
        return
    newest = binlog_files(server)[-1].name
    deadline = time.monotonic() + 60
    while server.execute(f"SHOW BINLOG EVENTS IN '{newest}'")[-1][5] != newest:
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Replay:
    """Scans binlog files and applies their rows to a dict: id → (v, b)."""

    def __init__(self, server: MySqlFamilyServer, first: int, resume: Resume | None = None) -> None:
        self.flavor = Flavor(server.flavor)
        self.files = [
            (number, np.frombuffer(path.read_bytes()[4:], dtype=np.uint8))
            for path in binlog_files(server)
            if (number := items.parse_file_name(path.name)[1]) >= first
        ]
        self.first = first
        self.resume = resume
        self.rows: dict[int, Row] = {}
        self.counts: Counter[str] = Counter()
        self.records: list[tuple[int, int]] = []
        self.queries: list[QuerySeen] = []
        self.gtids: list[str] = []
        self.scanner = BinlogScanner(
            self.flavor, resume, checksum=True, file_number=first, offset=4
        )

    def run(self, step: int = 1_000_000) -> Replay:
        for _, data in self.files:
            offsets = np.empty(len(data) // 19 + 2, dtype=np.int64)
            offsets = offsets[: split_events(data, offsets) + 1]
            for i in range(0, len(offsets) - 1, step):
                for item in self.scanner.feed(data, offsets[i : i + step + 1]):
                    self.take(self.scanner, item)
        return self

    def take(self, scanner: BinlogScanner, item: Any) -> None:
        if isinstance(item, TableMapSeen):
            scanner.bind(item.table_id, 5 if item.table == "t" else 0)
        elif isinstance(item, LogBatch):
            self.apply(item)
        elif isinstance(item, QuerySeen):
            self.queries.append(item)
            if item.keyword == "TRUNCATE" and scanner.truncate(5):
                self.rows.clear()
        elif isinstance(item, GtidsSeen):
            if scanner is not self.scanner:
                return  # what is read again has been counted
            self.gtids += [item.text(i) for i in range(len(item))]
        elif isinstance(item, XaSeen) and item.state is XaState.PREPARED:
            self.prepared = item
        elif isinstance(item, XaSeen) and item.state is not XaState.ROLLED_BACK:
            one_phase = item.state is XaState.ONE_PHASE
            self.reread(item if one_phase else self.prepared, item)

    def reread(self, group: XaSeen, decided: XaSeen) -> None:
        number, offset = items.unpack_position(group.begin)
        end = items.unpack_position(group.end)[1]
        file = dict(self.files)[number]
        format_end = int.from_bytes(file[9:13].tobytes(), "little")
        data = np.concatenate([file[:format_end], file[offset - 4 : end - 4]])
        offsets = np.empty(1000, dtype=np.int64)
        count = split_events(data, offsets)
        again = BinlogScanner(
            self.flavor,
            self.scanner.resume,
            checksum=True,
            file_number=number,
            offset=offset,
            as_of=RowsOfPreparedTransaction(decided.begin, decided.commit_ts),
        )
        for item in again.feed(data, offsets[: count + 1]):
            self.take(again, item)
        self.scanner.skip_to(again.resume.position, again.resume.ordinal)

    def apply(self, batch: LogBatch) -> None:
        for i in range(len(batch)):
            start, end = batch.payload_offsets[i : i + 2]
            data = batch.payload[start:end].tobytes()
            version, flags, columns = struct.unpack_from("<BBH", data)
            assert version == 1
            assert columns == 3
            at = 4
            before: dict[int, Any] = {}
            after: dict[int, Any] = {}
            if flags & 1:
                before, at = image(data, at)
            if flags & 2:
                after, at = image(data, at)
            assert at == len(data)
            kind = chr(batch.kind[i])
            self.counts[kind] += 1
            self.records.append((int(batch.position[i]), int(batch.ordinal[i])))
            old: Row = (None, None)
            if kind != "I":
                old = self.rows.pop(before[0])
            if kind != "D":
                key = after.get(0, before.get(0))
                assert key not in self.rows
                self.rows[key] = (after.get(1, old[0]), after.get(2, old[1]))


def image(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """A row image of t as {column: value}, and where it ends."""
    present = [column for column in range(3) if data[at] >> column & 1]
    nulls, at = data[at + 1], at + 2
    values: dict[int, Any] = {}
    for bit, column in enumerate(present):
        if nulls >> bit & 1:
            values[column] = None
        elif column == 0:
            (values[0],) = struct.unpack_from("<i", data, at)
            at += 4
        else:
            width = 1 if column == 1 else 2
            size = int.from_bytes(data[at : at + width], "little")
            value = data[at + width : at + width + size]
            values[column] = value.decode() if column == 1 else value
            at += width + size
    return values, at


def write(server: MySqlFamilyServer, seed: int) -> None:
    """Transactions of all kinds in all row images, compressed where the server can."""
    chance = random.Random(seed)
    mariadb = server.flavor == "mariadb"
    connection = server.connect("shop")
    cursor = connection.cursor()
    keys: set[int] = set()
    xids = 0

    def change(sql: str) -> None:
        cursor.execute(sql)

    def some_change() -> None:
        texts = ["NULL", f"'{chance.randrange(1 << 30)}'", f"repeat('é', {chance.randrange(19)})"]
        value = chance.choice(texts)
        blob = chance.choice(["NULL", f"repeat('z', {chance.choice([0, 3, 700, 5000, 30000])})"])
        key = chance.randrange(200)
        what = chance.randrange(10)
        if key not in keys:
            change(f"INSERT INTO t VALUES ({key}, {value}, {blob})")
            keys.add(key)
        elif what < 5:
            change(f"UPDATE t SET v = {value} WHERE id = {key}")
        elif what == 5:
            change(f"UPDATE t SET b = {blob}, v = 'many' WHERE id > {chance.randrange(200)}")
        elif what == 6 and -key - 1 not in keys:
            change(f"UPDATE t SET id = {-key - 1} WHERE id = {key}")
            keys.remove(key)
            keys.add(-key - 1)
        else:
            change(f"DELETE FROM t WHERE id = {key}")
            keys.discard(key)

    for number in range(150):
        change(f"SET SESSION binlog_row_image = {chance.choice(['FULL', 'MINIMAL', 'NOBLOB'])}")
        if number % 25 == 0:
            change(f"SET GLOBAL binlog_checksum = {chance.choice(['NONE', 'CRC32'])}")
            if mariadb:
                change("SET GLOBAL log_bin_compress_min_len = 30")
                change(f"SET GLOBAL log_bin_compress = {chance.choice(['ON', 'OFF'])}")
            metadata = chance.choice(["FULL", "MINIMAL"])
            change(f"SET GLOBAL binlog_row_metadata = {metadata}")
        if number == 60:
            change("TRUNCATE TABLE t")
            keys.clear()
        held = set(keys)
        xids += 1
        xa = number % 7 == 0
        change(f"XA START 'x{xids}'" if xa else "BEGIN")
        for _ in range(chance.randrange(1, 5)):
            some_change()
        change("INSERT INTO other VALUES (1), (2)")
        if not xa:
            kept = set(keys)
            change("SAVEPOINT a")
            some_change()
            if chance.randrange(2):
                change("ROLLBACK TO SAVEPOINT a")
                keys = kept
            if chance.randrange(5):
                change("COMMIT")
            else:
                change("ROLLBACK")
                keys = held
            continue
        change(f"XA END 'x{xids}'")
        if chance.randrange(2):
            change(f"XA PREPARE 'x{xids}'")
            if chance.randrange(3):
                change(f"XA COMMIT 'x{xids}'")
            else:
                change(f"XA ROLLBACK 'x{xids}'")
                keys = held
        else:
            change(f"XA COMMIT 'x{xids}' ONE PHASE")
    connection.close()


def test_replaying_the_log_gives_the_table(server):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    server.execute("FLUSH BINARY LOGS")
    first = items.parse_file_name(binlog_files(server)[-1].name)[1]
    server.execute("DROP TABLE IF EXISTS t, other", "shop")
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20), b blob)", "shop")
    server.execute("CREATE TABLE other (a int)", "shop")
    write(server, seed)
    server.execute("SET GLOBAL binlog_checksum = CRC32")
    wait_for_checkpoint(server)
    expected = {key: (v, b) for key, v, b in server.execute("SELECT * FROM t", "shop")}
    whole = Replay(server, first).run()
    assert whole.rows == expected
    assert whole.records == sorted(set(whole.records))
    assert min(whole.counts[kind] for kind in "IUD") > 5
    assert any(query.keyword == "TRUNCATE" for query in whole.queries)
    assert not any(query.changes_rows for query in whole.queries)
    if server.flavor == "mysql":
        executed = server.execute("SELECT @@gtid_executed")[0][0]
        assert whole.gtids[-1].split(":") == [executed.split(":")[0], executed.split("-")[-1]]
    else:
        assert whole.gtids[-1] == server.execute("SELECT @@gtid_binlog_pos")[0][0]
    number, data = whole.files[-1]
    assert whole.scanner.position == items.pack_position(number, 4 + len(data))
    pieces = Replay(server, first).run(step=1)
    assert (pieces.rows, pieces.records) == (whole.rows, whole.records)
    assert pieces.scanner.resume == whole.scanner.resume
    middle = whole.records[len(whole.records) // 2]
    resumed = Replay(server, first, Resume(0, *middle))
    resumed.apply = lambda batch: resumed.records.extend(  # type: ignore[method-assign]
        zip(batch.position.tolist(), batch.ordinal.tolist(), strict=True)
    )
    resumed.run()
    assert resumed.records == [record for record in whole.records if record > middle]


def test_statements_in_statement_format_are_reported(server):
    first = items.parse_file_name(binlog_files(server)[-1].name)[1]
    create = "CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY, v varchar(20), b blob)"
    server.execute(create, "shop")
    with server.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("REPLACE INTO t (id, v) VALUES (7777, 'x')")
        cursor.execute("DELETE FROM t WHERE id = 7777")
    found = [q for q in Replay(server, first).run().queries if "7777" in q.sql]
    assert [q.keyword for q in found] == ["REPLACE", "DELETE"]
    assert all(q.changes_rows and q.database == "shop" and not q.alone for q in found)
