"""Slows down the guessing of tokens, over all HTTP interfaces of a process together.

Nobody is locked out by others' attempts: a right token is always accepted at once. So only the
answers to wrong tokens are delayed, all together; a client that does not wait for answers is not
delayed. Only tokens that can't be guessed keep everybody out.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import time
from collections import deque
from collections.abc import Iterable
from typing import Final

import anyio
from starlette.requests import Request

logger = logging.getLogger(__name__)

MOST_FAILURES: Final = 10
MOST_OF_ALL: Final = 100
FAILURES_OVER_S: Final = 60.0
ADDRESSES: Final = 1000
"""Number of addresses whose failures are remembered."""
ANSWERS_PER_S: Final = 10.0
"""Answers to wrong tokens per second, after too many failures."""
MOST_HELD: Final = 200
"""Delayed answers at a time; further ones are sent at once, so that they use no memory."""


class FailureCounts:
    """Counts the wrong tokens within a minute, by address and in total."""

    def __init__(self) -> None:
        self._at: dict[str, deque[float]] = {}
        self._of_all: deque[float] = deque(maxlen=MOST_OF_ALL)

    def too_many(self, address: str, now_s: float) -> bool:
        """Did the address, or all together, send too many wrong tokens?"""
        return any(
            len(times) == times.maxlen and times[0] > now_s - FAILURES_OVER_S
            for times in (self._at.get(address, deque(maxlen=MOST_FAILURES)), self._of_all)
        )

    def add(self, address: str, now_s: float) -> None:
        """Add a failure."""
        self._of_all.append(now_s)
        times = self._at.pop(address, deque(maxlen=MOST_FAILURES))
        times.append(now_s)
        self._at[address] = times  # in order, the newest last
        while len(self._at) > ADDRESSES:
            del self._at[next(iter(self._at))]


class TokenRateLimit:
    """The limit of one process, shared by all interfaces that check tokens; used on its event
    loop.
    """

    def __init__(self) -> None:
        self._failures = FailureCounts()
        self._held = 0
        self._next_s = 0.0

    async def reject(self, address: str) -> bool:
        """Count a wrong token. True: there were too many, and the answer was delayed."""
        now_s = time.monotonic()
        if not self._failures.too_many(address, now_s):
            self._failures.add(address, now_s)
            logger.warning("a request from %s had a wrong token", address)
            return False
        if self._held < MOST_HELD:
            self._held += 1
            self._next_s = max(now_s, self._next_s) + 1 / ANSWERS_PER_S
            try:
                await anyio.sleep(self._next_s - now_s)
            finally:
                self._held -= 1
        return True


TOO_MANY_MESSAGE: Final = "too many wrong tokens; wait a minute"


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
