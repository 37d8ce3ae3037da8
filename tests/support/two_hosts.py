"""Hosts of one's own, with nothing in common but a network and, if a test wants it, one directory:
namespaces of network, processes, mounts and names. They need root, `ip`, `nft` and `unshare`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import pyspark
import pytest
from tests.left_out import SAID
from tests.support.namespaces import Bridge, Namespace, NotPermittedError

from tidelog.eventlog.storage import OPTIONS_VARIABLE

SHARED: Final = "/mnt/shared"
"""Where each host finds the directory that they share."""
_ENTER = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_RUN = f"""set -e
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t tmpfs none /mnt
mkdir {SHARED}
mount --bind "$3" {SHARED}
eval "exec $4"
"""
_RUN_ALONE = """set -e
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t tmpfs none /mnt
mkdir /mnt/installed /mnt/checkout
mount --bind "$4" /mnt/installed
mount -o remount,bind,ro /mnt/installed
mount --rbind "$5" /mnt/checkout
mount --bind "$3" /tmp
case "$5" in /tmp/*) mkdir -p "$5"; mount --rbind /mnt/checkout "$5" ;; esac
mount --move /mnt/installed "$4"
cd /tmp
eval "exec $6"
"""
"""Spark is installed where nobody may write; the checkout stays where it is, also below /tmp."""
_NOT_THEIRS = ("HOSTNAME", OPTIONS_VARIABLE)
"""A shell keeps the first one for itself; the second one is of what this process has opened."""


class Network:
    """What hosts find by a name: each other, and servers of this machine."""

    def __init__(self, bridge: Bridge, directory: Path) -> None:
        self._bridge = bridge
        self.file = directory / "hosts"
        self.file.write_text("127.0.0.1 localhost\n")
        self._addresses: dict[str, str] = {}

    def address_of(self, name: str) -> str:
        """Of a server's name: where something of this machine is to listen for it."""
        if name not in self._addresses:
            self.add(name, self._bridge.further_address())
        return self._addresses[name]

    def add(self, name: str, address: str) -> None:
        self._addresses[name] = address
        with self.file.open("a") as file:
            file.write(f"{address} {name}\n")


class Host:
    """Use it as a context manager. ``alone``: it shares no directory, and `directory` is its disk,
    where it has its home, /tmp, and what is the current directory of its commands.
    """

    def __init__(
        self,
        name: str,
        bridge: Bridge,
        network: Network,
        directory: Path,
        *,
        alone: bool = False,
    ) -> None:
        self.name = name
        self.directory = directory / name
        self.directory.mkdir()
        self.environment: dict[str, str] = {}
        """What it has besides ours."""
        self._alone = alone
        if alone:
            self.directory.chmod(0o1777)
            self.environment |= {"HOME": "/tmp", "TMPDIR": "/tmp"}
        self._shared = directory / "shared"
        self._shared.mkdir(exist_ok=True)
        self._network = network
        self._namespace = Namespace(bridge, name)
        self.cut_off, self.bring_back = self._namespace.cut_off, self._namespace.bring_back
        network.add(name, self._namespace.address)
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

    @property
    def runs(self) -> bool:
        """What was started has not ended."""
        return self._running is not None and self._running.poll() is None

    def start(self, command: str) -> None:
        """As a shell would, until it is killed or stopped."""
        self._log = self._log or (self.directory / "output.log").open("ab")
        self._running = subprocess.Popen(
            self._inside(command),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            env=self._environment(),
        )

    def run(self, command: str, timeout_s: float = 120) -> str:
        """What it answers on a shell, where it has to succeed."""
        done = subprocess.run(
            self._inside(command),
            capture_output=True,
            cwd=self.directory,
            env=self._environment(),
            timeout=timeout_s,
            check=False,
        )
        assert not done.returncode, (command, done.stdout.decode(), done.stderr.decode())
        return done.stdout.decode()

    def stop(self, timeout_s: float = 60) -> int:
        """SIGTERM to what was started; its exit code."""
        assert self._running is not None
        children = Path(f"/proc/{self._running.pid}/task/{self._running.pid}/children")
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGTERM)
        return self._running.wait(timeout_s)

    def kill(self) -> None:
        """All of its processes: the first one of a namespace takes the others along."""
        if self._running is not None and self._running.poll() is None:
            self._running.send_signal(signal.SIGKILL)
            self._running.wait(30)

    def lose_power(self) -> None:
        """Nobody is told: its network is gone before its processes are. Its disk is lost."""
        self.cut_off()
        self.kill()
        shutil.rmtree(self.directory)
        self.directory.mkdir()

    def _environment(self) -> Mapping[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        found = {**os.environ, **self.environment, "PATH": path}
        return {name: found[name] for name in found if name not in _NOT_THEIRS}

    def _inside(self, command: str) -> list[str]:
        steps, places = _RUN, [self._shared]
        if self._alone:
            installed = Path(pyspark.__file__).parent
            steps, places = _RUN_ALONE, [self.directory, installed, Path(__file__).parents[2]]
        return [
            *self._namespace.inside, *_ENTER, "sh", "-c", steps, "sh", self.name,
            str(self._network.file), *(str(place) for place in places), command,
        ]  # fmt: skip


@contextmanager
def hosts(
    directory: Path, *names: str, alone: bool = False
) -> Iterator[tuple[dict[str, Host], Network]]:
    """Of these names. Skips where they are not permitted."""
    if not shutil.which("unshare"):
        pytest.skip(f"{SAID}unshare, for hosts of their own")
    with ExitStack() as opened:
        try:
            bridge = opened.enter_context(Bridge())
        except NotPermittedError as lacks:
            pytest.skip(f"{SAID}{lacks}")
        network = Network(bridge, directory)
        made = {
            name: opened.enter_context(Host(name, bridge, network, directory, alone=alone))
            for name in names
        }
        yield made, network


@contextmanager
def two_hosts(directory: Path) -> Iterator[tuple[Host, Host, Network]]:
    """Skips where they are not permitted."""
    with hosts(directory, "host1", "host2") as (made, network):
        yield made["host1"], made["host2"], network
