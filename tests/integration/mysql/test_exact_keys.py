"""Keys in character sets that Unicode does not hold all of: no two are one, none is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.event_messages import capturing, messages, wait_for
from tests.integration.mysql.value_rows import ValueTable, keeps_surrogates, log_batch
from tests.support.mysql import MySqlFamilyServer

from tidelog import app
from tidelog.codecs.mysql.cell_text import charset_texts
from tidelog.codecs.mysql.cell_text.charset_texts import EXACT_TEXT_MARK
from tidelog.codecs.mysql.rows.keys import BinlogKeys
from tidelog.config import Config
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableName
from tidelog.outputs.formatters.avro import Avro
from tidelog.outputs.formatters.json_formats import CloudEvents, Flat
from tidelog.ports import ChunkRequest, NullRegistry
from tidelog.sources.mysql.chunks.reader import MySqlChunkReader
from tidelog.sources.mysql.chunks.rows import row_texts
from tidelog.state.opening import open_state

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SINGLE = [*charset_texts._CODECS, *charset_texts._UPPER]
CODES = {
    "ucs2": "D800 D801 DBFF DC00 DFFF D83DDE00 D800D800 003F FFFD 0041D8000042 003F003F",
    "utf32": "0000D800 0000DFFF 0000003F 0000FFFD 00000041 0010FFFF 0010FFFF00000041 0001F600",
    "utf16": "003F FFFD DBFFDFFF D83DDE00 DBFFDFFF0041",
    "utf16le": "3F00 FDFF FFDBFFDF 3DD800DE",
    "gbk": "3F 41 A2A1 A2A2 FEFE 8140 A1A1 3FA2A1 A2A13F",
    "big5": "3F 41 A15A A1C3 A1C5 A1FE A240 A2CC A2CE A440 F9FE C6A1 C6A2",
    "euckr": "3F 41 A2FE A2FD C9A1 C9A2 B0A1",
    "gb2312": "3F 41 A2A1 A2A2 B0A1",
    "sjis": "3F 5C 815F 41 8790 8791 889F 415C42 41815F42 5C815F 815C F040",
    "cp932": "3F 5C 41 81E0 8790 81DF 8791 ED40 FA5C EEF9 81CA FA54 8754 FA4A EEEF FA40 F040 8540",
    "ujis": "3F 5C A1C0 7E 8FA2B7 41 A9A1 A9A2 B0A1 8FA1A1",
    "eucjpms": "3F A1C1 8FA2B7 ADE2 8FA2F1 8FF4AC 8FF3FD ADB5 ADF0 A2E2 A9A1 A9A2 8FA1A1 B0A1",
    "gb18030": "3F 41 A6D9 8431A437 8135F437 A8BC FE59 81308130 8431A530 8F39FE39 E3329A36 "
    "E4329A36 FE39FE39",
}
"""Values as hexadecimal digits: with codes of no character and of one that has two."""


def values_of(server: MySqlFamilyServer, charset: str) -> list[str]:
    if charset in CODES:
        codes = CODES[charset].split()
        if charset == "utf32" and not keeps_surrogates(server):
            codes = [code for code in codes if not code.startswith("0000D")]
        return codes
    in_all = ["09", "3F", "41", "61", "7E"]
    if charset == "ascii" and not keeps_surrogates(server):
        return in_all  # it takes no other bytes, either
    return in_all + [f"{byte:02X}" for byte in range(0x80, 256)] + ["3FFF", "FF3F", "413F"]


def sets(server: MySqlFamilyServer) -> list[str]:
    known = [*CODES, *SINGLE]
    return known if server.flavor == "mysql" else [one for one in known if one != "gb18030"]


@pytest.fixture
def table(mysql_family: MySqlFamilyServer, mysql_family_database: str) -> Iterator[ValueTable]:
    with mysql_family.connect(mysql_family_database) as session:
        yield ValueTable(mysql_family, mysql_family_database, session)


def create(table: ValueTable, charset: str, columns: str, key: str) -> int:
    text = f"varchar(9) CHARACTER SET {charset} COLLATE {charset}_bin"
    table.create(f"{columns}, k {text}, PRIMARY KEY ({key})")
    values = values_of(table.server, charset)
    rows = [f"({n}, _{charset} X'{code}')" for n, code in enumerate(values)]
    table.run(f"INSERT INTO t VALUES {', '.join(rows)}")
    return len(rows)


def test_key_is_one_on_both_ways_and_no_other_rows(table: ValueTable) -> None:
    for charset in sets(table.server):
        count = create(table, charset, "id int", "k, id")
        schema = table.schema()
        found = []
        for batch in (log_batch(table.logged()), table.selected(schema)):
            keys = BinlogKeys().keys(batch, np.arange(count, dtype="int32"), schema)
            at = schema.match_key.index("k")
            found.append([BinlogKeys().texts(keys.key(i), schema)[at] for i in range(count)])
        assert found[0] == found[1], charset
        assert len(set(found[0])) == count, charset


def test_every_row_is_read_once_and_found_by_its_key(table: ValueTable) -> None:
    chunks = MySqlChunkReader(table.server.url, NullRegistry(), lock_timeout_ms=300)

    def read(**request: object):  # type: ignore[no-untyped-def]
        try:
            return chunks.read(ChunkRequest(TableName(table.database, "t"), **request))  # type: ignore[arg-type]
        finally:
            chunks.release()

    try:
        for charset in sets(table.server):
            count = create(table, charset, "id int", "k")
            walked, keys, after = [], [], None
            while len(walked) <= count:
                chunk = read(after=after, limit_rows=1)
                walked += [row_texts(chunk.rows, i)[0] for i in range(len(chunk.rows))]
                if chunk.exhausted:
                    break
                after = chunk.last_key
                keys.append(after)
            assert sorted(walked, key=int) == [str(n) for n in range(count)], charset
            again = read(keys=tuple(keys)).rows
            assert set(again.kind.tolist()) == {RecordKind.DUMP_ROW}, charset
            assert len(again) == len(keys), charset
    finally:
        chunks.close()


@pytest.mark.slow
def test_keys_of_messages_are_as_many_as_rows(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, table: ValueTable, tmp_path: Path
) -> None:
    """In every format, of dumped rows, logged ones and deletes."""
    for charset in ("ucs2", "utf32", "utf16", "gbk", "cp932", "sjis"):
        count = create(table, charset, "id int", "k")
        directory = tmp_path / charset
        directory.mkdir()
        url = mysql_family.dsn(mysql_family_database)
        with capturing(directory, mysql_family.flavor, url, f"{table.database}.t") as config:
            wait_for(config, count)
            table.run("UPDATE t SET id = id + 1000")
            wait_for(config, 2 * count)
            table.run("DELETE FROM t")
            wait_for(config, 3 * count)
        for form in (None, Flat(), CloudEvents(), Avro()):
            seen: dict[bytes, int] = {}
            for key, _ in messages(config, form):
                assert key is not None
                seen[key] = seen.get(key, 0) + 1
            assert len(seen) == count, (charset, form)
            assert len(set(seen.values())) == 1, (charset, form)


def test_dump_of_an_older_version_restarts(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, table: ValueTable, tmp_path: Path
) -> None:
    """It had read up to ED40, whose text was FA5C's: behind that it left rows out."""
    text = "varchar(9) CHARACTER SET cp932 COLLATE cp932_bin"
    table.create(f"k {text} PRIMARY KEY, id int")
    codes = ("41", "42", "ED40", "EEF9", "FA54", "FA5C")
    rows = [f"(_cp932 X'{code}', {n})" for n, code in enumerate(codes)]
    table.run(f"INSERT INTO t VALUES {', '.join(rows)}")
    url, name = mysql_family.dsn(mysql_family_database), f"{table.database}.t"
    slow = "dump: {chunk_rows: 3, parallelism: 1, delay_ms: 600s}\n"
    with capturing(tmp_path, mysql_family.flavor, url, name, slow) as config:
        wait_for(config, 3)
        progress = dump_of(config)["tables"][0]
        while not progress["ranges"]:
            time.sleep(0.1)
            progress = dump_of(config)["tables"][0]
    state = open_state(str(config.state.url))
    try:
        (key,) = state.keys("dump/")
        found = state.get(key)
        assert found is not None
        (progress,) = found.value["tables"]
        (read,) = progress["ranges"]
        assert read["high"] == [f"{EXACT_TEXT_MARK}ed40"]
        read["high"] = ["\u7e8a"]
        for later in ("key_spelling", "begun_offset"):
            progress.pop(later, None)
        state.put(key, found.value, None)
    finally:
        state.close()
    with capturing(tmp_path, mysql_family.flavor, url, name) as config:
        wait_for(config, 3 + len(codes))
        dump = dump_of(config)
        while dump["status"] != "completed":
            time.sleep(0.1)
            dump = dump_of(config)
    assert dump["tables"][0]["rows_read"] == len(codes)
    ids = [event["after"]["id"] for event in wait_for(config, 3)]
    assert ids == [0, 1, 2, *range(len(codes))]


def dump_of(config: Config) -> dict[str, Any]:
    (dump,) = app.status(config).document["dumps"]
    return dict(dump)
