"""The services that run beside a capture: the HTTP interface, its server, and the OTLP push."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import SecretStr

from tidelog.app.base.log_location import event_log_path
from tidelog.app.web.metrics import MetricValues
from tidelog.config import Config, RestSection
from tidelog.config.loading import config_by_database
from tidelog.errors import UsageError
from tidelog.eventlog.schemas import MessageSchemaStore
from tidelog.system.extras import missing_extra

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

    from tidelog.app.web.routes import Web
    from tidelog.control.channels.rate_limit import TokenRateLimit
    from tidelog.control.mailbox import ApiBackend


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


# The services.

logger = logging.getLogger(__name__)

BIND_PATIENCE_S = 10.0
_LISTEN_AGAIN_S = 2.0
STOP_S = 5.0
ASK_EVERY_S = 1.0


class Service(Protocol):
    """A service that is notified when this process starts or stops leading."""

    def start(self) -> None: ...
    def lead(self, surface: Callable[[], ApiBackend]) -> None: ...
    def stand_by(self) -> None: ...
    def close(self) -> None: ...
    def problem(self) -> dict[str, Any] | None: ...


def open_services(
    config: Config,
    holder: str,
    leader: Callable[[], str | None],
    leader_url: Callable[[], str | None],
) -> Services:
    """Open the services of ``control.rest`` and ``control.otlp``. ``holder``: this process.

    Raises:
        MissingExtraError: a package that one of them needs is not installed.
    """
    parts: list[Service] = []
    if config.control.otlp is not None:
        from tidelog.app.web.otlp import OtlpPush

        name = config.source.connector
        parts.append(OtlpPush(config.control.otlp, name, holder, event_log_path(config)))
    if config.control.rest is not None:
        location = event_log_path(config)
        parts.append(RestServer(config.control.rest, leader, location, leader_url, config))
    return Services(parts)


def _tokens(token: str, reading: SecretStr | None) -> tuple[str, ...]:
    return (token,) if reading is None else (token, reading.get_secret_value())


def _web(config: Config, rest: RestSection, rate_limit: TokenRateLimit) -> Web:
    from tidelog.app.web.routes import Web, tokens_of
    from tidelog.app.web.site import Site

    return Web([Site(config.pipeline.name, config)], tokens_of(rest), rate_limit)


class Services:
    """Several services as one."""

    def __init__(self, parts: Sequence[Service]) -> None:
        self._parts = parts

    def start(self) -> None:
        for part in self._parts:
            part.start()

    def lead(self, surface: Callable[[], ApiBackend]) -> None:
        for part in self._parts:
            part.lead(surface)

    def stand_by(self) -> None:
        for part in self._parts:
            part.stand_by()

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def problems(self) -> list[dict[str, Any]]:
        """Return the services' problems for the status document. See `ChannelProblem`."""
        problems = [part.problem() for part in self._parts]
        return [each for each in problems if each is not None]


class RestServer:
    """The HTTP interface of one capture process.

    A standby also answers, with the leader's name and URL, if the port is free: on one host the
    leader has it. A new leader needs the port.

    Args:
        rest: the address and the tokens.
        leader: returns the name of the leader, None if nobody leads.
        log_path: the event log, beside which the schemas of messages are kept.
        leader_url: returns the URL of the leader's interface, None if it is not known.
        config: the configuration for the web page; None: no page.

    Raises:
        MissingExtraError: starlette or uvicorn is not installed.
    """

    def __init__(
        self,
        rest: RestSection,
        leader: Callable[[], str | None],
        log_path: str,
        leader_url: Callable[[], str | None] = lambda: None,
        config: Config | None = None,
    ) -> None:
        try:
            import uvicorn  # noqa: F401 - without it nothing is served

            from tidelog.app.web.metrics_routes import Health
            from tidelog.control.channels import schema_registry
            from tidelog.control.channels.channel_problem import ChannelProblem
            from tidelog.control.channels.rate_limit import TokenRateLimit
            from tidelog.control.channels.rest import Leadership, application
        except ImportError as error:
            raise missing_extra(error, "rest") or error from None
        self._rest = rest
        self._surface: ApiBackend | None = None
        self._next_read_at = 0.0
        self._elsewhere = Leadership(None)

        def leadership() -> Leadership:
            surface = self._surface
            if surface is not None:
                return Leadership(surface)
            now = time.monotonic()
            # each request to the state store may cost money, and anybody may ask
            if now >= self._next_read_at:
                self._next_read_at = now + ASK_EVERY_S
                leader_name, url = leader(), leader_url()
                self._elsewhere = Leadership(None, leader_name, None if url == rest.url else url)
            return self._elsewhere

        def status() -> dict[str, Any] | None:
            surface = self._surface
            return None if surface is None else surface.status()

        token = rest.token.get_secret_value()
        rate_limit = TokenRateLimit()
        readings = MetricValues(status, log_path)
        health = Health(readings, leader, _tokens(token, rest.metrics_token), rate_limit)
        schemas = schema_registry.routes(
            MessageSchemaStore(log_path), _tokens(token, rest.schema_token), rate_limit
        )
        self._web = None if config is None else _web(config, rest, rate_limit)
        page = [] if self._web is None else self._web.routes()
        self._server = http_server(
            application(leadership, token, [*schemas, *health.routes(), *page], rate_limit),
            behind_proxy=rest.behind_proxy,
        )
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._trouble = ChannelProblem("rest", "The web page and the HTTP interface are away")
        self._port_thread: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def url(self) -> str | None:
        """The URL at which it listens; None while it does not."""
        return None if self._socket is None else url_of(self._socket)

    def start(self) -> None:
        """Listen; if the port is taken, `lead` tries again.

        Raises:
            UsageError: this host can't listen on the address.
        """
        if self._web is not None:
            self._web.start()
        if not self._listen():
            logger.info("%s is taken, probably by the leading capture", self._address())

    def lead(self, surface: Callable[[], ApiBackend]) -> None:
        """Answer for this process as the leader.

        If the port is taken, listen as soon as it is free: capture does not wait for it.
        """
        self._surface = surface()
        self._notify_web(leads=True)
        if self._socket is None and self._port_thread is None:
            self._port_thread = threading.Thread(
                target=self._listen_later, name="tidelog-rest-port", daemon=True
            )
            self._port_thread.start()

    def stand_by(self) -> None:
        """Answer as a standby from now on."""
        self._surface = None
        self._notify_web(leads=False)

    def close(self) -> None:
        """Finish open requests, for three seconds at most, and stop listening."""
        self._surface = None
        self._closed.set()
        if self._web is not None:
            self._web.end_streams()
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_S)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._web is not None:
            self._web.close()

    def _notify_web(self, *, leads: bool) -> None:
        if self._web is not None:
            self._web.lead(leads)

    def _listen_later(self) -> None:
        """Listen once the port is free, while capture runs."""
        deadline = time.monotonic() + BIND_PATIENCE_S
        try:
            while not self._closed.is_set() and not self._listen():
                late = time.monotonic() > deadline
                if late:
                    self._trouble.begin(
                        f"control.rest: {self._address()} is taken by another program, or by a "
                        "capture of this host that led before",
                        "Choose another port, or end that process. Capture continues, and listens "
                        "once the port is free.",
                    )
                self._closed.wait(_LISTEN_AGAIN_S if late else 0.1)
            self._trouble.end()
        except UsageError as error:
            logger.warning("%s", error)

    def problem(self) -> dict[str, Any] | None:
        """Return what is wrong with the port; None: nothing."""
        return self._trouble.now()

    def _address(self) -> str:
        return f"{self._rest.host}:{self._rest.port}"

    def _listen(self) -> bool:
        """Start to listen and serve; return False if the port is taken."""
        listening = listen(self._rest.host, self._rest.port)
        if listening is None:
            return False
        self._socket = listening
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="tidelog-rest", daemon=True
        )
        self._thread.start()
        return True


_PAGE_STOP_S = 10.0


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

        from tidelog.app.web.routes import Web, tokens_of
        from tidelog.app.web.site import Site

        web = Web([Site(name, config) for name, config in named_configs(configs)], tokens_of(rest))
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
        thread.join(_PAGE_STOP_S)
        web.close()


def named_configs(configs: Sequence[tuple[Path, Config]]) -> list[tuple[str, Config]]:
    """Name each by its file, and its database if there are several; equal names get numbers."""
    pairs = [
        (f"{file.stem}/{database}" if database else file.stem, each)
        for file, config in configs
        for database, each in config_by_database(config).items()
    ]
    alike = Counter(name for name, _ in pairs)
    used: Counter[str] = Counter()
    result = []
    for name, config in pairs:
        used[name] += 1
        result.append((f"{name} {used[name]}" if alike[name] > 1 else name, config))
    return result
