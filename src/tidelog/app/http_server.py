"""The services beside a capture, from its start to its end: above all the HTTP interface."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import SecretStr

from tidelog.app.log_location import log_place
from tidelog.app.metrics.reader import Readings
from tidelog.app.web.listener import http_server, listen, url_of
from tidelog.config import Config, Rest
from tidelog.errors import UsageError
from tidelog.eventlog.message_schemas import MessageSchemaStore
from tidelog.system.extras import missing_extra

if TYPE_CHECKING:
    from tidelog.app.web.routes import Web
    from tidelog.control.channels.api_protocol import ApiBackend
    from tidelog.control.channels.rate_limit import TokenRateLimit

logger = logging.getLogger(__name__)

BIND_PATIENCE_S = 10.0
STOP_S = 5.0
ASK_EVERY_S = 1.0


class Serving(Protocol):
    """What a capture tells those who show it."""

    def start(self) -> None: ...
    def lead(self, surface: Callable[[], ApiBackend]) -> None: ...
    def stand_by(self) -> None: ...
    def close(self) -> None: ...


def open_serving(
    config: Config,
    holder: str,
    leader: Callable[[], str | None],
    leader_url: Callable[[], str | None],
) -> Serving:
    """What ``control.rest`` and ``control.otlp`` ask for. ``holder``: this process.

    Raises:
        MissingExtraError: what one of them needs is not installed.
    """
    parts: list[Serving] = []
    if config.control.otlp is not None:
        from tidelog.app.metrics.otlp import OtlpPush

        name = config.source.connector
        parts.append(OtlpPush(config.control.otlp, name, holder, log_place(config)))
    if config.control.rest is not None:
        place = log_place(config)
        parts.append(RestServer(config.control.rest, leader, place, leader_url, config))
    return Several(parts)


def _tokens(token: str, reading: SecretStr | None) -> tuple[str, ...]:
    return (token,) if reading is None else (token, reading.get_secret_value())


def _web(config: Config, rest: Rest, brake: TokenRateLimit) -> Web:
    from tidelog.app.web.instance import Instance
    from tidelog.app.web.routes import Web, tokens_of

    return Web([Instance(config.pipeline.name, config)], tokens_of(rest), brake)


class Several:
    """All of ``parts``."""

    def __init__(self, parts: Sequence[Serving]) -> None:
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


class RestServer:
    """The HTTP interface of one capture process.

    A process that stands by answers too, with the leader's name and URL, if the port is free: on
    one host the leader has it. Who begins to lead must have it.

    Args:
        rest: address and token.
        leader: the name of who leads, None if nobody does.
        log_path: the event log, beside which schemas of messages are kept.
        leader_url: where the interface of who leads is, None if that is not known.
        config: what the web page shows; None: there is no page.

    Raises:
        MissingExtraError: starlette or uvicorn is not installed.
    """

    def __init__(
        self,
        rest: Rest,
        leader: Callable[[], str | None],
        log_path: str,
        leader_url: Callable[[], str | None] = lambda: None,
        config: Config | None = None,
    ) -> None:
        try:
            import uvicorn  # noqa: F401 - without it nothing is served

            from tidelog.app.metrics.routes import Health
            from tidelog.control.channels import schema_registry
            from tidelog.control.channels.rate_limit import TokenRateLimit
            from tidelog.control.channels.rest import Leadership, application
        except ImportError as error:
            raise missing_extra(error, "rest") or error from None
        self._rest = rest
        self._surface: ApiBackend | None = None
        self._asked_again = 0.0
        self._elsewhere = Leadership(None)

        def leadership() -> Leadership:
            surface = self._surface
            if surface is not None:
                return Leadership(surface)
            now = time.monotonic()
            if now >= self._asked_again:  # each look may be paid for, and anybody may ask
                self._asked_again = now + ASK_EVERY_S
                found, url = leader(), leader_url()
                self._elsewhere = Leadership(None, found, None if url == rest.url else url)
            return self._elsewhere

        def status() -> dict[str, Any] | None:
            surface = self._surface
            return None if surface is None else surface.status()

        token = rest.token.get_secret_value()
        brake = TokenRateLimit()
        readings = Readings(status, log_path)
        health = Health(readings, leader, _tokens(token, rest.metrics_token), brake)
        schemas = schema_registry.routes(
            MessageSchemaStore(log_path), _tokens(token, rest.schema_token), brake
        )
        self._web = None if config is None else _web(config, rest, brake)
        page = [] if self._web is None else self._web.routes()
        self._server = http_server(
            application(leadership, token, [*schemas, *health.routes(), *page], brake),
            behind_proxy=rest.behind_proxy,
        )
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._leader = leader
        self._succeeds = False  # a capture that led when this one started, and had the port
        self._later: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def url(self) -> str | None:
        """Where it listens; None while it does not."""
        return None if self._socket is None else url_of(self._socket)

    def start(self) -> None:
        """Listen, unless the port is taken: then `lead` tries again.

        Raises:
            UsageError: the address can't be listened on, whoever leads.
        """
        if self._web is not None:
            self._web.start()
        if not self._listen():
            self._succeeds = self._leader() is not None
            logger.info("%s is taken, by the capture that leads as it seems", self._address())

    def lead(self, surface: Callable[[], ApiBackend]) -> None:
        """Answer for the capture of this process, which leads from now on; if the one that led
        before is frozen and keeps the port, as soon as it lets it go.

        Raises:
            UsageError: the port is still taken, ten seconds after.
        """
        if self._socket is None and self._succeeds:
            if self._later is None:
                self._later = threading.Thread(
                    target=self._listen_later, name="tidelog-rest-port", daemon=True
                )
                self._later.start()
            self._surface = surface()
            self._tell_web(leads=True)
            return
        deadline = time.monotonic() + BIND_PATIENCE_S
        while self._socket is None and not self._listen():
            if time.monotonic() > deadline:
                raise UsageError(
                    f"control.rest: {self._address()} is taken by another program: choose another "
                    "port, or end that program"
                )
            time.sleep(0.1)
        self._surface = surface()
        self._tell_web(leads=True)

    def stand_by(self) -> None:
        """This process leads no more."""
        self._surface = None
        self._tell_web(leads=False)

    def close(self) -> None:
        """End what is being answered, for three seconds at most, and stop listening."""
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

    def _tell_web(self, *, leads: bool) -> None:
        if self._web is not None:
            self._web.lead(leads)

    def _listen_later(self) -> None:
        """Take the port once it is free. Capture does not wait for it."""
        deadline, warned = time.monotonic() + BIND_PATIENCE_S, False
        try:
            while not self._closed.is_set() and not self._listen():
                self._closed.wait(0.1)
                if time.monotonic() > deadline and not warned:
                    warned = True
                    logger.warning(
                        "control.rest: %s is taken, by a capture that hangs as it seems: end it",
                        self._address(),
                    )
        except UsageError as error:
            logger.warning("%s", error)

    def _address(self) -> str:
        return f"{self._rest.host}:{self._rest.port}"

    def _listen(self) -> bool:
        """Begin to listen and serve; False if the port is taken."""
        listening = listen(self._rest.host, self._rest.port)
        if listening is None:
            return False
        self._socket = listening
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="tidelog-rest", daemon=True
        )
        self._thread.start()
        return True
