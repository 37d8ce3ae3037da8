"""The meaning of OpenSSL's errors in Python."""

from __future__ import annotations

import ssl
from typing import Final

CUT_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""The connection ended during the handshake without a reason, as with a stopping server.

A retry may help; other TLS errors need a person.
"""
