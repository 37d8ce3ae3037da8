"""A server of Google's Cloud Storage of one's own: fake-gcs-server, from the Go module proxy.

It checks the conditions of a put in its JSON API alone, and has uploads in parts there alone;
Tidelog's client uses the XML API. So puts and copies are passed on as those of the JSON API, here,
and parts as one put; all else is as it came.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import secrets
import shutil
import subprocess
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

import pytest
from tests.left_out import SAID
from tests.support.object_stores import is_created

from tidelog.demo.servers.embedded import EmbeddedServer, free_port, process_identity, server_cache
from tidelog.errors import TidelogError
from tidelog.eventlog.storage import provide_options

_VERSION: Final = "v1.56.1"
_CONDITION: Final = "x-goog-if-generation-match"
_NOT_PASSED_ON: Final = ("connection", "transfer-encoding", "content-length", "date")


class GcsServer(EmbeddedServer):
    """One server with one bucket, which this process can open by its URL once the server runs. Use
    it as a context manager. Skips where go is missing.
    """

    title = "fake-gcs-server"

    def __init__(self) -> None:
        if not shutil.which("go"):
            pytest.skip(f"{SAID}go, for fake-gcs-server")
        super().__init__("tidelog-gcs-")
        self.bucket = f"tidelog-{secrets.token_hex(4)}"
        self._port = 0
        self._front: ThreadingHTTPServer | None = None

    @property
    def port(self) -> int:
        assert self._front is not None
        return self._front.server_port

    @property
    def options(self) -> dict[str, str]:
        """For `tidelog.eventlog.storage.provide_options` and ``storage_options``."""
        return {
            "base_url": f"http://127.0.0.1:{self.port}",
            "bearer_token": "not-looked-at",
            "allow_http": "true",
        }

    def url(self, prefix: str) -> str:
        return f"gs://{self.bucket}/{prefix}"

    def start(self) -> None:
        """Start, return once its bucket is there."""
        program = self._installed()
        self._base.chmod(0o755)
        self._own(self._base)
        self._port = free_port()
        command = [
            str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(self._port),
            "-backend", "memory", "-log-level", "warn", "-public-host", f"127.0.0.1:{self._port}",
        ]  # fmt: skip
        with self.log_file.open("wb") as log:
            self._spawn(command, log, process_identity(self._account))
        if not self._is_ready(self._has_bucket):
            raise TidelogError(f"fake-gcs-server did not start:\n{self.log_tail()}")
        self._front = _Front(self._port)
        threading.Thread(target=self._front.serve_forever, daemon=True).start()
        atexit.register(self.close)
        provide_options(self.url(""), self.options)

    def close(self) -> None:
        if self._front is not None:
            self._front.shutdown()
            self._front.server_close()
            self._front = None
        super().close()

    def _installed(self) -> Path:
        """Its program, which go builds once."""
        folder = server_cache(self._account) / f"fake-gcs-server-{_VERSION}"
        program = folder / "fake-gcs-server"
        if not program.exists():
            folder.mkdir(exist_ok=True)
            scratch = folder / f".{os.getpid()}"
            subprocess.run(
                ["go", "install", f"github.com/fsouza/fake-gcs-server@{_VERSION}"],
                env={**os.environ, "GOBIN": str(scratch), "GOFLAGS": "-buildvcs=false"},
                check=True,
            )
            (scratch / program.name).replace(program)
            scratch.rmdir()
        return program

    def _has_bucket(self) -> bool:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/storage/v1/b?project=tidelog",
            json.dumps({"name": self.bucket}).encode(),
            {"Content-Type": "application/json"},
        )
        return is_created(request)


def _result(step: str, name: str, value: str) -> bytes:
    """A step's answer, as the XML API has it."""
    kind = f"{step}MultipartUploadResult"
    return f"<{kind}><{name}>{escape(value)}</{name}></{kind}>".encode()


class _Front(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.behind = port
        self.parts: dict[str, dict[int, bytes]] = {}
        """By number, of each upload that is not complete."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Front

    def do_GET(self) -> None:
        self._answer(self._asked(self.command, self.path))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        """The begin and the end of an upload in parts."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        upload = self._upload()
        if not upload:
            upload = secrets.token_hex(8)
            self.server.parts[upload] = {}
            self._answer((200, {}, _result("Initiate", "UploadId", upload)))
            return
        parts = self.server.parts.pop(upload)
        status, headers, answer = self._put(b"".join(parts[number] for number in sorted(parts)))
        if status == 200:
            answer = _result("Complete", "ETag", headers["ETag"])
        self._answer((status, headers, answer))

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if upload := self._upload():
            number = int(parse_qs(urlsplit(self.path).query)["partNumber"][0])
            self.server.parts[upload][number] = body
            self._answer((200, {"ETag": f'"{number}"'}, b""))
        else:
            self._answer(self._put(body))

    def _upload(self) -> str:
        """The upload in parts that the request is of, if any."""
        return parse_qs(urlsplit(self.path).query).get("uploadId", [""])[0]

    def _put(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        bucket, _, name = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        query = {}
        if self.headers.get(_CONDITION) is not None:
            query["ifGenerationMatch"] = self.headers[_CONDITION]
        source = self.headers.get("x-goog-copy-source")
        if source is None:
            query |= {"uploadType": "media", "name": name}
            done = self._asked("POST", f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}", body)
        else:
            of, _, copied = unquote(source).lstrip("/").partition("/")
            to = f"b/{bucket}/o/{quote(name, safe='')}"
            path = f"/storage/v1/b/{of}/o/{quote(copied, safe='')}/copyTo/{to}"
            done = self._asked("POST", f"{path}?{urlencode(query)}")
        status, headers, answer = done
        if status == 200:
            stored: dict[str, Any] = json.loads(answer)
            stored = stored.get("resource", stored)
            headers = {"ETag": f'"{stored["etag"]}"', "x-goog-generation": stored["generation"]}
            answer = b""
        return status, headers, answer

    def _asked(
        self, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """The emulator's status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        passed = ("Range", "If-Match", "If-None-Match", "Content-Type")
        headers = {name: self.headers[name] for name in passed if name in self.headers}
        try:
            connection.request(method, path, body, headers)
            found = connection.getresponse()
            kept = {
                name: value
                for name, value in found.getheaders()
                if name.lower() not in _NOT_PASSED_ON or method == "HEAD"
            }
            return found.status, kept, found.read()
        finally:
            connection.close()

    def _answer(self, answer: tuple[int, dict[str, str], bytes]) -> None:
        status, headers, body = answer
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "date"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
