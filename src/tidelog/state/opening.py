"""Opens state stores and elections by the scheme of ``state.url``: the only place that knows them.

Another store is an object with the methods of `tidelog.ports.StateBackend`, found by an entry point
of the group ``tidelog.state`` that is called like the URL's scheme.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidelog.kinds.adapters import STATES
from tidelog.kinds.sections import StateUrl
from tidelog.ports import Election, StateBackend, StateStore


def checked_url(url: str, base: Path) -> str:
    """The URL, with relative paths below ``base``; raises ValueError or ConfigError."""
    scheme = _scheme(url)
    if scheme not in STATES.names:
        raise ValueError(
            "expected sqlite:///path/to/state.db, or a URL of "
            f"{', '.join(name for name in STATES.names if name != 'sqlite')}"
        )
    return STATES.get(scheme).checked(url, base)


def state_path(url: str | StateUrl) -> Path | None:
    """What on this host holds it; None: it is elsewhere."""
    return _backend(url).path(_text(url))


def state_exists(url: str | StateUrl) -> bool:
    """Is there a store already? Creates none."""
    return _backend(url).exists(_text(url))


def open_state(url: str | StateUrl) -> StateStore:
    """The store; the caller closes it."""
    return _backend(url).store(_text(url))


def fenced(state: StateStore, name: str, epoch: int) -> StateStore:
    """A handle for the leader ``name`` of this epoch, whose late changes the store refuses if it
    can (`tidelog.ports.FencedStore`).
    """
    own: Callable[[str, int], StateStore] | None = getattr(state, "fenced", None)
    return state if own is None else own(name, epoch)


def look_every_s(url: str | StateUrl) -> float:
    """How often whoever leads may look for commands, and say how it is; 0: as often as it likes."""
    return float(getattr(_backend(url), "look_every_s", 0))


def sparing(url: str | StateUrl) -> bool:
    """Is each request paid for?"""
    return look_every_s(url) > 0


def open_election(
    url: str | StateUrl, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
) -> Election:
    """An election of ``name`` among those that share the store; the caller closes it.

    Args:
        url: of the store.
        name: what is led.
        holder: who this is, for people; instances with equal holders still exclude each other.
        ttl_s: how long a lease lasts without renewal.
        first_epoch: epochs start here or above.
    """
    return _backend(url).election(_text(url), name, holder, ttl_s, first_epoch=first_epoch)


def _backend(url: str | StateUrl) -> StateBackend:
    return STATES.get(_scheme(_text(url)))


def _scheme(url: str) -> str:
    return url.partition(":")[0]


def _text(url: str | StateUrl) -> str:
    return url.reveal() if isinstance(url, StateUrl) else url
