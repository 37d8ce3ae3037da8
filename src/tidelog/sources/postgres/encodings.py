"""Sets sessions to the database's own encoding, so that no value can fail to be converted.

For a client with encoding UTF8 the server refuses values that it can't convert: a byte above 0x7F
that is no UTF-8 in a database of encoding SQL_ASCII, a byte that an encoding does not define. One
such value would end the whole stream, at every attempt. So Tidelog receives the bytes, and
`ServerText` converts them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Dumper, Loader

from tidelog.codecs.postgres.server_texts import ServerText, server_text
from tidelog.errors import PreflightError
from tidelog.sources.postgres import async_results

_TEXTS = (25, 1043, 1042, 19, 705)  # text, varchar, bpchar, name, unknown
_JSON = (114, 3802)  # json, jsonb


def set_database_encoding(pgconn: pq.abc.PGconn) -> ServerText | None:
    """Set the session's encoding to the database's; returns None if it is UTF8.

    Raises PreflightError for an encoding that Tidelog can't convert. The server could convert it,
    but a value with an undefined byte would end the stream, at every attempt.
    """
    name = (pgconn.parameter_status(b"server_encoding") or b"UTF8").decode("ascii")
    texts = server_text(name)
    if texts is None and name != "UTF8":
        raise PreflightError(unreadable(name))
    if texts is not None:
        result = async_results.run_command(pgconn, f"SET client_encoding = '{name}'".encode())
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)
    return texts


def unreadable(encoding: str) -> str:
    """The message that a database of this encoding is refused."""
    return (
        f"the database's encoding is {encoding}, whose texts Tidelog can't convert; nothing is "
        "captured from it. Move the data to a database of encoding UTF8 (pg_dump, then createdb "
        "--encoding=UTF8 and pg_restore)"
    )


def texts_of(pgconn: pq.abc.PGconn) -> ServerText | None:
    """The converter of the session's texts; None: they are UTF-8."""
    return server_text((pgconn.parameter_status(b"client_encoding") or b"UTF8").decode("ascii"))


def encoded(pgconn: pq.abc.PGconn, query: str) -> bytes:
    """A statement in the session's encoding. Raises UnicodeEncodeError if the encoding lacks a
    character.
    """
    texts = texts_of(pgconn)
    return query.encode() if texts is None else texts.encode(query)


def adapt(connection: psycopg.Connection[Any], texts: ServerText) -> None:
    """Let ``texts`` convert the connection's statements, parameters and results. Statements given
    as bytes are UTF-8, whatever the session's encoding.
    """

    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(query, str):
                query = query.encode()
            if isinstance(query, bytes) and not query.isascii():
                query = texts.encode(query.decode())
            return super().execute(query, *arguments, **options)

    connection.cursor_factory = Cursor
    connection.adapters.register_dumper(str, _dumper(texts.encode))
    for oid in _TEXTS:
        connection.adapters.register_loader(oid, _loader(texts.decode))
    for oid in _JSON:
        connection.adapters.register_loader(oid, _loader(lambda d: json.loads(texts.decode(d))))


def _dumper(encode: Callable[[str], bytes]) -> type[Dumper]:
    class TextDumper(Dumper):
        def dump(self, obj: str) -> bytes:
            return encode(obj)

    return TextDumper


def _loader(decode: Callable[[bytes], Any]) -> type[Loader]:
    class TextLoader(Loader):
        def load(self, data: Any) -> Any:
            return decode(bytes(data))

    return TextLoader
