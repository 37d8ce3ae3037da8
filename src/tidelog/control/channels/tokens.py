"""Does a request carry a token that it may carry?"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable

from starlette.requests import Request

from tidelog.control.channels.rate_limit import TokenRateLimit

TAKEN, MISSING, TOO_MANY = 200, 401, 429
TOO_MANY_SAID = "too many wrong tokens; wait a minute"


async def admitted(request: Request, tokens: Iterable[str], brake: TokenRateLimit) -> int:
    """`TAKEN` if the request carries one of ``tokens``; else the status of the answer, which comes
    the later the more often that happens.
    """
    if carries(request, tokens):
        return TAKEN
    if "authorization" not in request.headers:  # that is no guess
        return MISSING
    address = request.client.host if request.client else ""
    return TOO_MANY if await brake.wrong(address) else MISSING


def carries(request: Request, tokens: Iterable[str]) -> bool:
    """Is one of ``tokens`` given as a bearer token, or as the password of any user? Some programs
    can only send user and password.
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    given = given.strip()
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(given, validate=True).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            return False
        given = decoded.partition(":")[2]
    elif scheme.lower() != "bearer":
        return False
    sent = given.encode("utf-8", "replace")
    return any(hmac.compare_digest(sent, token.encode()) for token in tokens)
