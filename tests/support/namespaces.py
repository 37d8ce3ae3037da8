"""Namespaces of the network, on a bridge of their own. They need root, `ip` and `nft`."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

SUBNETS: Final = range(1, 255)
_FURTHER: Final = 200
_NET: Final = 0x40000000
_RULES: Final = """table ip tidelog {{
  set gone {{ type inet_service; }}
  map led {{ type inet_service : inet_service; }}
  chain in {{ type filter hook prerouting priority -300; tcp sport @gone drop; }}
  chain lead {{
    type nat hook output priority -100;
    ip daddr {0} tcp dport != 0 dnat to {0}:tcp dport map @led;
  }}
  chain out {{ type filter hook output priority 0; tcp dport @gone drop; }}
}}"""
"""Of the bridge's address: what is dropped has the port that it is led to, on its way and back."""


class NotPermittedError(Exception):
    """Says what this machine lacks."""


class Bridge:
    """Between this machine and namespaces. Use it as a context manager.

    It has a subnet that no other process has: an abstract socket says so, and is gone with its
    process, however that ends. What such a one left behind is removed.

    Raises NotPermittedError when entered where namespaces can't be made.
    """

    def __init__(self) -> None:
        self._taken: socket.socket | None = None
        self._opened = ExitStack()
        self.number = 0
        self._namespaces, self._further = 0, 0

    def __enter__(self) -> Self:
        lacks = [tool for tool in ("ip", "nft") if not shutil.which(tool)]
        if os.geteuid() or lacks:
            raise NotPermittedError(f"namespaces need root, ip and nft{_but(lacks)}")
        with self._opened:
            self._take_subnet()
            _sweep(self.number)
            self._opened.callback(_sweep, self.number)
            try:
                _required(("ip", "link", "add", self.name, "type", "bridge"))
                _required(("ip", "addr", "add", f"{self.address}/24", "dev", self.name))
                _required(("ip", "link", "set", self.name, "up"))
                with Namespace(self, "tried"):
                    pass
            except subprocess.CalledProcessError as error:
                told = error.stderr.decode().strip()
                raise NotPermittedError(f"`{' '.join(error.cmd)}` fails: {told}") from None
            self._opened = self._opened.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.close()

    @property
    def name(self) -> str:
        return f"tl{self.number}-br"

    @property
    def address(self) -> str:
        """Where namespaces find what this machine has."""
        return f"10.213.{self.number}.1"

    def further_address(self) -> str:
        """Another one of this machine, where namespaces find servers that share a port."""
        self._further += 1
        address = f"10.213.{self.number}.{_FURTHER + self._further}"
        _required(("ip", "addr", "add", f"{address}/24", "dev", self.name))
        return address

    def new_number(self) -> int:
        self._namespaces += 1
        return self._namespaces

    def _take_subnet(self) -> None:
        for number in SUBNETS:
            taken = socket.socket(socket.AF_UNIX)
            try:
                taken.bind(f"\0tidelog-subnet-{number}")
            except OSError:
                taken.close()
                continue
            self._opened.enter_context(taken)
            self.number = number
            return
        raise NotPermittedError("each subnet of 10.213.0.0/16 is taken")


class Namespace:
    """One of a bridge; its name is ``title``, for people. Use it as a context manager."""

    def __init__(self, bridge: Bridge, title: str) -> None:
        number = bridge.new_number()
        self._bridge = bridge
        self.name = f"tl{bridge.number}-{title}"
        self._link = f"tl{bridge.number}-{number}"
        self.address = f"10.213.{bridge.number}.{number + 1}"

    def __enter__(self) -> Self:
        inside = ("ip", "-n", self.name)
        for command in (
            ("ip", "netns", "add", self.name),
            ("ip", "link", "add", self._link, "type", "veth", "peer", "eth0", "netns", self.name),
            ("ip", "link", "set", self._link, "master", self._bridge.name, "up"),
            (*inside, "addr", "add", f"{self.address}/24", "dev", "eth0"),
            (*inside, "link", "set", "eth0", "up"),
            (*inside, "link", "set", "lo", "up"),
            (*self.inside, "nft", _RULES.format(self._bridge.address)),
        ):
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
        self._remove()

    @property
    def inside(self) -> tuple[str, ...]:
        """What goes before a command that is to run in it. The process stays the same one."""
        return ("ip", "netns", "exec", self.name)

    def cut_off(self) -> None:
        """Nothing comes to it, or from it."""
        _required(("ip", "link", "set", self._link, "down"))

    def bring_back(self) -> None:
        _required(("ip", "link", "set", self._link, "up"))

    def lead(self, port: int, to: int) -> None:
        """What connects to this port of the bridge gets to another one."""
        self._change("add", "led", f"{port} : {to}")

    def drop(self, port: int) -> None:
        """All packets of it to this port, and back. Neither end is told."""
        self._change("add", "gone", str(port))

    def let_pass(self, port: int) -> None:
        self._change("delete", "gone", str(port))

    def _change(self, how: str, of: str, what: str) -> None:
        _required((*self.inside, "nft", how, "element", "ip", "tidelog", of, "{", what, "}"))

    def _remove(self) -> None:
        """The link first: the kernel may keep it for a while with a namespace that is gone."""
        _remove_link(self._link)
        _remove_namespace(self.name)


def enter(name: str) -> None:
    """Move this thread, and those that it starts, to the namespace of this name."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(file, _NET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)
    finally:
        os.close(file)


def _sweep(number: int) -> None:
    """Remove all of a subnet."""
    prefix = f"tl{number}-"
    for line in _told(("ip", "-o", "link")):
        link = line.split(":")[1].split("@")[0].strip()
        if link.startswith(prefix):
            _remove_link(link)
    for line in _told(("ip", "netns")):
        namespace = line.split()[0]
        if namespace.startswith(prefix):
            _remove_namespace(namespace)


def _told(command: Sequence[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if line.strip()]


def _remove_link(name: str) -> None:
    subprocess.run(("ip", "link", "del", name), check=False, capture_output=True)


def _remove_namespace(name: str) -> None:
    subprocess.run(("ip", "netns", "del", name), check=False, capture_output=True)


def _required(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _but(lacks: Sequence[str]) -> str:
    return f", but {' and '.join(lacks)} lack" if lacks else ""
