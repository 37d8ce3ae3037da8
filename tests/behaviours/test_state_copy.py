"""`tidelog state copy`, from and to every store."""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.support.state_stores import STORES
from typer.testing import CliRunner

from tidelog import cli
from tidelog.app.base import state_copy
from tidelog.app.base.elections import LEASE_NAME
from tidelog.app.base.state_copy import COPYING, check_whole, copy_state
from tidelog.capture.leadership import LeaseKeeper
from tidelog.config import load_config
from tidelog.config.loading import database_config
from tidelog.errors import ConfigError, UsageError
from tidelog.state.opening import open_election, open_state


@pytest.fixture(params=sorted(STORES.keys() - {"folder", "sqlite"}))
def url(request, tmp_path):
    return STORES[request.param](request, tmp_path)


@pytest.fixture
def old(tmp_path):
    place = f"sqlite:///{tmp_path}/old.db"
    with closing(open_state(place)) as state:
        for number in range(5):
            state.put(f"dump/{number}", {"rows": number}, 0)
        state.put("dump/0", "twice", 1)
    return place


def documents(url):
    with closing(open_state(url)) as state:
        return {key: state.get(key).value for key in state.keys("")}


def acquire(url, holder="capture", ttl_s=30):
    election = open_election(url, LEASE_NAME, holder, ttl_s)
    return election, election.acquire()


def test_all_documents_go_there_and_back_and_epochs_continue(url, old, tmp_path):
    for _ in range(3):
        election, lease = acquire(old)
        election.release(lease)
        election.close()
    assert copy_state(old, url).to_dict()["documents"] == 5
    assert (
        documents(url)
        == documents(old)
        == {"dump/0": "twice"} | {f"dump/{number}": {"rows": number} for number in range(1, 5)}
    )
    election, lease = acquire(url)
    assert lease.epoch > 3
    election.release(lease)
    election.close()
    back = f"sqlite:///{tmp_path}/back.db"
    copy_state(url, back)
    assert documents(back) == documents(old)
    with pytest.raises(UsageError, match="holds a state already"):
        copy_state(old, url)


def test_a_running_capture_is_refused_on_either_side(url, old, monkeypatch):
    monkeypatch.setattr(state_copy, "COPY_PATIENCE_S", 0.5)
    for place in (old, url):
        election, lease = acquire(place, "host:1")
        keeper = LeaseKeeper(election, lease, 0.2)
        with pytest.raises(UsageError, match=r"a capture leads .*\(host:1\): stop it"):
            copy_state(old, url)
        keeper.release()
        election.close()
    assert documents(url) == {}


def test_the_lease_of_a_capture_that_was_killed_is_waited_for(url, old, monkeypatch):
    monkeypatch.setattr(state_copy, "COPY_PATIENCE_S", 0)
    election, _ = acquire(url, ttl_s=1)
    copy_state(old, url)
    assert documents(url) == documents(old)
    election.close()


def test_a_copy_that_did_not_end_is_noticed_and_restarted(url, old):
    with closing(open_state(url)) as state:
        state.put(COPYING, {}, 0)
        state.put("dump/9", "half", 0)
        with pytest.raises(UsageError, match="is not complete: run it again"):
            check_whole(state)
        copy_state(old, url)
        check_whole(state)
    assert documents(url) == documents(old)


def test_what_cannot_be_copied_is_said(old, tmp_path):
    with pytest.raises(UsageError, match="both are sqlite"):
        copy_state(old, old)
    with pytest.raises(UsageError, match=r"none\.db holds no state"):
        copy_state(f"sqlite:///{tmp_path}/none.db", old)
    with pytest.raises(UsageError, match="neither a configuration file nor a state store"):
        copy_state("redis://u:hush@x", old)


def test_of_several_databases_one_is_named(tmp_path):
    """On the command line, as for every other command."""
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://localhost:1/x', databases: [a, b], "
        "tables: ['public.*']}\nlog: {path: log}\n"
    )
    with pytest.raises(ConfigError, match="tidelog --database a"):
        copy_state(str(file), f"sqlite:///{tmp_path}/new.db")
    place = database_config(load_config(file), "b").state.location
    with closing(open_state(place)) as state:
        state.put("dump/0", {"rows": 7}, 0)
    to = f"sqlite:///{tmp_path}/new.db"
    result = CliRunner().invoke(cli.app, ["--database", "b", "state", "copy", str(file), to])
    assert result.exit_code == 0, result.output
    assert documents(to) == {"dump/0": {"rows": 7}}
