"""Who has logged in, as what. Pure: the time comes in.

A session is a signed text in a cookie, so that it goes on when another process answers or this one
is started again. What signs it is made of the token that it was opened with: a new token in the
configuration ends all sessions of the old one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

LASTS_S: Final = 12 * 3600
NAME_LENGTH: Final = 60
_CLOSED: Final = 10_000


class Role(StrEnum):
    """What one may do."""

    VIEWER = "viewer"
    """See everything."""
    OPERATOR = "operator"
    """Act, too."""


@dataclass(frozen=True, slots=True)
class WebSession:
    """A user who has logged in.

    Attributes:
        name: as they said it; nobody has checked it.
        until_s: when it ends, in seconds since 1970.
        nonce: tells it from all others.
    """

    role: Role
    name: str
    until_s: int
    nonce: str


class Sessions:
    """Opens, knows and closes sessions. ``tokens``: by the role that they give."""

    def __init__(self, tokens: Mapping[Role, str]) -> None:
        self._tokens = dict(tokens)
        self._closed: deque[str] = deque(maxlen=_CLOSED)

    def open(self, token: str, name: str, now_s: float) -> tuple[Role, str] | None:
        """Role and cookie of a new session; None: the token is wrong."""
        given = token.encode("utf-8", "replace")
        for role, known in self._tokens.items():
            if hmac.compare_digest(given, known.encode()):
                shown = "".join(filter(str.isprintable, name)).strip()[:NAME_LENGTH]
                session = WebSession(role, shown, int(now_s) + LASTS_S, secrets.token_hex(16))
                body = base64.urlsafe_b64encode(json.dumps(asdict(session)).encode()).decode()
                return role, f"{body}.{self._mac(role, 'session', body)}"
        return None

    def of(self, cookie: str, now_s: float) -> WebSession | None:
        """Whose cookie this is; None: it is not ours, or has ended."""
        body, _, mac = cookie.partition(".")
        role = next(
            (role for role in self._tokens if _equal(self._mac(role, "session", body), mac)), None
        )
        if role is None:
            return None
        try:  # only once it is known to be ours; of another version perhaps
            found = WebSession(**json.loads(base64.urlsafe_b64decode(body)))
        except TypeError:
            return None
        if found.role != role or found.until_s <= now_s or found.nonce in self._closed:
            return None
        return WebSession(role, found.name, found.until_s, found.nonce)

    def marks(self) -> dict[Role, str]:
        """For each role's token, the name of its cookies. Only a holder of the token gets one, so
        it tells others nothing.
        """
        return {role: self._mac(role, "name", "")[:8] for role in self._tokens}

    def csrf(self, session: WebSession) -> str:
        """What each request that changes something carries beside the cookie."""
        return self._mac(session.role, "csrf", session.nonce)

    def is_meant(self, session: WebSession, csrf: str) -> bool:
        """Was the request sent by our page?"""
        return _equal(self.csrf(session), csrf)

    def close(self, session: WebSession) -> None:
        """Ends it in this process; whoever closes it gives up the cookie."""
        self._closed.append(session.nonce)

    def _mac(self, role: Role, what: str, text: str) -> str:
        key = hashlib.sha256(b"tidelog web\0" + self._tokens[role].encode()).digest()
        signed = f"{what}\0{text}".encode("utf-8", "replace")
        return hmac.new(key, signed, hashlib.sha256).hexdigest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))
