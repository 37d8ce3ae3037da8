"""Hosts of one's own, with nothing in common but a network: namespaces of network, processes and
names. Needs root, `ip`, `nft` and `unshare`.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import pytest
from tests.support.namespaces import Bridge, Namespace, NotPermittedError

_ENTER = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_RUN = 'hostname "$1"; shift; exec "$@"'


class Host:
    """Use it as a context manager."""

    def __init__(self, name: str, bridge: Bridge, directory: Path) -> None:
        self.name = name
        self.directory = directory / name
        self.directory.mkdir()
        self.gateway = bridge.address
        """Where it finds what this machine has."""
        self._namespace = Namespace(bridge, name)
        self.cut_off, self.bring_back = self._namespace.cut_off, self._namespace.bring_back
        self._running: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._namespace.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        if self._log is not None:
            self._log.close()
        self._namespace.__exit__(kind, error, trace)

    @property
    def said(self) -> str:
        return (self.directory / "output.log").read_text()

    def start(self, *arguments: str) -> None:
        """`tidelog` with these, until it is killed."""
        self._log = (self.directory / "output.log").open("ab")
        self._running = subprocess.Popen(
            self._command(arguments),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
        )

    def run(self, *arguments: str) -> str:
        """What `tidelog` with these answers."""
        done = subprocess.run(
            self._command(arguments),
            capture_output=True,
            cwd=self.directory,
            timeout=120,
            check=False,
        )
        assert not done.returncode, done.stderr.decode()
        return done.stdout.decode()

    def kill(self) -> None:
        """All of its processes: the first one of a namespace takes the others along."""
        if self._running is not None and self._running.poll() is None:
            self._running.send_signal(signal.SIGKILL)
            self._running.wait(30)

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [
            *self._namespace.inside, *_ENTER, "sh", "-c", _RUN, "sh", self.name,
            sys.executable, "-m", "tidelog", *arguments,
        ]  # fmt: skip


@contextmanager
def two_hosts(directory: Path) -> Iterator[tuple[Host, Host]]:
    """Skips where they are not permitted."""
    if not shutil.which("unshare"):
        pytest.skip("hosts of their own need unshare")
    with ExitStack() as opened:
        try:
            bridge = opened.enter_context(Bridge())
        except NotPermittedError as lacks:
            pytest.skip(str(lacks))
        a, b = (
            opened.enter_context(Host(name, bridge, directory)) for name in ("host-a", "host-b")
        )
        yield a, b
