"""What an object store refuses a request with, for people."""

from __future__ import annotations

import re
import socket
from typing import Final

from tidelog.errors import AccessRefusedError, StorageError

_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_NOT_LET_IN: Final = re.compile(r"status code: (401|403|404)\b")
"""404: of the bucket. That an object is not there is an answer, and comes not here."""
_WRONG_CLOCK: Final = re.compile(r"<Code>RequestTimeTooSkewed</Code>|Request date header too old")
"""S3 and what speaks its protocol; Azure. They answer 403, but it is no credential they refuse."""

_ELSEWHERE: Final = re.compile(r"[Rr]edirect without LOCATION")
"""S3 of a bucket in another region: unlike Amazon's own clients, ours does not look for it."""


_NO_CREDENTIALS: Final = re.compile(r"https?://(?:169\.254\.169\.254|metadata\.google)")
"""Where an instance's role is asked for, last of all."""


def storage_error(what: str, error: BaseException) -> StorageError:
    """``what``: could not be done."""
    reason = reason_of(error)
    if _WRONG_CLOCK.search(str(error)):
        return StorageError(
            f"{what}: the clock of this host differs from the store's by too much, so no request "
            f"is taken: {reason}. Set the clock (NTP); nothing else needs to be done."
        )
    if _ELSEWHERE.search(reason):
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
    if _NOT_LET_IN.search(reason):
        return AccessRefusedError(
            f"{what}: {reason}. Check the bucket's name, the endpoint, and that the credentials "
            "may read, list, write and delete there."
        )
    return StorageError(
        f"{what}: {reason}. Check the endpoint, the network, and that the credentials may read, "
        "list, write and delete there."
    )


def reason_of(error: BaseException) -> str:
    """Without the client's inner parts, and without the server's document: of a refused request
    that may hold what was signed, a session's token among it.
    """
    text = str(error)
    reason = text.partition("\n")[0].partition("<")[0].strip(" :") or type(error).__name__
    code = _CODE.search(text)
    return reason if code is None else f"{reason} ({code[1]})"
