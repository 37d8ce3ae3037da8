"""Opens state stores and elections by the scheme of ``state.url``.

Another store is an object with the methods of `tidelog.ports.StateBackend`, registered as an entry
point of the group ``tidelog.state`` under the URL's scheme.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidelog.kinds.adapters import STATES
from tidelog.kinds.sections import StateUrl
from tidelog.ports import Election, StateBackend, StateStore


def checked_url(url: str, base: Path) -> str:
    """Return the URL with relative paths below ``base``. Raises ValueError or ConfigError."""
    scheme = _scheme(url)
    if scheme not in STATES.names:
        raise ValueError(
            "expected sqlite:///path/to/state.db, or a URL of "
            f"{', '.join(name for name in STATES.names if name != 'sqlite')}"
        )
    return STATES.get(scheme).checked(url, base)


def state_path(url: str | StateUrl) -> Path | None:
    """Return the file or directory of the store on this host; None: it is elsewhere."""
    return _backend(url).path(_text(url))


def state_exists(url: str | StateUrl) -> bool:
    """Return whether the store exists; creates none."""
    return _backend(url).exists(_text(url))


def open_state(url: str | StateUrl) -> StateStore:
    """Open the store; the caller closes it."""
    return _backend(url).store(_text(url))


def fenced(state: StateStore, name: str, epoch: int) -> StateStore:
    """Return a handle for the leader ``name`` of this epoch.

    If the store can (`tidelog.ports.FencedStore`), it refuses changes by an earlier leader.
    """
    own: Callable[[str, int], StateStore] | None = getattr(state, "fenced", None)
    return state if own is None else own(name, epoch)


def look_every_s(url: str | StateUrl) -> float:
    """Return the seconds between two polls for commands; 0: there is no limit.

    The leader also publishes its status no more often.
    """
    return float(getattr(_backend(url), "look_every_s", 0))


def pays_per_request(url: str | StateUrl) -> bool:
    """Return whether each request costs money."""
    return look_every_s(url) > 0


def open_election(
    url: str | StateUrl, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
) -> Election:
    """Open an election of ``name`` among the processes that share the store; the caller closes it.

    Args:
        url: the URL of the store.
        name: the name of the lease.
        holder: this process, for people; instances with equal holders still exclude each other.
        ttl_s: how long a lease lasts without renewal.
        first_epoch: the smallest epoch to use.
    """
    return _backend(url).election(_text(url), name, holder, ttl_s, first_epoch=first_epoch)


def _backend(url: str | StateUrl) -> StateBackend:
    return STATES.get(_scheme(_text(url)))


def _scheme(url: str) -> str:
    return url.partition(":")[0]


def _text(url: str | StateUrl) -> str:
    return url.reveal() if isinstance(url, StateUrl) else url
