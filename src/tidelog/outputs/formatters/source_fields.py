"""The fields of the block ``source`` of Debezium's envelope, and their types."""

from __future__ import annotations

from tidelog.ports import SourceId

# (name, Kafka Connect's type, may be null). Debezium's connectors have these types.
_COMMON = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", False),
    ("db", "string", False),
    ("sequence", "string", True),
    ("ts_us", "int64", True),
    ("ts_ns", "int64", True),
)
_POSTGRES = (
    ("schema", "string", False),
    ("table", "string", False),
    ("txId", "int64", True),
    ("lsn", "int64", True),
    ("xmin", "int64", True),
)
_BINLOG = (
    ("table", "string", True),
    ("server_id", "int64", False),
    ("gtid", "string", True),
    ("file", "string", False),
    ("pos", "int64", False),
    ("row", "int32", False),
    ("thread", "int64", True),
    ("query", "string", True),
)
_OTHER = (("schema", "string", False), ("table", "string", False), ("position", "int64", False))
_CONNECTORS = {"postgres": "postgresql"}
_OWN = {"postgres": _POSTGRES, "mysql": _BINLOG, "mariadb": _BINLOG}


def source_fields(source: SourceId) -> tuple[tuple[str, str, bool], ...]:
    """Returns (name, Kafka Connect's type, may be null) of each, in order."""
    return (*_COMMON, *_OWN.get(source.kind, _OTHER))


def connector_of(source: SourceId) -> str:
    """Returns Debezium's name of the connector."""
    return _CONNECTORS.get(source.kind, source.kind)
