"""Where two hosts keep their event log and their state, with the paths that lead there."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from tests.support.faulty_network import FaultyNetwork
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Server
from tests.support.zookeeper_ensemble import Member, start_all

from tidelog.demo.servers.embedded import EmbeddedServer


class Place(Protocol):
    """
    Attributes:
        name: for the report.
        ports: where each path of a host leads, beside that to the database.
        direct_ports: the same for who judges, whom no fault of a network befalls.
        on_disk: the log is in a directory.
        bucket: the network before it, if log and state are in one.
        put_of_segment: how a request begins there that appends to the log.
        members: of the ensemble that keeps the state, if one does.
    """

    name: str
    on_disk: bool
    ports: dict[str, int]
    bucket: FaultyNetwork | None
    put_of_segment: str
    members: Sequence[Member]

    @property
    def direct_ports(self) -> dict[str, int]: ...

    def sections(self, ports: Mapping[str, int], address: str) -> str:
        """``log`` and ``state`` of a configuration that goes by these ports of this address."""
        ...

    def files(self) -> Path:
        """Where the event log's segments are, for whoever looks at their times."""
        ...

    def restart(self) -> None:
        """Restart what keeps the state."""
        ...


class OnS3:
    """Log and state in one bucket (``log:``). S3Proxy looks at conditions before it writes, so
    requests of both hosts come one after the other.
    """

    name = "log:"
    on_disk = False
    members: Sequence[Member] = ()

    def __init__(self, server: S3Server, opened: ExitStack) -> None:
        self._server = server
        self._prefix = f"campaign-{secrets.token_hex(4)}"
        in_turn = opened.enter_context(FaultyNetwork(server.port, one_at_a_time=True))
        self.direct_ports = {"log and state": in_turn.port}
        self.bucket: FaultyNetwork | None = opened.enter_context(FaultyNetwork(in_turn.port))
        self.ports = {"log and state": self.bucket.port}
        self.put_of_segment = f"PUT /{server.bucket}/{self._prefix}/0"

    def sections(self, ports: Mapping[str, int], address: str) -> str:
        endpoint = f"http://{address}:{ports['log and state']}"
        options = {**self._server.options, "endpoint": endpoint}
        log = {"path": self._server.url(self._prefix), "storage_options": options}
        return f"log: {json.dumps({**log, 'rollup_bytes': 0})}\nstate: {{url: 'log:'}}\n"

    def files(self) -> Path:
        return self._server.files(self._prefix)

    def restart(self) -> None:
        _restart(self._server)


class _Shared:
    """The log in a directory that both hosts have."""

    on_disk = True
    ports: dict[str, int]
    bucket: FaultyNetwork | None = None
    put_of_segment = ""
    members: Sequence[Member] = ()

    @property
    def direct_ports(self) -> dict[str, int]:
        return self.ports

    def __init__(self, directory: Path) -> None:
        self._log = directory / "log"

    def _section(self, url: str) -> str:
        return f"log: {{path: '{self._log}', rollup_bytes: 0}}\nstate: {{url: '{url}'}}\n"

    def files(self) -> Path:
        return self._log


class StateInPostgres(_Shared):
    name = "postgresql://"

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        super().__init__(directory)
        self._server = server
        self._database = f"state_{secrets.token_hex(4)}"
        server.create_database(self._database)
        self.ports = {"state": server.port}

    def sections(self, ports: Mapping[str, int], address: str) -> str:
        return self._section(f"postgresql://postgres@{address}:{ports['state']}/{self._database}")

    def restart(self) -> None:
        self._server.restart(mode="immediate")


class StateInZooKeeper(_Shared):
    """Of an ensemble. A host has a path to each of its members."""

    name = "zookeeper://"

    def __init__(self, members: Sequence[Member], directory: Path) -> None:
        super().__init__(directory)
        self.members = members
        start_all(members)  # a run that failed may have left some killed
        self._path = f"/tidelog/{secrets.token_hex(4)}"
        self.ports = {f"state {n}": member.port for n, member in enumerate(members, 1)}

    def sections(self, ports: Mapping[str, int], address: str) -> str:
        hosts = ",".join(f"{address}:{ports[name]}" for name in self.ports)
        return self._section(f"zookeeper://{hosts}{self._path}")

    def restart(self) -> None:
        for member in self.members:
            member.kill()
        start_all(self.members)


def _restart(server: EmbeddedServer) -> None:
    server.kill()
    server.start()
