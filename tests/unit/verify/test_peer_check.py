"""A silent peer is checked over another connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.support.engines import until

from tidelog.system import peer_check
from tidelog.system.peer_check import PeerCheck, peer_of

SILENT_S = 1.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHECK_AFTER_S", "ANSWER_S", "CHECK_AGAIN_S"):
        monkeypatch.setattr(peer_check, name, 0.2)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def connected(server: socket.socket) -> PeerCheck:
    """With a connection that lives on."""
    with socket.create_connection(server.getsockname()) as connection:
        server.accept()[0].close()
        return peer_of(connection.fileno(), b"hello")


def answering(server: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    """To one who asks."""

    def serve() -> None:
        asked, _ = server.accept()
        with asked:
            asked.sendall(answer(asked.recv(100)))

    threading.Thread(target=serve, daemon=True).start()


def test_nobody_is_asked_before_they_have_been_silent() -> None:
    asked = threading.Event()

    def ask() -> bool:
        asked.set()
        return True

    found = PeerCheck(ask)
    for _ in range(20):
        assert not found.is_lost(0.1)
        time.sleep(0.02)
    assert not asked.is_set()


def test_who_answers_another_connection_is_there(server: socket.socket) -> None:
    found = connected(server)
    heard: list[bytes] = []

    def answer(hello: bytes) -> bytes:
        heard.append(hello)
        return b"N"

    answering(server, answer)
    assert not found.is_lost(SILENT_S)
    until(lambda: heard)
    assert heard == [b"hello"]
    time.sleep(0.1)
    assert not found.is_lost(SILENT_S)


def test_who_answered_is_asked_again(server: socket.socket) -> None:
    found = connected(server)
    answering(server, lambda _hello: b"N")  # once
    assert not found.is_lost(SILENT_S)
    until(lambda: found.is_lost(SILENT_S))


def test_who_accepts_and_says_nothing_is_lost(server: socket.socket) -> None:
    found = connected(server)
    assert not found.is_lost(SILENT_S)
    until(lambda: found.is_lost(SILENT_S))


@pytest.mark.parametrize("how", ["refuses", "closes"])
def test_who_refuses_or_closes_is_lost(server: socket.socket, how: str) -> None:
    found = connected(server)
    if how == "refuses":
        server.close()
    else:
        answering(server, lambda _hello: b"")
    assert not found.is_lost(SILENT_S)
    until(lambda: found.is_lost(SILENT_S))


def test_a_question_without_end_is_not_waited_for() -> None:
    never = threading.Event()
    found = PeerCheck(lambda: never.wait())
    began = time.monotonic()
    until(lambda: found.is_lost(SILENT_S))
    assert time.monotonic() - began < 5
    never.set()


def test_a_peer_that_sends_again_is_waited_for_again() -> None:
    found = PeerCheck(lambda: False)
    until(lambda: found.is_lost(SILENT_S))
    assert not found.is_lost(0.0)
    assert not found.is_lost(SILENT_S)


def test_an_answer_of_a_silence_before_does_not_count() -> None:
    found = PeerCheck(lambda: False)
    until(lambda: found.is_lost(SILENT_S))
    time.sleep(0.5)
    # It spoke meanwhile, nobody looked, and it is silent again.
    assert not found.is_lost(0.25)


def test_who_has_gone_already_is_lost(server: socket.socket) -> None:
    connection = socket.create_connection(server.getsockname())
    server.accept()[0].close()
    assert connection.recv(1) == b""
    connection.shutdown(socket.SHUT_RDWR)
    with connection:
        found = peer_of(connection.fileno())
    until(lambda: found.is_lost(SILENT_S))
