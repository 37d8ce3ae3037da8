"""What the hosts of a campaign stand on: nothing of it is left, and a packet that is dropped is."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from tests.campaign.paths import PathProxy
from tests.left_out import SAID
from tests.support.namespaces import Bridge, Namespace, NotPermittedError

pytestmark = pytest.mark.integration
WAIT_S = 0.7
LEAVES = """
import os
from tests.support.namespaces import Bridge, Namespace
bridge = Bridge().__enter__()
Namespace(bridge, "left").__enter__()
print(bridge.number, flush=True)
os._exit(1)
"""
ASKS = """
import socket, sys
reached = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
print("reached", flush=True)
for line in sys.stdin:
    try:
        reached.sendall(b"x")
        reached.settimeout(float(line))
        print(reached.recv(10), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    with ExitStack() as opened:
        try:
            yield opened.enter_context(Bridge())
        except NotPermittedError as lacks:
            pytest.skip(f"{SAID}{lacks}")


def links_of(number: int) -> list[str]:
    links = subprocess.run(("ip", "-o", "link"), capture_output=True, text=True, check=True).stdout
    names = subprocess.run(("ip", "netns"), capture_output=True, text=True, check=True).stdout
    return [word for word in f"{links} {names}".split() if word.startswith(f"tl{number}-")]


class Echoes:
    """A server, the path to it, and a client of it in a namespace, which is led to the path."""

    def __init__(self, bridge: Bridge, opened: ExitStack) -> None:
        self._server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.namespace = opened.enter_context(Namespace(bridge, "host"))
        port = self._server.getsockname()[1]
        self.path = opened.enter_context(PathProxy(port, address=bridge.address))
        self.namespace.lead(port, self.path.port)
        self._port = str(port)
        self._client = subprocess.Popen(
            [*self.namespace.inside, sys.executable, "-c", ASKS, bridge.address, self._port],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        opened.callback(self._client.wait)
        opened.callback(self._client.kill)
        assert self._client.stdout is not None
        assert self._client.stdout.readline() == "reached\n"
        self._served = opened.enter_context(self._server.accept()[0])

    def ask(self, wait_s: float = WAIT_S) -> str:
        """What the client gets for one byte that it sends."""
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(f"{wait_s}\n")
        self._client.stdin.flush()
        self._served.settimeout(wait_s)
        with suppress(TimeoutError):
            self._served.sendall(self._served.recv(10))
        return self._client.stdout.readline().strip()

    def connects(self) -> str:
        """What a new client is told."""
        code = (
            "import socket, sys; "
            f"socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout={WAIT_S})"
        )
        command = [
            *self.namespace.inside, sys.executable, "-c", code, self.path.address, self._port
        ]  # fmt: skip
        told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
        return told.strip().rpartition("\n")[2]


def test_a_dropped_port_says_nothing_and_what_was_sent_comes_later(bridge: Bridge) -> None:
    with ExitStack() as opened:
        echoes = Echoes(bridge, opened)
        assert echoes.ask() == "b'x'"
        echoes.namespace.drop(echoes.path.port)
        assert echoes.ask() == "TimeoutError"
        assert "timed out" in echoes.connects()
        echoes.namespace.let_pass(echoes.path.port)
        assert "x" in echoes.ask(10.0)
        assert echoes.connects() == ""


def test_a_host_without_its_link_hears_nothing(bridge: Bridge) -> None:
    with ExitStack() as opened:
        echoes = Echoes(bridge, opened)
        echoes.namespace.cut_off()
        assert echoes.ask() == "TimeoutError"
        assert "timed out" in echoes.connects()
        echoes.namespace.bring_back()
        assert "x" in echoes.ask(10.0)


def test_two_at_once_do_not_meet_and_nothing_is_left(bridge: Bridge) -> None:
    with Bridge() as other, Namespace(other, "host"):
        assert other.number != bridge.number
        assert links_of(other.number)
    assert not links_of(other.number)


def test_what_a_killed_process_left_is_removed_by_the_next_one(bridge: Bridge) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES], capture_output=True, text=True, check=False
    )
    number = int(done.stdout)
    assert any("left" in name for name in links_of(number)), done.stderr
    with ExitStack() as opened:
        while opened.enter_context(Bridge()).number < number:
            pass  # another process has just given its own back
        assert not any("left" in name for name in links_of(number))
