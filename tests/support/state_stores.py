"""The state stores that the behaviour suites run over: each a backend and a URL of a fresh place.

A new store is done when it is listed here and both suites pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from tests.support.faulty_network import FaultyNetwork
from tests.support.object_stores import EMULATED

from tidelog.eventlog.storage import provide_options
from tidelog.kinds.adapters import STATES
from tidelog.ports import StateBackend

EXAMPLE = Path(__file__).parents[2] / "examples" / "extension"
_numbers = itertools.count(1)


def folder() -> StateBackend:
    """That of docs/how-to/extend.md."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        backend: StateBackend = import_module("tidelog_extension.folder").BACKEND
        return backend


def _sqlite(request: pytest.FixtureRequest, directory: Path) -> str:
    return f"sqlite:///{directory}/state/state.db"


def _folder(request: pytest.FixtureRequest, directory: Path) -> str:
    return f"folder:{directory}/state"


def _log(request: pytest.FixtureRequest, directory: Path) -> str:
    """S3Proxy looks at ``If-Match`` before it writes, where S3 does both as one."""
    s3 = request.getfixturevalue("s3")
    place = s3.url(f"state-{next(_numbers)}")
    network = FaultyNetwork(s3.port, one_at_a_time=True)
    network.__enter__()
    request.addfinalizer(lambda: network.__exit__(None, None, None))
    provide_options(place, s3.options | {"endpoint": f"http://127.0.0.1:{network.port}"})
    return f"log:{place}"


def _zookeeper(request: pytest.FixtureRequest, directory: Path) -> str:
    server = request.getfixturevalue("zookeeper")
    return f"zookeeper://{server.hosts}/tidelog/state-{next(_numbers)}"


def _postgresql(request: pytest.FixtureRequest, directory: Path) -> str:
    server = request.getfixturevalue("postgres")
    name = f"state_{next(_numbers)}"
    request.addfinalizer(lambda: server.drop_database(name))
    return str(server.create_database(name))


STORES: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "sqlite": _sqlite,
    "folder": _folder,
    "log": _log,
    "zookeeper": _zookeeper,
    "postgresql": _postgresql,
}


ANY_STORE = [*sorted(STORES), *EMULATED]
"""Parameters: those, and event logs on other object stores than S3."""


def any_store(
    name: str, request: pytest.FixtureRequest, directory: Path
) -> tuple[StateBackend, str]:
    """The backend and a fresh place, of one of `ANY_STORE`."""
    if name not in STORES:
        place = request.getfixturevalue(name).url(f"state-{next(_numbers)}")
        return STATES.get("log"), f"log:{place}"
    if name == "zookeeper":
        pytest.importorskip("kazoo", reason="ZooKeeper's client: pip install tidelog[zookeeper]")
    backend = folder() if name == "folder" else STATES.get(name)
    return backend, STORES[name](request, directory)
