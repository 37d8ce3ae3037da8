"""State and elections beside the event log on an object store: ``log:``.

Below the log's location, ``state/documents`` and ``state/leases`` have an object for each document.
It is replaced only if its tag is the expected one (``If-Match``), and created only if there is none
(``If-None-Match: *``), as are the event log's own objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from tidelog.errors import (
    AccessRefusedError,
    ConfigError,
    OutcomeUnknownError,
    StateError,
    StorageError,
)
from tidelog.eventlog.storage import options_of
from tidelog.model.option_values import is_url
from tidelog.state.documents import Documents, LeaseElection, NoAnswerError
from tidelog.state.lease_polling import POLL_SHARE
from tidelog.system.extras import check_installed

if TYPE_CHECKING:
    from tidelog.eventlog.object_storage import ObjectStorage

SCHEME: Final = "log:"
_DOCUMENTS, _LEASES = "documents", "leases"
_ENDING: Final = ".json"
# A document is small, and a lease can't wait half a minute for a request.
_PATIENCE: Final = {"timeout": "5s", "connect_timeout": "3s"}


class ObjectRegister:
    """A `tidelog.state.documents.Register`: an object for each text."""

    def __init__(self, storage: ObjectStorage, folder: str) -> None:
        self._storage = storage
        self._folder = folder

    def read(self, name: str) -> tuple[bytes, Any] | None:
        with _state_errors():
            return self._storage.read_with_tag(self._path(name))

    def swap(self, name: str, text: bytes, tag: Any) -> Any:
        with _state_errors():
            return self._storage.replace_if(self._path(name), text, tag)

    def remove(self, name: str, tag: Any = None) -> bool:
        with _state_errors():
            self._storage.delete(self._path(name))
        return True

    def names(self) -> list[str]:
        with _state_errors():
            paths = self._storage.names(self._folder)
        files = (path.rpartition("/")[2] for path in paths)
        return [file.removesuffix(_ENDING) for file in files if file.endswith(_ENDING)]

    def close(self) -> None:
        """Do nothing: the event log uses the same client."""

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}{_ENDING}"


@contextmanager
def _state_errors() -> Iterator[None]:
    try:
        yield
    except AccessRefusedError:
        raise
    except OutcomeUnknownError as error:
        raise NoAnswerError(str(error)) from None
    except StorageError as error:
        raise StateError(str(error)) from None


class LogBackend:
    """The `tidelog.ports.StateBackend` of ``log:PLACE?OPTION=VALUE``. The configuration fills in
    the event log's location and its storage options.
    """

    poll_interval_s = 15.0
    """Each request costs money."""

    def normalize_url(self, url: str, base: Path) -> str:
        location = url.removeprefix(SCHEME).partition("?")[0]
        if location and not is_url(location):
            raise ValueError(
                "log: keeps the state beside an event log on an object store; with the log in a "
                "directory use sqlite:///path/to/state.db"
            )
        return url

    def path(self, url: str) -> None:
        return None

    def exists(self, url: str) -> bool:
        return bool(ObjectRegister(_storage(url), _DOCUMENTS).names())

    def store(self, url: str) -> Documents:
        return Documents(ObjectRegister(_storage(url), _DOCUMENTS))

    def election(
        self, url: str, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
    ) -> LeaseElection:
        leases = Documents(ObjectRegister(_storage(url), _LEASES))
        poll_interval_s = ttl_s * POLL_SHARE
        return LeaseElection(
            leases, name, holder, ttl_s, first_epoch=first_epoch, poll_interval_s=poll_interval_s
        )


def _storage(url: str) -> ObjectStorage:
    check_installed("obstore")  # first, as in `storage_at`
    from tidelog.eventlog.object_storage import ObjectStorage

    location, _, query = url.removeprefix(SCHEME).partition("?")
    if not location:
        raise ConfigError("state.url: log: has a place only in a configuration with an event log")
    below = f"{location.rstrip('/')}/state"
    return ObjectStorage(below, _PATIENCE | options_of(below) | dict(parse_qsl(query)))


BACKEND = LogBackend()
