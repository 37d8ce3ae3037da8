"""Stores the event log in an object store: S3 and compatible ones, GCS, Azure.

It requires what all of these have: atomic puts, which can be conditional (``If-None-Match: *``,
``If-Match``) and are visible to every later read and listing.
"""

from __future__ import annotations

import io
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from urllib.parse import quote

import pyarrow as pa

from tidelog.errors import (
    AccessRefusedError,
    OutcomeUnknownError,
    StorageError,
    UsageError,
)
from tidelog.eventlog.storage_port import Guard, Tag
from tidelog.system import failpoints
from tidelog.system.extras import missing_extra

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_ACCESS_DENIED: Final = re.compile(r"status code: (401|403|404)\b")
"""404: of the bucket. A missing object is a normal answer, and is not handled here."""
_WRONG_CLOCK: Final = re.compile(r"<Code>RequestTimeTooSkewed</Code>|Request date header too old")
"""Messages of S3 and compatible stores, and of Azure. They answer 403, but not for credentials."""

_OTHER_REGION: Final = re.compile(r"[Rr]edirect without LOCATION")
"""S3's answer for a bucket in another region: unlike Amazon's clients, ours does not find it."""


_NO_CREDENTIALS: Final = re.compile(r"https?://(?:169\.254\.169\.254|metadata\.google)")
"""Where an instance's role is asked for, last of all."""


def storage_error(what: str, error: BaseException) -> StorageError:
    """The error for ``what``, which failed."""
    reason = store_error_text(error)
    if _WRONG_CLOCK.search(str(error)):
        return StorageError(
            f"{what}: the clock of this host differs too much from the store's, so all requests "
            f"are rejected: {reason}. Set the clock (NTP); nothing else needs to be done."
        )
    if _OTHER_REGION.search(reason):
        return AccessRefusedError(
            f"{what}: {reason}. The bucket is in another region: name it, as `region` in "
            "`storage_options` or by AWS_REGION."
        )
    if _NO_CREDENTIALS.search(reason):
        return StorageError(
            f"{what}: neither the configuration nor the environment of host {socket.gethostname()} "
            f"has credentials for it, and no role of the host's answers: {reason}. Spark's "
            "executors have an environment of their own: give `storage_options`, which go to them, "
            "or a role (docs/how-to/log-on-an-object-store.md#credentials)."
        )
    if _ACCESS_DENIED.search(reason):
        return AccessRefusedError(
            f"{what}: {reason}. Check the bucket's name, the endpoint, and that the credentials "
            "may read, list, write and delete there."
        )
    return StorageError(
        f"{what}: {reason}. Check the endpoint, the network, and that the credentials may read, "
        "list, write and delete there."
    )


def store_error_text(error: BaseException) -> str:
    """The error's text without the client's internals and without the server's document: that of a
    rejected request may contain what was signed, a session's token included.
    """
    text = str(error)
    reason = text.partition("\n")[0].partition("<")[0].strip(" :") or type(error).__name__
    code = _CODE.search(text)
    return reason if code is None else f"{reason} ({code[1]})"


try:
    import obstore
    from obstore import exceptions as refusals
    from obstore.store import from_url
except ImportError as error:  # pragma: no cover - it is installed in every test
    raise missing_extra(error, "object-store") or error from error


_QUARANTINE: Final = "quarantine"
_PROBE: Final = ".conditional-put"
_FOOTER_BYTES: Final = 64 << 10
_CLIENT: Final[ClientConfig] = {
    "connect_timeout": timedelta(seconds=5),
    "timeout": timedelta(seconds=30),
}
# Options of the HTTP client, not of a kind of store.
_CLIENT_OPTIONS: Final = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "proxy_excludes",
    "proxy_url",
    "root_certificate",
    "timeout",
)
# Retrying a put for longer than a lease lasts is useless.
_RETRY: Final[RetryConfig] = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}
# The store rejected the request: nothing was changed, and nothing will be.
_REJECTED: Final = (
    refusals.PermissionDeniedError,
    refusals.UnauthenticatedError,
    refusals.NotSupportedError,
    refusals.InvalidPathError,
    FileNotFoundError,
)
_Answer = TypeVar("_Answer")


class ObjectStorage:
    """A prefix of a bucket. See `tidelog.eventlog.storage_port.Storage`.

    Args:
        url: URL such as ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``.
        options: options of the store, e.g. ``endpoint``, ``region``, ``access_key_id``; they
            override those of the environment. They may be secret: none is shown.

    Raises:
        UsageError: if the URL or an option is wrong.
    """

    parallel: ClassVar[int] = 32

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        self.url = url.rstrip("/")
        self._options = tuple(sorted((options or {}).items()))
        self._opened: tuple[int, ObjectStore] | None = None
        self._ahead: dict[str, Future[pa.Buffer]] = {}
        self.client()

    def __repr__(self) -> str:
        return f"ObjectStorage({self.url!r})"

    def put_if_absent(self, name: str, data: pa.Buffer | bytes, guard: Guard | None = None) -> bool:
        def put() -> bool:
            try:
                self._put(name, data, "create")
            except (refusals.AlreadyExistsError, refusals.PreconditionError):
                return False
            return True

        return self._write("create", name, put, guard, ("put.before_link", "put.after_link"))

    def replace(self, name: str, data: pa.Buffer | bytes, guard: Guard | None = None) -> None:
        def put() -> None:
            self._put(name, data, "overwrite")

        self._write("replace", name, put, guard, _REPLACE_POINTS)

    def replace_if(
        self, name: str, data: pa.Buffer | bytes, expected: Tag | None, guard: Guard | None = None
    ) -> Tag | None:
        def put() -> Tag | None:
            try:
                return self._put(name, data, "create" if expected is None else _version(expected))
            except (refusals.AlreadyExistsError, refusals.PreconditionError):
                return None
            except FileNotFoundError:
                if expected is None:  # the bucket does not exist
                    raise
                return None

        tag = self._write("replace", name, put, guard, _REPLACE_POINTS)
        # If the answer to a put was lost, the client's next attempt finds the first one's result.
        return tag or self._tag_if_equal(name, data)

    def open(self, name: str, *, footer: bool = False) -> pa.NativeFile:
        if not footer:
            ahead = self._ahead.pop(name, None)
            return pa.BufferReader(self._read_all(name) if ahead is None else ahead.result())
        with self.storage_errors("read", name):
            try:
                options: Any = {"range": {"suffix": _FOOTER_BYTES}}
                end = obstore.get(self.client(), name, options=options)
                meta, data = end.meta, bytes(end.bytes())
            except refusals.NotSupportedError:  # Azure has no ranges from the end
                meta = obstore.head(self.client(), name)
                start = max(0, meta["size"] - _FOOTER_BYTES)
                data = self.read_range(name, start, meta["size"], meta["e_tag"])
            except refusals.GenericError:  # an empty file has no range
                return pa.BufferReader(self._read_all(name))
        if len(data) == meta["size"]:
            return pa.BufferReader(data)
        return pa.PythonFile(_FooterFirst(self, name, meta, data), "r")

    def fetch_ahead(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._ahead:
                self._ahead[name] = _executor(os.getpid()).submit(self._read_all, name)
        # Fetched but not read.
        for name in set(self._ahead).difference(names):
            dropped = self._ahead.pop(name, None)
            if dropped is not None:
                dropped.cancel()

    def read(self, name: str) -> bytes:
        return bytes(self._read_all(name))

    def read_with_tag(self, name: str) -> tuple[bytes, Tag] | None:
        """The whole file and its tag, of one moment; None if there is no such file."""
        try:
            with self.storage_errors("read", name):
                answer = obstore.get(self.client(), name)
                return bytes(answer.bytes()), _tag(answer.meta)
        except FileNotFoundError:
            return None

    def _read_all(self, name: str) -> pa.Buffer:
        with self.storage_errors("read", name):
            return pa.py_buffer(obstore.get(self.client(), name).bytes())

    def read_range(self, name: str, start: int, end: int, e_tag: str | None) -> bytes:
        """The bytes ``[start, end)``. Raises FileNotFoundError if the file was replaced."""
        options: Any = {"range": (start, end)}
        if e_tag is not None:
            options["if_match"] = e_tag
        try:
            with self.storage_errors("read", name):
                return bytes(obstore.get(self.client(), name, options=options).bytes())
        except refusals.PreconditionError:
            raise FileNotFoundError(name) from None

    def tag(self, name: str) -> Tag | None:
        try:
            with self.storage_errors("check", name):
                try:
                    return _tag(obstore.head(self.client(), name))
                except refusals.PermissionDeniedError:  # this answer has no body with the reason
                    return _tag(obstore.get(self.client(), name).meta)
        except FileNotFoundError:
            return None

    def tags_of(self, names: Sequence[str]) -> list[Tag | None]:
        return list(_executor(os.getpid()).map(self.tag, names))

    def names(self, folder: str = "") -> list[str]:
        return sorted(meta["path"] for meta in self._list(folder))

    def tags(self) -> dict[str, Tag]:
        return {meta["path"]: _tag(meta) for meta in sorted(self._list(""), key=_path)}

    def delete(self, name: str) -> None:
        try:
            with self.storage_errors("delete", name):
                obstore.delete(self.client(), name)
        except FileNotFoundError:
            pass

    def quarantine(self, name: str) -> str:
        new_name = f"{_QUARANTINE}/{name}.{time.time_ns()}"
        with self.storage_errors("quarantine", name):
            obstore.copy(self.client(), name, new_name)
        self.delete(name)
        return new_name

    def make_durable(self, name: str) -> None:
        """Does nothing: what can be read here is durable."""

    def sweep(self) -> None:
        """Check that puts are conditional: a store that ignores conditions would let two leaders
        overwrite each other's segments. There are no temporary files to remove.
        """
        other = Tag('"0"', version="1")

        def put() -> Tag | None:
            try:
                return self._put(_PROBE, b"", _version(other))
            except (refusals.PreconditionError, refusals.AlreadyExistsError, FileNotFoundError):
                return None

        replaced = _executor(os.getpid()).submit(
            self._write, "replace", _PROBE, put, None, _REPLACE_POINTS
        )
        if self.put_if_absent(_PROBE, b"") and self.put_if_absent(_PROBE, b""):
            raise self._condition_ignored("If-None-Match: *")
        if replaced.result():
            raise self._condition_ignored("If-Match")

    @contextmanager
    def exclusive(self, name: str) -> Iterator[bool]:
        """Not a lock: a frozen process could not keep it, and a dead one would look like a slow
        one.
        """
        yield True

    def client(self) -> ObjectStore:
        """The client of this process: connections do not survive a fork, as in Spark's workers."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), _open_client(self.url, self._options, os.getpid())
        return self._opened[1]

    def _put(self, name: str, data: pa.Buffer | bytes, mode: Any) -> Tag:
        view = memoryview(data).cast("B")
        done = obstore.put(self.client(), name, view, mode=mode, use_multipart=False)
        return _tag_of(done["e_tag"], done["version"])

    def _write(
        self,
        verb: str,
        name: str,
        put: Callable[[], _Answer],
        guard: Guard | None,
        points: tuple[str, str],
    ) -> _Answer:
        if guard is not None:
            guard()
        try:
            failpoints.hit(points[0])
        except OSError as error:
            raise self._error(verb, name, error) from None
        try:
            answer = put()
            failpoints.hit(points[1])
            return answer
        except _REJECTED as error:
            raise self._error(verb, name, error) from None
        except (refusals.BaseError, OSError) as error:
            raise OutcomeUnknownError(str(self._error(verb, name, error))) from None

    def _tag_if_equal(self, name: str, data: pa.Buffer | bytes) -> Tag | None:
        try:
            with self.storage_errors("read", name):
                stored = obstore.get(self.client(), name)
                same = stored.bytes() == memoryview(data).cast("B")
                return _tag(stored.meta) if same else None
        except FileNotFoundError:
            return None

    def _list(self, folder: str) -> list[ObjectMeta]:
        with self.storage_errors("list", folder):
            listing = obstore.list_with_delimiter(self.client(), folder or None)
        return [
            meta
            for meta in listing["objects"]
            if not meta["path"].rpartition("/")[2].startswith(".")
        ]

    @contextmanager
    def storage_errors(self, verb: str, name: str) -> Iterator[None]:
        """Convert the client's errors to StorageError, except FileNotFoundError."""
        try:
            yield
        except (FileNotFoundError, refusals.PreconditionError):
            raise
        except (refusals.BaseError, OSError) as error:
            raise self._error(verb, name, error) from None

    def _error(self, verb: str, name: str, error: BaseException) -> StorageError:
        return storage_error(f"cannot {verb} {self.url}/{name}", error)

    def _condition_ignored(self, header: str) -> UsageError:
        return UsageError(
            f"{self.url} ignores the condition {header} of a put: two processes could overwrite "
            "each other's files there. Use a store that has conditional writes, as S3, GCS and "
            "Azure Blob Storage have."
        )


_REPLACE_POINTS: Final = ("replace.before_rename", "replace.after_rename")


@lru_cache(maxsize=1)
def _executor(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8, "tidelog-objects")


@lru_cache(maxsize=16)
def _open_client(url: str, options: tuple[tuple[str, str], ...], _process: int) -> ObjectStore:
    """One client, and so one pool of connections, for all storages of a place."""
    config: Any = {name: value for name, value in options if name not in _CLIENT_OPTIONS}
    client: Any = {name: _client_value(value) for name, value in options if name in _CLIENT_OPTIONS}
    # These options replace all that the store reads from the environment for its client, which is
    # only this one.
    if url.startswith("s3") and (allowed := os.environ.get("AWS_ALLOW_HTTP")):
        client.setdefault("allow_http", _client_value(allowed))
    # What is encoded in a URL is decoded: a name with %, ? or # must stay as it is.
    scheme, _, rest = url.partition("://")
    bucket, slash, prefix = rest.partition("/")
    try:
        return from_url(
            f"{scheme}://{bucket}{slash}{quote(prefix)}",
            config=config,
            client_options={**_CLIENT, **client},
            retry_config=_RETRY,
        )
    except refusals.BaseError as error:
        raise UsageError(f"{url}: {store_error_text(error)}") from None


def _client_value(value: str) -> bool | str:
    return {"true": True, "false": False}.get(value.lower(), value)


def _tag(meta: ObjectMeta) -> Tag:
    return _tag_of(meta["e_tag"], meta["version"])


def _tag_of(e_tag: str | None, version: str | None) -> Tag:
    """Azure's listings show an ETag without the quotes that it has in a header."""
    if e_tag and not e_tag.endswith('"'):
        e_tag = f'"{e_tag}"'
    return Tag(e_tag or version or "", version)


def _path(meta: ObjectMeta) -> str:
    return meta["path"]


def _version(tag: Tag) -> UpdateVersion:
    version: UpdateVersion = {"e_tag": str(tag.identity)}
    if tag.version is not None:
        version["version"] = tag.version
    return version


class _FooterFirst(io.RawIOBase):
    """A file whose end is in memory; the rest is fetched when it is read."""

    def __init__(self, storage: ObjectStorage, name: str, meta: ObjectMeta, end: bytes) -> None:
        self._storage, self._name, self._meta = storage, name, meta
        self._end, self._size, self._at = end, meta["size"], 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        until = self._size if size is None or size < 0 else min(self._size, self._at + size)
        start, self._at = self._at, max(self._at, until)
        begin = self._size - len(self._end)
        if start >= begin:
            return self._end[start - begin : until - begin]
        if start >= until:
            return b""
        return self._storage.read_range(self._name, start, until, self._meta["e_tag"])
