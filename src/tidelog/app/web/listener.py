"""Opens a listening socket, and creates the HTTP server."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from tidelog.errors import UsageError

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette


def listen(host: str, port: int) -> socket.socket | None:
    """Listen on the address; return None if the port is taken.

    Raises:
        UsageError: this host can't listen on the address.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _name, address = addresses[0]
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
    """Return the URL of the socket for a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def http_server(application: Starlette, *, behind_proxy: bool) -> uvicorn.Server:
    """Return a server of the application; the caller gives it a socket.

    Args:
        application: the application to serve.
        behind_proxy: whether clients on this host are proxies, whose ``X-Forwarded-…`` count.
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
