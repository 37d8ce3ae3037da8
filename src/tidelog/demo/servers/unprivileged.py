"""Runs a database server as an ordinary user, also if we are root: servers refuse root."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tidelog.errors import TidelogError

# Users for the server if we are root; the first that exists.
UNPRIVILEGED_USERS = ("postgres", "nobody", "daemon", "www-data")

# A Unix socket's path is limited to 107 bytes; the server appends "/.s.PGSQL.65535".
_SOCKET_DIRECTORY_MAX = 90

# For unpacked servers, if an unprivileged user can't enter our cache.
_SHARED_CACHE = Path("/var/tmp")  # noqa: S108


def identity(account: pwd.struct_passwd | None, locales: Path | None = None) -> dict[str, Any]:
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
