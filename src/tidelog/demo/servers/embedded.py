"""The base of the servers for tests and the demo: one process with its own directory.

It runs as an unprivileged user, and ends with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Self

from tidelog.errors import TidelogError, UsageError

# The user of the server: an ordinary one, also if we are root. Servers refuse root.

# Users for the server if we are root; the first that exists.
UNPRIVILEGED_USERS = ("postgres", "nobody", "daemon", "www-data")

# A Unix socket's path is limited to 107 bytes; the server appends "/.s.PGSQL.65535".
_SOCKET_DIRECTORY_MAX = 90

# For unpacked servers, if an unprivileged user can't enter our cache.
_SHARED_CACHE = Path("/var/tmp")  # noqa: S108


def process_identity(
    account: pwd.struct_passwd | None, locales: Path | None = None
) -> dict[str, Any]:
    """Return arguments of subprocess.Popen for ``account`` and a clean environment."""
    environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
    if locales is not None:
        environment["LOCPATH"] = str(locales)
    if account is None:
        return {"env": environment}
    return {
        "env": environment,
        "user": account.pw_uid,
        "group": account.pw_gid,
        "extra_groups": [],
    }


def unprivileged_account() -> pwd.struct_passwd | None:
    """Return the account for the server: None for ourselves."""
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    for account in pwd.getpwall():
        if account.pw_uid != 0:
            return account
    command = ["/usr/sbin/useradd", "--system", "--no-create-home", "tidelog-postgres"]
    subprocess.run(command, check=True)  # noqa: S603
    return pwd.getpwnam("tidelog-postgres")


def reachable_directory(account: pwd.struct_passwd | None, prefix: str) -> Path:
    """Return a new directory, short enough for a socket's path, that ``account`` can enter."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108
        fits = len(parent) + 24 <= _SOCKET_DIRECTORY_MAX
        if fits and (account is None or traversable(Path(parent), account)):
            return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    raise TidelogError("no temporary directory that an unprivileged user can reach")


def traversable(directory: Path, account: pwd.struct_passwd) -> bool:
    """Return whether ``account`` can enter the directory and all above it."""
    for level in (directory, *directory.parents):
        status = level.stat()
        if status.st_uid == account.pw_uid:
            allowed = status.st_mode & stat.S_IXUSR
        elif status.st_gid == account.pw_gid:
            allowed = status.st_mode & stat.S_IXGRP
        else:
            allowed = status.st_mode & stat.S_IXOTH
        if not allowed:
            return False
    return True


def server_cache(account: pwd.struct_passwd | None) -> Path:
    """Return a directory that ``account`` can enter, for servers and their templates."""
    wanted = Path.home() / ".cache" / "tidelog" / "servers"
    wanted.mkdir(parents=True, exist_ok=True)
    if account is None or traversable(wanted, account):
        return wanted
    shared = _SHARED_CACHE / "tidelog-servers"
    shared.mkdir(mode=0o755, exist_ok=True)
    if shared.stat().st_uid != os.geteuid():
        raise TidelogError(f"{shared} belongs to another user: remove it")
    return shared


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Watcher:
    """A shell that reads from a pipe: it closes with this process, and the shell sends the signal.

    Args:
        pid: the id of a child of this process.
        signal_name: the signal, e.g. ``KILL``.
    """

    def __init__(self, pid: int, signal_name: str) -> None:
        self._shell = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", f"read _; kill -{signal_name} {pid} 2>/dev/null"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """End the watch, because the process has ended: its number may be reused soon."""
        self._shell.kill()
        self._shell.wait()
        assert self._shell.stdin is not None
        self._shell.stdin.close()


class EmbeddedServer:
    """A server process; use it as a context manager.

    Subclasses `start` it by `_spawn` and `_is_ready`, with ``atexit.register(self.close)``.

    Attributes:
        title: the server's name in messages.
        ended_by: the name of the signal that ends it when this process is killed.
        log_file: the server's log.
    """

    title: str
    ended_by: ClassVar[str] = "KILL"

    def __init__(self, prefix: str) -> None:
        self._account = unprivileged_account()
        self._base = reachable_directory(self._account, prefix)
        self.log_file = self._base / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    def start(self) -> None:
        """Start it, also after `stop` and `kill`; return once it answers. No-op if it runs."""
        raise NotImplementedError

    def stop(self) -> None:
        """Shut down in order."""
        self._stop(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a crash of the server would; `start` recovers."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
        self._ended()

    def close(self) -> None:
        """Stop it, and remove everything."""
        atexit.unregister(self.close)
        self.kill()
        shutil.rmtree(self._base, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._process is None:
            raise UsageError(f"the embedded {self.title} server is not started")
        return self._process.pid

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while not _is_stopped(self.pid) and time.monotonic() < deadline:
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the server's log."""
        try:
            text = self.log_file.read_text(errors="replace")
        except FileNotFoundError:
            return "(no server log)"
        return "\n".join(text.splitlines()[-lines:])

    # ------------------------------------------------------------------ for subclasses

    def _spawn(
        self, command: Sequence[str], output: IO[bytes] | int, rights: Mapping[str, Any]
    ) -> None:
        """Start the process. ``output``: its output's place; ``rights``: of `process_identity`."""
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self._base,
            # Ctrl-C at a terminal must reach us alone: we stop the server in order.
            start_new_session=True,
            **rights,
        )
        self._watcher = Watcher(self.pid, self.ended_by)

    def _is_ready(self, answers: Callable[[], bool], timeout_s: float = 120) -> bool:
        """Wait until it answers; False if it ended by itself. Raises TidelogError on timeout."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.running:
                self._ended()
                return False
            if answers():
                return True
            time.sleep(0.03)
        self.kill()
        raise TidelogError(f"{self.title} was not ready in {timeout_s} s:\n{self.log_tail()}")

    def _stop(self, number: signal.Signals) -> None:
        """Send the signal; `kill` if it does not help within a minute."""
        process = self._process
        if process is not None and process.poll() is None:
            self.resume()
            process.send_signal(number)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()
        self._ended()

    def _ended(self) -> None:
        self._process = None
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()

    def _own(self, path: Path) -> None:
        """Give a file to the account of the server."""
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)


def _is_stopped(pid: int) -> bool:
    """Return whether all threads have stopped; True if the kernel does not report it (no /proc)."""
    states = []
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            states.append(thread.read_text().rpartition(")")[2].split()[0])
    return all(state in "Tt" for state in states)
