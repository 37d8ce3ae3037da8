"""Data directories of MySQL and MariaDB servers: made once for an installation, then copied.

Making one takes seconds; a copy of the template takes a tenth of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import subprocess
from pathlib import Path

from tidelog.demo.servers.mysql_binaries import Installation
from tidelog.demo.servers.mysql_settings import settings_of
from tidelog.demo.servers.unprivileged import identity, reachable_directory, traversable
from tidelog.errors import TidelogError, UsageError

# With skip_name_resolve MySQL ignores root@localhost, which a new data directory has.
_ACCOUNTS = (
    "SET sql_log_bin = 0;",
    "CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY '';",
    "GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION;",
)

_REDO_LOG_SIZE = "16M"


def create(found: Installation, account: pwd.struct_passwd | None, target: Path) -> None:
    """Fill ``target`` with a fresh data directory that ``account`` owns.

    Raises UsageError if ``account`` can't reach the directory.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if account is not None and not traversable(target.parent, account):
        raise UsageError(
            f"{target} cannot be reached by user {account.pw_name!r}, whom the server runs as "
            "because it refuses root: choose a directory whose parents all users may enter "
            "(chmod o+x), or leave the data directory temporary"
        )
    shutil.copytree(_template(found, account), target, dirs_exist_ok=True)
    if account is not None:
        for directory, _directories, files in os.walk(target):
            os.chown(directory, account.pw_uid, account.pw_gid)
            for file in files:
                os.chown(Path(directory, file), account.pw_uid, account.pw_gid)
    target.chmod(0o700)


def _template(found: Installation, account: pwd.struct_passwd | None) -> Path:
    recipe = hashlib.sha256(repr((_ACCOUNTS, _REDO_LOG_SIZE)).encode()).hexdigest()[:8]
    template = found.cache / f"data-{found.version}-{recipe}"
    if template.exists():
        return template
    found.cache.mkdir(parents=True, exist_ok=True)
    work = reachable_directory(account, "tidelog-template-")
    try:
        if account is not None:
            os.chown(work, account.pw_uid, account.pw_gid)
        data = work / "data"
        if found.flavour == "mysql":
            _initialise_mysql(found, account, work, data)
        else:
            _initialise_mariadb(found, account, work, data)
        # The server's own identity: each copy makes a new one.
        (data / "auto.cnf").unlink(missing_ok=True)
        copy = found.cache / f".{template.name}-{os.getpid()}"
        shutil.copytree(data, copy)
        with contextlib.suppress(OSError):  # another process was faster: its template is as good
            copy.rename(template)
        shutil.rmtree(copy, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return template


def _initialise_mysql(
    found: Installation, account: pwd.struct_passwd | None, work: Path, data: Path
) -> None:
    accounts = work / "accounts.sql"
    accounts.write_text("\n".join(_ACCOUNTS) + "\n")
    accounts.chmod(0o644)
    command = [
        str(found.server),
        "--no-defaults",
        "--initialize-insecure",
        f"--basedir={found.base}",
        f"--datadir={data}",
        f"--init-file={accounts}",
        "--innodb-use-native-aio=OFF",
        "--skip-log-bin",
        "--auto-generate-certs=OFF",
        "--character-set-server=utf8mb4",
    ]
    settings = settings_of(found, {"innodb_log_file_size": _REDO_LOG_SIZE})
    command += [f"--{name}={value}" for name, value in settings.items()]
    _run(found, account, command, work)


def _initialise_mariadb(
    found: Installation, account: pwd.struct_passwd | None, work: Path, data: Path
) -> None:
    if found.install_db is None:
        raise UsageError(
            "mariadb-install-db is not on this machine: apt-get install mariadb-server"
        )
    accounts = work / "accounts.sql"
    # Its bootstrap begins without grant tables; they must be loaded to be changed by statements.
    accounts.write_text("\n".join(("FLUSH PRIVILEGES;", *_ACCOUNTS)) + "\n")
    accounts.chmod(0o644)
    command = [
        str(found.install_db),
        "--no-defaults",
        f"--basedir={found.base}",
        f"--datadir={data}",
        f"--tmpdir={work}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
        "--force",
        f"--extra-file={accounts}",
        f"--innodb-log-file-size={_REDO_LOG_SIZE}",
        "--innodb-use-native-aio=OFF",
    ]
    _run(found, account, command, work)


def _run(
    found: Installation, account: pwd.struct_passwd | None, command: list[str], work: Path
) -> None:
    rights = identity(account)
    rights["env"] |= found.environment() | {"TMPDIR": str(work)}
    done = subprocess.run(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=work,
        check=False,
        **rights,
    )
    if done.returncode != 0:
        raise TidelogError(
            f"making a data directory of {found.flavour} {found.version} failed:\n"
            + "\n".join(done.stdout.splitlines()[:20])
        )
