"""Converts the application's logical messages to records, and recognizes Tidelog's own.

Any role of the database may write any message (``pg_logical_emit_message`` needs no grant), also
with Tidelog's prefix. So a watermark counts only with the strategy ``message`` and if it has a
watermark's form; only the code that waits for it can verify it (`tidelog.capture.windows.windows`):
watermarks are random.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tidelog.codecs.postgres.pgoutput import LogicalMessage
from tidelog.model.records import Kind, LogBatch, Resume
from tidelog.sources.postgres.catalogue.ddl_trigger import DDL_PREFIX
from tidelog.sources.postgres.chunks.watermarks import MAX_WATERMARK_BYTES, WATERMARK_PREFIX

_to_json = json.JSONEncoder(separators=(",", ":")).encode
MAX_PREFIX_CHARACTERS = 256
"""Number of characters of a prefix that are recorded."""


def is_own_message(message: LogicalMessage) -> bool:
    """Return True if the message has Tidelog's prefix; then it is no record, whoever wrote it."""
    return message.prefix in (WATERMARK_PREFIX, DDL_PREFIX)


def watermark_of(message: LogicalMessage) -> str | None:
    """The watermark in a message with Tidelog's prefix; None if it can't be one."""
    content = message.content
    if not message.transactional or content is None or len(content) > MAX_WATERMARK_BYTES:
        return None
    return content.decode("ascii") if content.isascii() else None


def message_batch(messages: Sequence[LogicalMessage], resume: Resume) -> LogBatch:
    """Convert the application's logical messages, in order, to records: kind MESSAGE, schema id 0,
    JSON payloads. A message outside a transaction has no time: it gets the time of its capture.

    The transaction's number is only in the payload: as the record's number it would take room in
    the journal of invisible transactions, for any role's messages.
    """
    count = len(messages)
    now = time.time_ns() // 1000
    times = [now if each.commit_ts is None else each.commit_ts for each in messages]
    payloads = [_payload(message) for message in messages]
    return LogBatch(
        kind=np.full(count, Kind.MESSAGE, np.uint8),
        schema_id=np.zeros(count, np.int32),
        position=np.array([message.position for message in messages], np.int64),
        ordinal=np.array([message.ordinal for message in messages], np.int64),
        xid=np.zeros(count, np.int64),
        commit_ts=np.array(times, np.int64),
        payload_offsets=np.cumsum([0, *map(len, payloads)], dtype=np.int32),
        payload=np.frombuffer(b"".join(payloads), np.uint8),
        resume=resume,
    )


def _payload(message: LogicalMessage) -> bytes:
    prefix = message.prefix[:MAX_PREFIX_CHARACTERS]
    value: dict[str, Any] = {
        "type": "message",
        "transactional": message.transactional,
        "xid": message.xid,
        # Bytes that are not UTF-8 (the database has no encoding) are replaced.
        "prefix": prefix.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        "content": base64.b64encode(message.content or b"").decode(),
    }
    if message.content is None:
        value["omitted"] = True
    return _to_json(value).encode()
