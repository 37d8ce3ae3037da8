"""XA transactions: their ids, and the event that ends the first phase."""

from __future__ import annotations

import struct

from tidelog.codecs.mysql.binlog.events.fields import Fields


def xid_text(format_id: int, gtrid: bytes, bqual: bytes) -> bytes:
    """An XA transaction's id as the log's statements spell it."""
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{format_id}".encode()


def parse_xa_prepare(body: bytes) -> tuple[bytes, bool]:
    """(xid, committed in one phase) of an XA_prepare_event."""
    one_phase, format_id, gtrid, bqual = struct.unpack_from("<Biii", body)
    fields = Fields(body, 13)
    return xid_text(format_id, fields.take(gtrid), fields.take(bqual)), bool(one_phase)
