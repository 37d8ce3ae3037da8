"""Which master a session has."""

from __future__ import annotations

import pytest

from tidelog.spark.sessions.versions import is_local, master_of


def test_the_environment_s_master_is_one_wherever_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who stands by starts no session on a cluster: it would take the leader's cores."""
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    assert is_local(master_of(None))
    monkeypatch.setenv("SPARK_MASTER", "spark://master:7077")
    assert not is_local(master_of(None))
    assert master_of("local[2]") == "local[2]"


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[4,3]", True),
        ("local-cluster[2,1,1024]", False),
        ("yarn", False),
        ("k8s://https://host", False),
    ],
)
def test_local_is_what_runs_its_tasks_in_the_driver(master: str, local: bool) -> None:
    assert is_local(master) is local
