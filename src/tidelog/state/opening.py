"""Opens state stores and elections by the scheme of ``state.url``: the only place that knows them.

Another store is an object with the methods of `tidelog.ports.StateBackend`, found by an entry point
of the group ``tidelog.state`` that is called like the URL's scheme.
"""

from __future__ import annotations

from pathlib import Path

from tidelog.adapters import STATES
from tidelog.ports import Election, StateBackend, StateStore


def checked_url(url: str, base: Path) -> str:
    """The URL, with relative paths below ``base``; raises ValueError or ConfigError."""
    scheme = url.partition(":")[0]
    if scheme not in STATES.names:
        also = f", or a URL of {', '.join(STATES.others)}" if STATES.others else ""
        raise ValueError(f"expected sqlite:///path/to/state.db{also}")
    return STATES.get(scheme).checked(url, base)


def state_path(url: str) -> Path | None:
    """What on this host holds it; None: it is elsewhere."""
    return _backend(url).path(url)


def state_exists(url: str) -> bool:
    """Is there a store already? Creates none."""
    return _backend(url).exists(url)


def open_state(url: str) -> StateStore:
    """The store; the caller closes it."""
    return _backend(url).store(url)


def open_election(
    url: str, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
) -> Election:
    """An election of ``name`` among those that share the store; the caller closes it.

    Args:
        url: of the store.
        name: what is led.
        holder: who this is, for people; instances with equal holders still exclude each other.
        ttl_s: how long a lease lasts without renewal.
        first_epoch: epochs start here or above.
    """
    return _backend(url).election(url, name, holder, ttl_s, first_epoch=first_epoch)


def _backend(url: str) -> StateBackend:
    return STATES.get(url.partition(":")[0])
