"""Sessions of a host's processes with ZooKeeper: each is noted when it begins, and when its client
learns that it has expired.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState

from tidelog.state.zookeeper import ZooKeeperConnection

_FILE: Final = "sessions"
_BEGUN, _EXPIRED = "begun", "expired"
_CLOSE_S: Final = 5.0


def install(directory: Path) -> None:
    """In a process of the host, before it begins."""
    begin = ZooKeeperConnection._begin
    noted = (directory / _FILE).open("a", buffering=1)

    def begin_and_note(connection: ZooKeeperConnection) -> KazooClient:
        client = begin(connection)
        last: list[Any] = []

        def note(_state: object) -> None:
            session = client.client_id
            if client.client_state == KeeperState.CONNECTED and session is not None:
                number, password = session
                last[:] = [os.getpid(), number, password.hex()]
                noted.write(json.dumps([_BEGUN, *last]) + "\n")
            elif client.client_state == KeeperState.EXPIRED_SESSION:
                noted.write(json.dumps([_EXPIRED, *last]) + "\n")

        client.add_listener(note)
        if client.connected:  # it was faster
            note(None)
        return client

    ZooKeeperConnection._begin = begin_and_note  # type: ignore[method-assign]


def living(directory: Path, process: int) -> list[tuple[int, str]]:
    """Number and password of each that a process of the host has begun, and not lost."""
    notes = _notes(directory, process)
    begun = dict.fromkeys(session for what, session in notes if what == _BEGUN)
    return [session for session in begun if (_EXPIRED, session) not in notes]


def have_expired(directory: Path, process: int, sessions: Sequence[tuple[int, str]]) -> bool:
    """Has the client of each been told?"""
    notes = _notes(directory, process)
    return all((_EXPIRED, session) in notes for session in sessions)


def expire(hosts: str, session: tuple[int, str]) -> None:
    """Close it in its client's place: to the client it is as if the server had heard nothing of it
    for too long.
    """
    number, password = session
    client = KazooClient(hosts, client_id=(number, bytes.fromhex(password)))
    client.start(_CLOSE_S)
    client.stop()
    client.close()


def _notes(directory: Path, process: int) -> list[tuple[str, tuple[int, str]]]:
    file = directory / _FILE
    lines = file.read_text().splitlines() if file.exists() else []
    found = map(json.loads, lines)
    return [(what, (number, word)) for what, pid, number, word in found if pid == process]
