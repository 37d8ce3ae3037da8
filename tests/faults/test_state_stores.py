"""State stores whose network and server fail: nothing is lost, doubled, or done too late."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import psycopg
import pytest
from tests.campaign import sessions
from tests.support.faulty_network import FaultyNetwork, on_the_way
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Server
from tests.support.zookeeper import ZooKeeperServer

from tidelog.capture.leadership import LeaseKeeper
from tidelog.errors import ConfigError, LeaseLostError, StateConflictError, StateError
from tidelog.eventlog import object_storage
from tidelog.state.opening import open_election, open_state
from tidelog.state.zookeeper import ZooKeeperConnection

pytestmark = pytest.mark.integration
_numbers = count(1)


# ---------------------------------------------------------------- log:


@pytest.fixture
def place(s3: S3Server) -> str:
    return s3.url(f"state-faults-{next(_numbers)}")


@pytest.fixture
def network(s3: S3Server, place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyNetwork]:
    """The way to the server; a client tries again once."""
    monkeypatch.setitem(object_storage._RETRY, "max_retries", 1)
    with on_the_way(s3, place, monkeypatch, one_at_a_time=True) as network:
        yield network


def puts_below(s3: S3Server, place: str, folder: str) -> str:
    return f"PUT /{s3.bucket}/{place.rpartition('/')[2]}/state/{folder}/"


@pytest.mark.parametrize("fault", ["busy", "lose_answer"])
def test_a_put_that_is_asked_for_again_is_made_once(s3, place, network, fault):
    with closing(open_state(f"log:{place}")) as state:
        for value in range(5):
            network.arm(fault, puts_below(s3, place, "documents"))
            assert state.put("n", value, value) == value + 1
            assert network.struck == 1
        assert (state.get("n").value, state.get("n").version) == (4, 5)


def test_a_put_that_arrives_late_changes_nothing_that_came_since(s3, place, network):
    with closing(open_state(f"log:{place}")) as one, closing(open_state(f"log:{place}")) as two:
        one.put("a", "first", 0)
        network.arm("delay", puts_below(s3, place, "documents"), times=2)
        with pytest.raises(StateError, match="cannot replace"):
            one.put("a", "late", None)
        assert two.put("a", "second", 1) == 2
        assert network.deliver() == [b"HTTP/1.1 412 Precondition Failed"] * 2
        assert one.get("a").value == "second"
        assert one.put("a", "third", 2) == 3


def test_a_put_that_arrives_before_we_look_is_known_as_ours(s3, place, network):
    with closing(open_state(f"log:{place}")) as state:
        state.put("a", "first", 0)
        network.arm("delay", puts_below(s3, place, "documents"), times=2)
        with pytest.raises(StateError):
            state.put("a", "late", 1)
        network.deliver()
        assert (state.get("a").value, state.get("a").version) == ("late", 2)
        with pytest.raises(StateConflictError):
            state.put("a", "again", 1)


def test_a_renewal_whose_answer_was_lost_keeps_the_lease(s3, place, network):
    with closing(open_election(f"log:{place}", "capture", "a", 30)) as election:
        lease = election.acquire()
        for fault, times in (("lose_answer", 1), ("delay", 2)):
            network.arm(fault, puts_below(s3, place, "leases"), times=times)
            try:
                lease = election.renew(lease)
            except StateError:
                network.deliver()
        assert election.renew(lease).epoch == 1


# ---------------------------------------------------------------- ZooKeeper


@pytest.fixture
def zookeeper_url(zookeeper: ZooKeeperServer) -> Iterator[str]:
    yield f"zookeeper://{zookeeper.hosts}/faults-{next(_numbers)}"  # each with an ACL of its own
    zookeeper.resume()


def test_a_suspended_session_is_acted_under_until_the_deadline_and_never_after(
    zookeeper, zookeeper_url
):
    with (
        closing(open_election(zookeeper_url, "capture", "a", 3)) as election,
        closing(open_state(zookeeper_url)) as state,
    ):
        state.put("a", 1, 0)
        keeper = LeaseKeeper(election, election.acquire(), 0.5)
        zookeeper.pause()
        deadline = keeper.lease.deadline
        while time.monotonic() < deadline - 0.2:
            keeper.check()
            time.sleep(0.05)
        time.sleep(max(0.0, keeper.lease.deadline - time.monotonic()))
        with pytest.raises(LeaseLostError, match="ended before it was renewed"):
            keeper.check()
        with pytest.raises(StateError, match="ZooKeeper at"):
            state.get("a")
        zookeeper.resume()
        keeper.release()
        lease = None
        until = time.monotonic() + 30
        while lease is None and time.monotonic() < until:
            try:
                lease = election.acquire()
            except StateError:
                time.sleep(0.1)
        assert lease is not None
        assert lease.epoch == 2
        assert state.get("a").value == 1


def test_a_session_that_expires_ends_no_lease(
    zookeeper: ZooKeeperServer, zookeeper_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ZooKeeperConnection, "_begin", ZooKeeperConnection._begin)
    sessions.install(tmp_path)
    with (
        closing(open_election(zookeeper_url, "capture", "a", 10)) as election,
        closing(open_state(zookeeper_url)) as state,
    ):
        state.put("a", 1, 0)
        keeper = LeaseKeeper(election, election.acquire(), 0.2)
        living = sessions.living(tmp_path, os.getpid())
        assert len(living) == 2
        for session in living:
            sessions.expire(zookeeper.hosts, session)
        until = time.monotonic() + 20
        while not sessions.have_expired(tmp_path, os.getpid(), living):
            assert time.monotonic() < until, "the clients were not told"
            time.sleep(0.05)
        renewals = keeper.summary()["renewals"]
        while keeper.summary()["renewals"] < renewals + 2:
            keeper.check()
            time.sleep(0.05)
        assert state.put("a", 2, 1) == 2
        assert keeper.lease.epoch == 1
        assert len(sessions.living(tmp_path, os.getpid())) == 2
        keeper.release()


def test_a_server_that_comes_back_is_used_again_and_nothing_is_missing(zookeeper, zookeeper_url):
    with closing(open_state(zookeeper_url)) as state:
        state.put("a", 1, 0)
        zookeeper.kill()
        with pytest.raises(StateError, match=r"no (connection|answer)"):
            state.put("a", 2, 1)
        zookeeper.start()
        version, until = None, time.monotonic() + 30
        while version is None and time.monotonic() < until:
            with suppress(StateError):
                version = state.put("a", 3, 1)
        assert version == 2
        assert state.get("a").value == 3


def test_documents_in_parts_are_swapped_as_one_and_leave_nothing_behind(zookeeper, zookeeper_url):
    def add(state):
        for _ in range(6):
            while True:
                found = state.get("n")
                value, version = (found.value[0], found.version) if found else (0, 0)
                try:
                    state.put("n", [value + 1, "x" * 1_200_000], version)
                    break
                except StateConflictError:
                    pass

    states = [open_state(zookeeper_url) for _ in range(2)]
    threads = [threading.Thread(target=add, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states[0].get("n").value[0] == 12
    register = states[0]._register
    assert len(register._parts_of("n")) == 3
    states[1].put("n", "small", None)
    assert register._parts_of("n") == []
    assert states[0].get("n").value == "small"
    for state in states:
        state.close()


def test_a_writer_that_wakes_up_late_deletes_no_parts_but_its_own(zookeeper_url, monkeypatch):
    with closing(open_state(zookeeper_url)) as late, closing(open_state(zookeeper_url)) as leader:
        register = late._register
        swap_head, delete = register._swap_head, register._delete

        def is_frozen_then(*arguments):
            version = swap_head(*arguments)
            leader.put("a", "b" * 600_000, None)
            return version

        with monkeypatch.context() as patch:
            patch.setattr(register, "_swap_head", is_frozen_then)
            assert late.put("a", "a" * 600_000, 0) == 1
        assert late.get("a").value == "b" * 600_000
        assert len(register._parts_of("a")) == 2

        def is_frozen_once(*arguments):
            delete(*arguments)
            monkeypatch.undo()
            leader.put("a", "c" * 600_000, 0)

        monkeypatch.setattr(register, "_delete", is_frozen_once)
        late.delete("a")
        assert leader.get("a").value == "c" * 600_000
        assert len(register._parts_of("a")) == 2


def test_a_document_that_lacks_a_part_is_an_error(zookeeper_url):
    with closing(open_state(zookeeper_url)) as state:
        state.put("a/b", "a" * 600_000, 0)
        register = state._register
        register._delete(register._parts_of("a=2fb")[0])
        with pytest.raises(StateError, match="state 'a/b': a part of it is missing in ZooKeeper"):
            state.get("a/b")
        state.delete("a/b")
        assert state.put("a/b", 1, 0) == 1


def test_what_a_user_wrote_no_other_can_read_or_change(zookeeper, zookeeper_url):
    known = zookeeper_url.replace("//", "//me:hush@")
    with closing(open_state(known)) as state:
        state.put("a", 1, 0)
    for other in (zookeeper_url, zookeeper_url.replace("//", "//me:other@")):
        with closing(open_state(other)) as state:
            for act in (lambda: state.get("a"), lambda: state.put("a", 2, None)):
                with pytest.raises(ConfigError, match="refuses access below /faults") as caught:
                    act()
                assert "hush" not in str(caught.value)
    with closing(open_state(known)) as state:
        assert state.get("a").value == 1


def test_an_acl_lets_others_read_and_not_write(zookeeper, zookeeper_url):
    known = zookeeper_url.replace("//", "//me:hush@") + "?acl=auth::cdrwa,world:anyone:r"
    with (
        closing(open_state(known)) as state,
        closing(open_election(known, "capture", "a", 10)) as election,
    ):
        state.put("a", 1, 0)
        state.put("large", "x" * 600_000, 0)
        lease = election.acquire()
        with (
            closing(open_state(zookeeper_url)) as other,
            closing(open_election(zookeeper_url, "capture", "b", 10)) as others,
        ):
            assert other.get("a").value == 1
            assert other.get("large").value == "x" * 600_000
            assert other.keys("") == ["a", "large"]
            assert others.leader() == "a"
            for act in (
                lambda: other.put("a", 2, None),
                lambda: other.put("new", 1, 0),
                lambda: other.delete("a"),
            ):
                with pytest.raises(ConfigError, match="refuses access below /faults"):
                    act()
        election.renew(lease)
        assert state.put("a", 3, 1) == 2


@pytest.mark.parametrize("acl", ["auth::cdrwa", "no-scheme:me:r"])
def test_an_acl_that_the_server_does_not_take_is_reported(zookeeper_url, acl):
    with closing(open_state(f"{zookeeper_url}?acl={acl}")) as state:
        with pytest.raises(ConfigError, match=r"does not take options\.acl"):
            state.put("a", 1, 0)
        assert state.get("a") is None


def test_a_user_is_known_by_sasl_and_a_wrong_password_is_reported(zookeeper, zookeeper_url):
    right = f"{zookeeper_url}?auth=sasl&user={zookeeper.user}&password={zookeeper.password}"
    with closing(open_state(right)) as state:
        state.put("a", 1, 0)
    with (
        closing(open_state(zookeeper_url)) as state,
        pytest.raises(ConfigError, match="refuses access"),
    ):
        state.get("a")
    wrong = right.replace(zookeeper.password, "not-the-secret")
    with closing(open_state(wrong)) as state, pytest.raises(ConfigError) as caught:
        state.get("a")
    assert "check user and password" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_tls_trusts_the_authority_that_is_named_and_no_other(zookeeper, zookeeper_url):
    url = zookeeper_url.replace(str(zookeeper.port), str(zookeeper.tls_port))
    with closing(open_state(f"{url}?tls_ca={zookeeper.ca}")) as state:
        state.put("a", 1, 0)
    with (
        closing(open_state(f"{url}?tls=true")) as state,
        pytest.raises(StateError, match="host, port and TLS right"),
    ):
        state.get("a")


# ---------------------------------------------------------------- PostgreSQL


def test_a_server_that_hangs_is_given_up_and_used_again_later():
    """A server of its own: what else this process has asked of one would hold the interpreter's
    lock, and so keep us from waking it up.
    """
    with PostgresServer() as server, closing(open_state(server.create_database("hangs"))) as state:
        state.put("a", 1, 0)
        server.pause()
        try:
            begun = time.monotonic()
            with pytest.raises(StateError, match="PostgreSQL at"):
                state.put("a", 2, 1)
            assert time.monotonic() - begun < 60
        finally:
            server.resume()
        # What was sent is made, or is not: the version tells.
        version = state.get("a").version
        assert state.put("a", 3, version) == version + 1


def test_a_connection_that_the_server_ended_is_opened_again(postgres: PostgresServer, database):
    with closing(open_state(database)) as state:
        state.put("a", 1, 0)
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'tidelog-state'"
        )
        with pytest.raises(StateError):
            state.put("a", 2, 1)
        assert state.put("a", 2, 1) == 2


def test_a_role_without_the_rights_is_shown_what_it_needs(postgres: PostgresServer, database):
    name = database.rpartition("/")[2].partition("?")[0]
    with psycopg.connect(database, autocommit=True) as connection:
        role = f"poor_{next(_numbers)}"
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'hush'")
    url = postgres.dsn(name, user=role, password="hush")
    with closing(open_state(url)) as state:
        with pytest.raises(ConfigError, match=r"needs tidelog\.state") as caught:
            state.put("a", 1, 0)
        assert "hush" not in str(caught.value)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA tidelog AUTHORIZATION {role}")
        assert state.put("a", 1, 0) == 1
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
