"""Requests to an OpenSearch cluster, and the meaning of its errors. For driver and executors.

Reasons in the cluster's answers may contain cell values: only types of errors, and names of fields,
are in our errors.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from opensearchpy import OpenSearch
from opensearchpy.exceptions import (
    AuthenticationException,
    AuthorizationException,
    ConnectionError,  # noqa: A004
    ConnectionTimeout,
    ImproperlyConfigured,
    SSLError,
    TransportError,
)

from tidelog.errors import ConfigError, OutputError, OutputRefusedError
from tidelog.system.peer_check import CUT_OFF

# Status of requests or items: the cluster has no room now, but will have some later.
BUSY = (429, 503)
BLOCKED = "cluster_block_exception"
_FIELD = re.compile(r"failed to parse field \[([^\]]{1,200})\] of type \[(\w+)\]")
# The setting of each block, by its number: settings that anybody may set, and for lack of space.
_BLOCK = re.compile(r"(?:index \[([^\]]+)\] )?blocked by: \[\w+/(\d+)/")
_BLOCKS: Mapping[str, str] = {
    "5": "index.blocks.read_only",
    "6": "cluster.blocks.read_only",
    "8": "index.blocks.write",
    "12": "index.blocks.read_only_allow_delete",
    "13": "cluster.blocks.read_only_allow_delete",
}
_FLOOD_STAGE = "12"
_LOGGERS = ("opensearch", "opensearchpy.trace")


class TooLargeError(OutputError):
    """The cluster does not accept a request of this size."""


class ClusterBusyError(OutputError):
    """The cluster has no room for the request now."""


class InvalidRequestError(OutputRefusedError):
    """The cluster refuses what a request asks for, whoever asks, such as a mapping."""


class VersionConflictError(OutputError):
    """Another client has already changed the request's target."""


@dataclass(frozen=True)
class ClusterOptions:
    """The address and credentials of a cluster. Picklable; ``password`` and ``headers`` are
    secrets.
    """

    urls: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None
    timeout_s: float = 60.0


class Cluster:
    """A client; several threads may call `request` at once."""

    def __init__(self, options: ClusterOptions) -> None:
        # At lower levels the client logs whole requests, and with them cell values.
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        secrets: dict[str, Any] = {}
        if options.user is not None:
            secrets["http_auth"] = (options.user, options.password or "")
        if options.ca_file is not None:
            secrets["ca_certs"] = options.ca_file
        self._where = ", ".join(url.rpartition("@")[2] for url in options.urls)
        try:
            self._client = OpenSearch(
                list(options.urls),
                headers=dict(options.headers),
                timeout=options.timeout_s,
                max_retries=len(options.urls) - 1,  # of refused connections: on the next node
                pool_maxsize=4,
                **secrets,
            )
        except (ImproperlyConfigured, ValueError, OSError) as error:
            raise ConfigError(f"OpenSearch can't be reached as configured: {error}") from None

    def close(self) -> None:
        self._client.close()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        absent: bool = False,
    ) -> Any:
        """Return the answer's JSON. With ``absent``, None for status 404.

        Raises TooLargeError, ClusterBusyError, VersionConflictError, OutputError (retry),
        InvalidRequestError or, if the cluster refuses us, OutputRefusedError.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the server's deprecation headers
                return self._client.transport.perform_request(
                    method, path, params=dict(params or {}), body=body
                )
        except ConnectionTimeout:
            raise OutputError(f"OpenSearch at {self._where} does not answer in time") from None
        except ConnectionError as error:
            if isinstance(error, SSLError) and not isinstance(_inner(error), CUT_OFF):
                raise OutputRefusedError(
                    f"OpenSearch at {self._where} shows a certificate that is not trusted, or no "
                    "TLS: check the output's ca_file and urls"
                ) from None
            cause = type(error.info).__name__ if error.info else type(error).__name__
            raise OutputError(f"OpenSearch at {self._where} can't be reached ({cause})") from None
        except (AuthenticationException, AuthorizationException) as error:
            what = _kind(error)
            if what == BLOCKED:
                raise OutputError(
                    f"OpenSearch answers HTTP {error.status_code} {what} to {method} "
                    f"{_plain_path(path)}{_block(error)}"
                ) from None
            raise OutputRefusedError(
                f"OpenSearch at {self._where} refuses the user: HTTP {error.status_code} {what} "
                f"for {method} {_plain_path(path)}. Check user and password, or give the role the "
                "rights that the output's page lists"
            ) from None
        except TransportError as error:
            status = error.status_code
            if status == 404 and absent:
                return None
            text = (
                f"OpenSearch answers HTTP {status} {_kind(error)} to {method} {_plain_path(path)}"
                f"{_block(error)}"
            )
            if status == 413:
                raise TooLargeError(text) from None
            if status in BUSY:
                raise ClusterBusyError(text) from None
            if status == 409:
                raise VersionConflictError(text) from None
            if isinstance(status, int) and 400 <= status < 500 and status != 404:
                raise InvalidRequestError(text) from None
            raise OutputError(text) from None


def path(*parts: str) -> str:
    """Return the path of a URL, made of names."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def reason(error: Mapping[str, Any]) -> str:
    """Return why an item was refused, without values."""
    kind = str(error.get("type", "unknown error"))
    if kind == BLOCKED:
        return kind + _advice(error)
    found = _FIELD.search(str(error.get("reason", "")))
    return kind if found is None else f"{kind}: field {found[1]} of type {found[2]}"


def _advice(error: Mapping[str, Any]) -> str:
    """Describes a block and how it ends; empty if it ends by itself."""
    found = _BLOCK.search(str(error.get("reason", "")))
    setting = _BLOCKS.get(found[2]) if found else None
    if found is None or setting is None:
        return ""
    place = f"index {found[1]}" if found[1] else "the cluster"
    if found[2] == _FLOOD_STAGE:
        return (
            f": {place} takes no writes because a disk of the cluster is full up to "
            "cluster.routing.allocation.disk.watermark.flood_stage. Free space on it, and the "
            f"cluster takes back {setting} by itself"
        )
    return (
        f": {place} takes no writes because somebody set {setting}. Set it to null once rows may "
        "be written again"
    )


def _block(error: TransportError) -> str:
    return _advice(_error_body(error)) if _kind(error) == BLOCKED else ""


def _kind(error: TransportError) -> str:
    return str(_error_body(error).get("type", ""))


def _error_body(error: TransportError) -> Mapping[str, Any]:
    found = error.info.get("error") if isinstance(error.info, dict) else None
    return found if isinstance(found, dict) else {}


def _plain_path(path: str) -> str:
    """Return a path without parameters: indices' names, no ids."""
    return path.partition("?")[0]


def _inner(error: SSLError) -> Any:
    """Return Python's own error: the client wraps urllib3's, which has it as its argument."""
    return next(iter(getattr(error.info, "args", ())), None)
