"""Tries the hosts of a URL one after the other.

libpq and psycopg can do that too, but each in its own way: libpq's non-blocking connection would
stay with a vanished host for as long as the network allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidelog.errors import ConnectionLostError, TidelogError

_Connection = TypeVar("_Connection")
_LISTS = ("host", "hostaddr", "port")
_ATTRIBUTES = "target_session_attrs"


def each_host(info: str) -> list[str]:
    """A connection string for each host of ``info``, in its order."""
    parameters = conninfo_to_dict(info)
    lists = {name: str(parameters[name]).split(",") for name in _LISTS if name in parameters}
    count = max((len(values) for values in lists.values()), default=1)
    if count == 1 or any(len(values) not in (1, count) for values in lists.values()):
        return [info]  # libpq reports what does not fit
    return [
        make_conninfo(
            info,
            **{name: values[i % len(values)] for name, values in lists.items()},
        )
        for i in range(count)
    ]


def _ordered_hosts(info: str) -> list[str]:
    """Like `each_host`, in the order of ``target_session_attrs``.

    With ``prefer-standby`` every single host would be accepted, so all hosts are first tried as a
    standby.
    """
    hosts = each_host(info)
    if len(hosts) == 1 or conninfo_to_dict(info).get(_ATTRIBUTES) != "prefer-standby":
        return hosts
    return [
        make_conninfo(host, **{_ATTRIBUTES: kind}) for kind in ("standby", "any") for host in hosts
    ]


def pin_host(info: str, connection: pq.abc.PGconn) -> str:
    """``info`` for the server of ``connection`` only, by its address: reads must come from the
    server of the log, and another host of a list, or another address of a name, may be a former
    primary.
    """
    host, address = connection.host.decode(), connection.hostaddr.decode()
    where = {"host": host or None, "port": connection.port.decode()}
    return make_conninfo(info, **where, hostaddr=None if host.startswith("/") else address or None)


def connect_first(info: str, connect: Callable[[str], _Connection]) -> _Connection:
    """The result of ``connect`` for the first host where it succeeds.

    With one host its error is raised; with several, one error names all. Its class is that of a
    lost connection if one of the hosts may become available (it is down, or not yet promoted).
    """
    failures: list[TidelogError] = []
    for host in _ordered_hosts(info):
        try:
            return connect(host)
        except TidelogError as failure:
            failures.append(failure)
    if len(failures) == 1:
        raise failures[0]
    lost = [failure for failure in failures if isinstance(failure, ConnectionLostError)]
    kind = type((lost or failures)[0])
    raise kind("; ".join(str(failure) for failure in failures))
