"""Logical messages in the form of Debezium's connector for PostgreSQL.

The expected texts follow its source (`LogicalDecodingMessageMonitor`, `PostgresSchemaFactory`), and
where we differ docs/reference/debezium.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.build_log import BuiltLog

from tidelog.codecs.postgres.pgoutput import LogicalMessage
from tidelog.model.records import Resume
from tidelog.outputs.base import ranges
from tidelog.outputs.formatters.messages import LogicalMessages
from tidelog.sources.postgres.stream.log_reader import message_batch
from tidelog.spark.formats.json_values import ValueModes

SENT = [
    LogicalMessage(True, "outbox", b"\xffhi?>", 2000, 0, 735, 1_700_000_000_000_001),
    LogicalMessage(False, 'a"b', b"", 2100, 0),
    LogicalMessage(True, "other", None, 2200, 0, 736, 1_700_000_000_000_002),
]


def built(path: Path) -> BuiltLog:
    log = BuiltLog(path)
    table = log.table("public.t", {"id": "int64"})
    log.insert(table, "1")
    log.flush()
    log.writer.append_log([message_batch(SENT, Resume(2200, 2200, 0))], Resume(2200, 2200, 0))
    return log


def read_messages(path: Path, how: LogicalMessages) -> pa.RecordBatch:
    log = built(path).log
    refs = ranges.segments_with_messages(log, log.head_offset, log.latest_offset())
    assert len(refs) == 1
    (batch,) = ranges.message_records(log, refs)
    return how.format(ranges.message_target(log), batch)


def test_a_message_has_the_form_of_debezium(tmp_path: Path) -> None:
    found = read_messages(tmp_path, LogicalMessages("shop.message"))
    assert found.column("topic").to_pylist() == ["shop.message"] * 3
    assert found.column("key").to_pylist() == [
        b'{"prefix":"outbox"}',
        b'{"prefix":"a\\"b"}',
        b'{"prefix":"other"}',
    ]
    versions = found.column("version").to_pylist()
    assert versions == sorted(set(versions))
    first, second, third = (json.loads(value) for value in found.column("value").to_pylist())
    assert list(first) == ["op", "ts_ms", "source", "transaction", "message"]
    assert first["op"] == "m"
    assert first["message"] == {"prefix": "outbox", "content": "/2hpPz4="}
    assert first["transaction"] is None
    source: dict[str, Any] = first["source"]
    assert (source["schema"], source["table"], source["db"]) == ("", "", "shop")
    assert (source["txId"], source["lsn"], source["ts_ms"]) == (735, 2000, 1_700_000_000_000)
    assert (second["source"]["txId"], second["source"]["lsn"]) == (None, 2100)
    assert second["ts_ms"] > 1_700_000_000_000  # when it was captured
    assert second["message"] == {"prefix": 'a"b', "content": ""}
    assert third["message"] == {"prefix": "other", "content": None}  # it was too long to be kept


def test_the_content_follows_the_binary_mode(tmp_path: Path) -> None:
    contents = {}
    for mode in ("base64", "bytes", "hex", "base64-url-safe"):
        handling = ValueModes(binary=mode)  # type: ignore[arg-type]
        found = read_messages(tmp_path / mode, LogicalMessages("m", handling=handling))
        contents[mode] = json.loads(found.column("value")[0].as_py())["message"]["content"]
    assert contents == {
        "base64": "/2hpPz4=",
        "bytes": "/2hpPz4=",
        "hex": "ff68693f3e",
        "base64-url-safe": "_2hpPz4=",
    }


def test_prefixes_choose(tmp_path: Path) -> None:
    found = read_messages(tmp_path, LogicalMessages("m", ("out*", "oth")))
    assert found.column("key").to_pylist() == [b'{"prefix":"outbox"}']


def test_schemas_name_what_connect_names(tmp_path: Path) -> None:
    found = read_messages(
        tmp_path, LogicalMessages("m", handling=ValueModes(binary="bytes", schemas=True))
    )
    key = json.loads(found.column("key")[0].as_py())
    value = json.loads(found.column("value")[0].as_py())
    assert key["payload"] == {"prefix": "outbox"}
    package = "io.debezium.connector.postgresql."
    assert (key["schema"]["name"], key["schema"]["version"]) == (package + "MessageKey", 1)
    assert value["schema"]["name"] == package + "MessageValue"
    fields = {each["field"]: each for each in value["schema"]["fields"]}
    assert list(fields) == list(value["payload"])
    assert fields["message"]["name"] == package + "Message"
    assert [each["type"] for each in fields["message"]["fields"]] == ["string", "bytes"]
    of_source = [each["field"] for each in fields["source"]["fields"]]
    assert of_source == list(value["payload"]["source"])
