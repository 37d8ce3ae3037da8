"""Tests that start MySQL or MariaDB have the marker `mysql_family`.

Which server they meet depends on the machine: Debian's MariaDB or one of Maven's, with plugins and
client programs or without. `make test-newcomer` runs these tests as on a machine that has none.
They are found by what their code, and that of their fixtures, names; a test of `make test-all`
that starts a server and was not found fails.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Generator
from types import CodeType, FunctionType
from typing import Any

import pytest
from tests.support.mysql import MySqlFamilyServer

from tidelog.demo.servers.mysql import MySqlProcess

MARKER = "mysql_family"
_WITHOUT_SERVERS = [("tests", "unit"), ("tests", "property")]  # `make test-newcomer` ignores them
_NAMED = re.compile("mysql|mariadb", re.IGNORECASE)
_running: list[pytest.Item] = []


def mark_mysql_family(items: list[pytest.Item]) -> None:
    """Set the marker, before `-m` chooses."""
    for item in items:
        if isinstance(item, pytest.Function) and _may_start_one(item):
            item.add_marker(MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _running[:] = [item]
    try:
        return (yield)
    finally:
        _running.clear()


def pytest_sessionstart() -> None:
    start = MySqlProcess.start

    def start_if_marked(server: MySqlProcess) -> None:
        for item in _running:
            left_out = any(item.get_closest_marker(name) for name in ("soak", "thorough"))
            assert left_out or item.get_closest_marker(MARKER), (
                f"{item.nodeid} starts {server.flavor}, and tests.mysql_family did not see that "
                "it may: `make test-newcomer` would leave it out"
            )
        start(server)

    MySqlProcess.start = start_if_marked  # type: ignore[method-assign]


def _may_start_one(item: pytest.Function) -> bool:
    if item.path.relative_to(item.config.rootpath).parts[:2] in _WITHOUT_SERVERS:
        return False
    if _NAMED.search(item.name.partition("[")[2]):  # its parameters say so
        return True
    fixtures = item._fixtureinfo.name2fixturedefs
    used = [each.func for name in item.fixturenames for each in fixtures.get(name, ())]
    seen: set[Any] = set()
    return any(_names_one(function, seen) for function in [item.function, *used])


def _names_one(function: Callable[..., Any], seen: set[Any]) -> bool:
    """Does it name a class of servers, itself or in what it calls of the tests' code?"""
    function = inspect.unwrap(function)
    if function in seen or not isinstance(function, FunctionType):
        return False
    seen.add(function)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, type) and issubclass(value, MySqlFamilyServer):
            return True
        if not str(getattr(value, "__module__", "")).startswith("tests."):
            continue
        called = vars(value).values() if isinstance(value, type) else [value]
        if any(_names_one(each, seen) for each in called if callable(each)):
            return True
    return False


def _names(code: CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names, inner))
