"""A server of Azure's Blob Storage of one's own: Azurite, Microsoft's emulator, from npm."""

from __future__ import annotations

import atexit
import base64
import hashlib
import hmac
import os
import secrets
import shutil
import subprocess
import urllib.request
from email.utils import formatdate
from pathlib import Path
from typing import Final

import pytest
from tests.left_out import SAID
from tests.support.object_stores import is_created

from tidelog.demo.servers.embedded import EmbeddedServer, free_port, process_identity, server_cache
from tidelog.errors import TidelogError
from tidelog.eventlog.storage import provide_options

_VERSION: Final = "3.35.0"
_ACCOUNT: Final = "tidelog"
_API: Final = "2021-12-02"


class AzureServer(EmbeddedServer):
    """One server with one container, which this process can open by its URL once the server runs.
    Use it as a context manager. Skips where node is missing.
    """

    title = "Azurite"

    def __init__(self) -> None:
        for program in ("node", "npm"):
            if not shutil.which(program):
                pytest.skip(f"{SAID}{program}, for Azurite")
        super().__init__("tidelog-azure-")
        self.container = f"tidelog-{secrets.token_hex(4)}"
        self._key = base64.b64encode(secrets.token_bytes(32)).decode()
        self.port = 0

    @property
    def options(self) -> dict[str, str]:
        """For `tidelog.eventlog.storage.provide_options` and ``storage_options``."""
        return {
            "account_name": _ACCOUNT,
            "account_key": self._key,
            "endpoint": f"http://127.0.0.1:{self.port}/{_ACCOUNT}",
            "allow_http": "true",
        }

    def url(self, prefix: str) -> str:
        return f"az://{self.container}/{prefix}"

    def start(self) -> None:
        """Start, return once its container is there."""
        program = self._installed()
        self._base.chmod(0o755)
        (self._base / "data").mkdir()
        for path in (self._base, self._base / "data"):
            self._own(path)
        rights = process_identity(self._account)
        rights["env"] |= {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{self._key}"}
        self.port = free_port()
        command = [
            str(shutil.which("node")), str(program), "--blobPort", str(self.port), "--silent",
            "--location", str(self._base / "data"), "--skipApiVersionCheck", "--disableTelemetry",
        ]  # fmt: skip
        with self.log_file.open("wb") as log:
            self._spawn(command, log, rights)
        if not self._is_ready(self._has_container):
            raise TidelogError(f"Azurite did not start:\n{self.log_tail()}")
        atexit.register(self.close)
        provide_options(self.url(""), self.options)

    def _installed(self) -> Path:
        """Its program, which npm brings once."""
        folder = server_cache(self._account) / f"azurite-{_VERSION}"
        program = folder / "node_modules/azurite/dist/src/blob/main.js"
        if not program.exists():
            scratch = folder.with_name(f".{folder.name}-{os.getpid()}")
            subprocess.run(
                ["npm", "install", "--silent", "--prefix", str(scratch), f"azurite@{_VERSION}"],
                check=True,
            )
            scratch.chmod(0o755)
            if not folder.exists():
                scratch.rename(folder)
        return program

    def _has_container(self) -> bool:
        """Create it, signed as Azure's page on "Authorize with Shared Key" says."""
        date, path = formatdate(usegmt=True), f"/{_ACCOUNT}/{self.container}"
        signed = (
            "PUT\n" + "\n" * 11 + f"x-ms-date:{date}\nx-ms-version:{_API}\n"
            f"/{_ACCOUNT}{path}\nrestype:container"
        )
        digest = hmac.new(base64.b64decode(self._key), signed.encode(), hashlib.sha256).digest()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": date,
                "x-ms-version": _API,
                "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
            },
        )
        return is_created(request)
