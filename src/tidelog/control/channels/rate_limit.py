"""Slows down guessing of tokens, at all interfaces together.

Nobody is locked out by what others try: a right token is always taken, at once. So what is slowed
down are the answers to wrong ones, all of them together; who does not wait for answers is not
slowed down. Only tokens that can't be guessed keep everybody out.
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
"""Whose failures are remembered."""
ANSWERS_PER_S: Final = 10.0
"""Once there were too many, wrong tokens are answered at this rate."""
MOST_HELD: Final = 200
"""Answers that wait for it; more are not held back, so that they take no room."""


class Failures:
    """How often an address, or all of them, gave a wrong token within a minute."""

    def __init__(self) -> None:
        self._at: dict[str, deque[float]] = {}
        self._of_all: deque[float] = deque(maxlen=MOST_OF_ALL)

    def too_many(self, address: str, now_s: float) -> bool:
        """Is it told to wait?"""
        return any(
            len(times) == times.maxlen and times[0] > now_s - FAILURES_OVER_S
            for times in (self._at.get(address, deque(maxlen=MOST_FAILURES)), self._of_all)
        )

    def add(self, address: str, now_s: float) -> None:
        """One more."""
        self._of_all.append(now_s)
        times = self._at.pop(address, deque(maxlen=MOST_FAILURES))
        times.append(now_s)
        self._at[address] = times  # the newest last
        while len(self._at) > ADDRESSES:
            del self._at[next(iter(self._at))]


class TokenRateLimit:
    """One for each process, shared by all interfaces that take tokens; used on its event loop."""

    def __init__(self) -> None:
        self._failures = Failures()
        self._held = 0
        self._next_s = 0.0

    async def wrong(self, address: str) -> bool:
        """A wrong token came from there. Is that told to wait? Then this returns late."""
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
