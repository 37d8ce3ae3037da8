"""Checks over another connection whether a silent peer still answers, and knows a TLS handshake
that was cut off.

If a path loses packets, neither end notices: a program that waits for an answer waits forever.
Meanwhile a lease that is renewed over another path keeps all standbys out.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

CHECK_AFTER_S: Final = 4.0
"""Seconds of silence before the peer is checked."""
ANSWER_S: Final = 6.0
"""Seconds that an answer may take. Both together are no longer than a lease."""
CHECK_AGAIN_S: Final = 10.0
"""A peer that answered may have been busy, and fail later."""


class PeerCheck:
    """Checks silent peers in its own threads. Used by one thread."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        """``ask``: returns whether the peer answers. May take forever."""
        self._ask = ask
        self._probe: _Probe | None = None

    def is_lost(self, silent_s: float) -> bool:
        """Return whether the peer was silent for ``silent_s``, was checked, and did not answer.
        Never waits.
        """
        if silent_s < CHECK_AFTER_S:
            self._probe = None
            return False
        probe, now = self._probe, time.monotonic()
        if probe is not None and probe.started_at < now - silent_s:
            probe = None  # of a former silence, which has ended
        if probe is None or (probe.answered and now - probe.started_at >= CHECK_AGAIN_S):
            self._probe = _Probe(self._ask)
            return False
        if probe.answered is None:
            return now - probe.started_at >= ANSWER_S
        return not probe.answered


class _Probe:
    """One request to the peer, in its own thread."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self.answered: bool | None = None
        self.started_at = time.monotonic()
        self._ask = ask
        threading.Thread(target=self._run, name="tidelog-peer-check", daemon=True).start()

    def _run(self) -> None:
        self.answered = self._ask()


def peer_of(connection: int, hello: bytes = b"") -> PeerCheck:
    """Return the check of the server at the other end of a connection.

    Args:
        connection: its file descriptor.
        hello: bytes that any server answers; empty if the server speaks first.
    """
    try:
        with socket.socket(fileno=os.dup(connection)) as original:
            family, address = original.family, original.getpeername()
    except OSError:  # it is closed already, as its reader will find out
        return PeerCheck(lambda: False)

    def ask() -> bool:
        # A refused connection is no answer: a host that was restarted has lost ours, too.
        try:
            with socket.socket(family) as probe_socket:
                probe_socket.settimeout(ANSWER_S)
                probe_socket.connect(address)
                probe_socket.sendall(hello)
                return bool(probe_socket.recv(1))
        except OSError:
            return False

    return PeerCheck(ask)


CUT_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""The connection ended during the handshake without a reason, as with a stopping server.

A retry may help; other TLS errors need a person.
"""
