"""Sessions of users who have logged in. Pure: the time is an argument.

A session is a signed text in a cookie, so that it lasts when another process answers or this one is
restarted. Its signing key is derived from the login token: a new token in the configuration ends
all sessions of the old one.
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
    """What a user may do."""

    VIEWER = "viewer"
    """May see everything."""
    OPERATOR = "operator"
    """May also act."""


@dataclass(frozen=True, slots=True)
class WebSession:
    """A user who has logged in.

    Attributes:
        name: the name that the user gave; nobody has checked it.
        until_s: the end of the session, in seconds since 1970.
        nonce: differs from those of all other sessions.
    """

    role: Role
    name: str
    until_s: int
    nonce: str


class Sessions:
    """Opens, verifies and closes sessions. ``tokens``: the tokens, by the role that they give."""

    def __init__(self, tokens: Mapping[Role, str]) -> None:
        self._tokens = dict(tokens)
        self._closed: deque[str] = deque(maxlen=_CLOSED)

    def open(self, token: str, name: str, now_s: float) -> tuple[Role, str] | None:
        """Return the role and the cookie of a new session; None: the token is wrong."""
        given = token.encode("utf-8", "replace")
        for role, known in self._tokens.items():
            if hmac.compare_digest(given, known.encode()):
                shown = "".join(filter(str.isprintable, name)).strip()[:NAME_LENGTH]
                session = WebSession(role, shown, int(now_s) + LASTS_S, secrets.token_hex(16))
                body = base64.urlsafe_b64encode(json.dumps(asdict(session)).encode()).decode()
                return role, f"{body}.{self._mac(role, 'session', body)}"
        return None

    def of(self, cookie: str, now_s: float) -> WebSession | None:
        """Return the session of the cookie; None: it is not ours, or has ended."""
        body, _, mac = cookie.partition(".")
        role = next(
            (role for role in self._tokens if _equal(self._mac(role, "session", body), mac)), None
        )
        if role is None:
            return None
        try:  # only once the signature is verified; perhaps of another version
            session = WebSession(**json.loads(base64.urlsafe_b64decode(body)))
        except TypeError:
            return None
        if session.role != role or session.until_s <= now_s or session.nonce in self._closed:
            return None
        return WebSession(role, session.name, session.until_s, session.nonce)

    def marks(self) -> dict[Role, str]:
        """Return the name of the cookies for each role's token.

        Only a holder of the token gets one, so it reveals nothing to others.
        """
        return {role: self._mac(role, "name", "")[:8] for role in self._tokens}

    def csrf(self, session: WebSession) -> str:
        """Return the text that each changing request must send beside the cookie."""
        return self._mac(session.role, "csrf", session.nonce)

    def has_csrf(self, session: WebSession, csrf: str) -> bool:
        """Return whether our page sent the request."""
        return _equal(self.csrf(session), csrf)

    def close(self, session: WebSession) -> None:
        """End the session in this process; the caller deletes the cookie."""
        self._closed.append(session.nonce)

    def _mac(self, role: Role, what: str, text: str) -> str:
        key = hashlib.sha256(b"tidelog web\0" + self._tokens[role].encode()).digest()
        signed = f"{what}\0{text}".encode("utf-8", "replace")
        return hmac.new(key, signed, hashlib.sha256).hexdigest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))
