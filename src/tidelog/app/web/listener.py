"""An address to listen on, and a server of an application."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from tidelog.errors import UsageError

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette


def listen(host: str, port: int) -> socket.socket | None:
    """Listen there; None if the port is taken.

    Raises:
        UsageError: the address can't be listened on, whoever else does.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _name, address = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise UsageError(
            f"control.rest: {host}:{port} can't be listened on: {error.strerror}"
        ) from None
    return listening


def url_of(listening: socket.socket) -> str:
    """The URL of the socket, as a browser takes it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def http_server(application: Starlette, *, behind_proxy: bool) -> uvicorn.Server:
    """Serves it, once told where.

    Args:
        application: what it serves.
        behind_proxy: whoever asks from this host is a proxy, whose ``X-Forwarded-…`` are believed.
    """
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            application,
            proxy_headers=behind_proxy,
            access_log=False,
            log_config=None,
            log_level="error",
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=3,
        )
    )
