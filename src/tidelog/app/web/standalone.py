"""Serves the page in its own process, for several Tidelogs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tidelog.app.http_server import http_server, listen, url_of
from tidelog.config import Config
from tidelog.config.loading import of_each_database
from tidelog.errors import UsageError
from tidelog.system.extras import missing_extra

STOP_S = 10.0


def serve_page(
    configs: Sequence[tuple[Path, Config]],
    *,
    host: str | None,
    port: int | None,
    stop_event: threading.Event,
    on_start: Callable[[str], None],
) -> None:
    """Serve the page of these Tidelogs until ``stop_event``. Captures nothing.

    Args:
        configs: the configurations, with their files. The first one's ``control.rest`` says who may
            log in, and where to listen.
        host: replaces the first one's.
        port: replaces the first one's.
        stop_event: ends the server when set.
        on_start: called with the URL.

    Raises:
        UsageError: the first one has no ``control.rest``, or this host can't listen on the address.
        MissingExtraError: starlette or uvicorn is not installed.
    """
    file, first = configs[0]
    rest = first.control.rest
    if rest is None:
        raise UsageError(f"{file}: control.rest is missing; its token is what one logs in with")
    try:
        from starlette.applications import Starlette

        from tidelog.app.web.instance import Instance
        from tidelog.app.web.routes import Web, tokens_of

        web = Web(
            [Instance(name, config) for name, config in named_configs(configs)], tokens_of(rest)
        )
        server = http_server(Starlette(routes=web.routes()), behind_proxy=rest.behind_proxy)
    except ImportError as error:
        raise missing_extra(error, "rest") or error from None
    host, port = host or rest.host, rest.port if port is None else port
    listening = listen(host, port)
    if listening is None:
        raise UsageError(
            f"{host}:{port} is taken, perhaps by a capture with its own page: choose another --port"
        )
    with listening:
        web.start()
        thread = threading.Thread(
            target=server.run, args=([listening],), name="tidelog-web", daemon=True
        )
        thread.start()
        on_start(f"{url_of(listening)}/")
        stop_event.wait()
        web.end_streams()
        server.should_exit = True
        thread.join(STOP_S)
        web.close()


def named_configs(configs: Sequence[tuple[Path, Config]]) -> list[tuple[str, Config]]:
    """Name each by its file, and its database if there are several; equal names get numbers."""
    pairs = [
        (f"{file.stem}/{database}" if database else file.stem, each)
        for file, config in configs
        for database, each in of_each_database(config).items()
    ]
    alike = Counter(name for name, _ in pairs)
    used: Counter[str] = Counter()
    result = []
    for name, config in pairs:
        used[name] += 1
        result.append((f"{name} {used[name]}" if alike[name] > 1 else name, config))
    return result
