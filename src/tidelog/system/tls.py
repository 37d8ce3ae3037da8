"""What OpenSSL's errors mean, as Python has them."""

from __future__ import annotations

import ssl
from typing import Final

CUT_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""The connection ended amid the handshake, and nothing was said of why: as by a server that is
being stopped. It is worth another try; other errors of TLS need a person.
"""
