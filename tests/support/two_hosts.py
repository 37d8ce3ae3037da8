"""Hosts of one's own, with nothing in common but a network: namespaces of network, processes and
names. Needs root, `ip` and `unshare`.
"""

from __future__ import annotations

import os
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
from tests.campaign.paths import PathProxy
from tests.support.faulty_network import FaultyNetwork

GATEWAY = "10.213.77.1"
"""Where hosts find what this machine has."""
_BRIDGE = "tidelog-br"
_ENTER = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_RUN = 'hostname "$1"; shift; exec "$@"'


class ServerPath(PathProxy):
    """From the hosts to a server of this machine."""

    address = GATEWAY


class BucketPath(FaultyNetwork):
    """The same to S3Proxy: its requests come one after the other."""

    address = GATEWAY


class Host:
    """Use it as a context manager."""

    def __init__(self, name: str, number: int, directory: Path) -> None:
        self.name = name
        self.directory = directory / name
        self.directory.mkdir()
        self._namespace, self._link = f"tidelog-{name}", f"tl-{name}"
        self._address = f"10.213.77.{number + 1}/24"
        self._running: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Self:
        inside = ("ip", "-n", self._namespace)
        for command in (
            ("ip", "netns", "add", self._namespace),
            ("ip", "link", "add", self._link, "type", "veth", "peer", "eth0", "netns",
             self._namespace),
            ("ip", "link", "set", self._link, "master", _BRIDGE, "up"),
            (*inside, "addr", "add", self._address, "dev", "eth0"),
            (*inside, "link", "set", "eth0", "up"),
            (*inside, "link", "set", "lo", "up"),
        ):  # fmt: skip
            try:
                _required(command)
            except subprocess.CalledProcessError:
                self._remove()
                raise
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
        self._remove()

    def _remove(self) -> None:
        """The link first: the kernel may keep it for a while with a namespace that is gone."""
        for command in (("link", "del", self._link), ("netns", "del", self._namespace)):
            subprocess.run(("ip", *command), check=False)

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

    def cut_off(self) -> None:
        """Nothing comes to it, or from it."""
        _required(("ip", "link", "set", self._link, "down"))

    def bring_back(self) -> None:
        _required(("ip", "link", "set", self._link, "up"))

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [
            "ip", "netns", "exec", self._namespace, *_ENTER, "sh", "-c", _RUN, "sh", self.name,
            sys.executable, "-m", "tidelog", *arguments,
        ]  # fmt: skip


@contextmanager
def two_hosts(directory: Path) -> Iterator[tuple[Host, Host]]:
    """Skips where they are not permitted."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("network namespaces need root, ip and unshare")
    made = subprocess.run(
        ("ip", "link", "add", _BRIDGE, "type", "bridge"), capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a bridge can't be made here: {made.stderr.decode().strip()}")
    with ExitStack() as opened:
        opened.callback(subprocess.run, ("ip", "link", "del", _BRIDGE), check=False)
        _required(("ip", "addr", "add", f"{GATEWAY}/24", "dev", _BRIDGE))
        _required(("ip", "link", "set", _BRIDGE, "up"))
        hosts = [Host(name, n, directory) for n, name in enumerate(("host-a", "host-b"), 1)]
        for host in hosts:
            opened.enter_context(host)
        yield hosts[0], hosts[1]


def _required(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)
