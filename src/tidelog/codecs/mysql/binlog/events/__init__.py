"""Parsers of single binlog events, sans-IO: headers, formats, GTIDs, table maps, queries, payloads.

Formats: MySQL source documentation, "Binary Log Events" and the ``mysql::binlog::event`` classes
(Format_description_event, Gtid_event, Table_map_event, Transaction_payload_event …); tagged GTIDs:
"mysql::serialization" there; MariaDB Server documentation, "Replication Protocol" (GTID_EVENT,
QUERY_COMPRESSED_EVENT, ROWS_EVENT …). Integers are little-endian.

The parsers take an event's body: the bytes between the header and the checksum. They raise
struct.error, IndexError or ValueError on malformed bytes; the scanner converts those to
DecodeError.
"""
