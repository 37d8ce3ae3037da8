"""An ensemble of three ZooKeepers, of the jars that pyspark brings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.support.zookeeper import ZooKeeperServer

from tidelog.demo.servers.embedded import free_port


class Member(ZooKeeperServer):
    """One of ``peers`` (``host:port:port`` for followers and elections, by number)."""

    _main = "quorum.QuorumPeerMain"

    def __init__(self, number: int, peers: dict[int, str]) -> None:
        super().__init__()
        self.title = f"ZooKeeper {number}"
        self._number = number
        self._peers = peers
        self.port, self.tls_port = free_port(), free_port()

    @property
    def serves(self) -> bool:
        """It is one of a quorum."""
        return self._asked(b"srvr").startswith(b"Zookeeper version")

    def _of_ensemble(self) -> dict[str, object]:
        (self._base / "data" / "myid").write_text(str(self._number))
        self._own(self._base / "data" / "myid")
        peers: dict[str, object] = {f"server.{n}": place for n, place in self._peers.items()}
        return {"initLimit": 20, "syncLimit": 10, **peers}


@contextlib.contextmanager
def ensemble() -> Iterator[list[Member]]:
    """Three that have a quorum."""
    peers = {n: f"127.0.0.1:{free_port()}:{free_port()}" for n in (1, 2, 3)}
    members = [Member(number, peers) for number in peers]
    try:
        start_all(members)
        assert all(member.running for member in members)
        yield members
    finally:
        for member in members:
            member.close()


def start_all(members: Sequence[Member]) -> None:
    """Those that do not run; at once, as none may answer before there is a quorum."""
    with ThreadPoolExecutor(len(members)) as starting:
        for _ in starting.map(lambda member: member.start(), members):
            pass
