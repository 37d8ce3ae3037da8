"""Connections that are lost while TLS begins, as by a server that is being stopped: nothing that a
person has to change.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

import pytest
from tests.faults.tls_terminator import TlsTerminator
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy

from tidelog.errors import ConnectionLostError, OutputError, OutputRefusedError
from tidelog.outputs.opensearch.client import Cluster, ClusterOptions
from tidelog.sources.mysql import connect as mysql
from tidelog.sources.postgres import connect as postgres_connect

pytestmark = pytest.mark.integration

CLIENT_HELLO = b"\x16\x03"
"""A TLS record's first bytes: a handshake, of version 3."""
RESET = struct.pack("ii", 1, 0)
WAYS = ("ends", "ends amid the answer", "resets")


class CutsHandshakes(Proxy):
    """Forwards a port of its own to ``port`` until a client says hello: then it ends."""

    def __init__(self, port: int, way: str) -> None:
        super().__init__(port)
        self._way = way
        self.times = 0

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._target))
        self._sockets += [client, server]
        self._run(self._back, server, client)
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if CLIENT_HELLO in data:
                    self.times += 1
                    break
                server.sendall(data)
            if self._way == "ends amid the answer":
                server.sendall(data)
                return  # `_back` ends it
            if self._way == "resets":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.close()
        self._end(client, server)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if CLIENT_HELLO in data:
                    client.sendall(data[:40])
                    break
                client.sendall(data)
        self._end(client, server)

    def _end(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("way", WAYS)
def test_mysql_is_asked_again(way: str, mysql_family: MySqlFamilyServer) -> None:
    with CutsHandshakes(mysql_family.port, way) as network:
        url = mysql_family.url.replace(f":{mysql_family.port}", f":{network.port}")
        with pytest.raises(ConnectionLostError):
            mysql.connect(f"{url}?ssl-mode=required", purpose="test")
        assert network.times


@pytest.mark.parametrize("way", WAYS)
def test_postgresql_is_asked_again(way: str, postgres: PostgresServer, tmp_path: Path) -> None:
    with (
        TlsTerminator(postgres.port, tmp_path) as terminator,
        CutsHandshakes(terminator.port, way) as network,
    ):
        dsn = terminator.dsn("postgres").replace(f":{terminator.port}/", f":{network.port}/")
        with pytest.raises(ConnectionLostError):
            postgres_connect.connect(dsn, purpose="test", settings={})
        assert network.times


@pytest.mark.parametrize("way", ["ends", "resets"])
def test_opensearch_is_asked_again(way: str, postgres: PostgresServer, tmp_path: Path) -> None:
    """It never comes to a request: what stands there need not be OpenSearch."""
    with (
        CutsHandshakes(postgres.port, way) as network,
        pytest.raises(OutputError) as raised,
    ):
        Cluster(ClusterOptions((f"https://127.0.0.1:{network.port}",))).request("GET", "/")
    assert network.times
    assert not isinstance(raised.value, OutputRefusedError)
