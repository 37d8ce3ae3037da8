"""Schemas of messages: ids that never change their meaning, and readers that ask for them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.app.web.http_server import RestServer
from tidelog.config import RestSection
from tidelog.errors import SegmentCorruptError
from tidelog.eventlog.schemas import MessageSchemaStore

TOKEN, SCHEMA_TOKEN = "hunter2-token", "readers-token"
ONE, TWO = '{"type":"string"}', '{"type":"int"}'


def test_a_schema_keeps_its_id_in_every_subject_and_store(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    store = MessageSchemaStore(tmp_path / "a")
    first = store.register("t-value", ONE)
    assert store.register("u-value", ONE) == first
    assert store.register("t-value", TWO) != first
    assert store.register("t-value", ONE) == first
    for again in (store, MessageSchemaStore(tmp_path / "a")):
        assert [s.text for s in again.by_subject("t-value")] == [ONE, TWO]
        assert [s.version for s in again.by_subject("t-value")] == [1, 2]
        assert [s.subject for s in again.by_id(first)] == ["t-value", "u-value"]
        assert again.subjects() == ["t-value", "u-value"]
    other = MessageSchemaStore(tmp_path / "b")
    other.register("w", TWO)
    assert other.register("w", ONE) == first


@settings(max_examples=20, deadline=None)
@given(st.text())
def test_ids_are_positive_32_bit_integers(tmp_path_factory: Any, text: str) -> None:
    store = MessageSchemaStore(tmp_path_factory.mktemp("log"))
    assert 0 < store.register("t", text) < 2**31


def test_two_schemas_whose_ids_would_be_one_get_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.eventlog.schemas._IDS", 3)
    store = MessageSchemaStore(tmp_path)
    ids = [store.register("t", str(n)) for n in range(3)]
    assert sorted(ids) == [1, 2, 3]
    assert [store.register("t", str(n)) for n in range(3)] == ids


def test_processes_that_register_at_once_agree(tmp_path: Path) -> None:
    stores = [MessageSchemaStore(tmp_path) for _ in range(4)]
    found: list[tuple[str, int]] = []

    def run(store: MessageSchemaStore, at: int) -> None:
        for n in range(12):
            text = str((n + 3 * at) % 12)
            found.append((text, store.register("t", text)))

    threads = [
        threading.Thread(target=run, args=each) for each in zip(stores, range(4), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 12
    versions = [[s.schema_id for s in store.by_subject("t")] for store in stores]
    assert versions.count(versions[0]) == 4
    assert len(set(versions[0])) == 12


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    MessageSchemaStore(tmp_path).register("t", ONE)
    (tmp_path / "message-schemas" / "00000001.json").write_text("{")
    with pytest.raises(SegmentCorruptError, match=r"00000001\.json is damaged"):
        MessageSchemaStore(tmp_path).register("t", TWO)


# ---------------------------------------------------------------- over HTTP


@pytest.fixture
def store(tmp_path: Path) -> MessageSchemaStore:
    (tmp_path / "log").mkdir()
    store = MessageSchemaStore(tmp_path / "log")
    store.register("shop.t-value", ONE)
    store.register("shop.t-value", TWO)
    return store


@pytest.fixture
def served(tmp_path: Path, store: MessageSchemaStore) -> Iterator[httpx.Client]:
    """The interface of a process that stands by."""
    rest = RestSection.model_validate({"port": 0, "token": TOKEN, "schema_token": SCHEMA_TOKEN})
    server = RestServer(rest, lambda: "another", str(tmp_path / "log"))
    server.start()
    headers = {"Authorization": f"Bearer {SCHEMA_TOKEN}"}
    try:
        with httpx.Client(base_url=server.url or "", headers=headers, trust_env=False) as client:
            yield client
    finally:
        server.close()


def test_a_reader_finds_the_schema_of_an_id(
    served: httpx.Client, store: MessageSchemaStore
) -> None:
    found = store.by_subject("shop.t-value")[1]
    answer = served.get(f"/schemas/ids/{found.schema_id}", params={"subject": "shop.t-value"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/vnd.schemaregistry.v1+json"
    assert answer.json() == {"schema": TWO}
    assert served.get(f"/schemas/ids/{found.schema_id}/schema").json() == json.loads(TWO)
    known = {"subject": "shop.t-value", "version": 2}
    assert served.get(f"/schemas/ids/{found.schema_id}/versions").json() == [known]
    assert served.get(f"/schemas/ids/{found.schema_id}/subjects").json() == ["shop.t-value"]


def test_subjects_have_versions(served: httpx.Client, store: MessageSchemaStore) -> None:
    assert served.get("/subjects").json() == ["shop.t-value"]
    assert served.get("/subjects/shop.t-value/versions").json() == [1, 2]
    newest = served.get("/subjects/shop.t-value/versions/latest").json()
    ids = [each.schema_id for each in store.by_subject("shop.t-value")]
    assert newest == {"subject": "shop.t-value", "version": 2, "id": ids[1], "schema": TWO}
    assert served.get("/subjects/shop.t-value/versions/1").json()["id"] == ids[0]
    assert served.get("/subjects/shop.t-value/versions/1/schema").json() == json.loads(ONE)
    same = {"schema": json.dumps(json.loads(ONE), indent=4)}
    assert served.post("/subjects/shop.t-value", json=same).json()["id"] == ids[0]
    store.register("other-key", ONE)
    assert served.get("/subjects").json() == ["other-key", "shop.t-value"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/schemas/ids/1", 404, 40403),
        ("GET", "/schemas/ids/x", 404, 40403),
        ("GET", "/subjects/none/versions", 404, 40401),
        ("GET", "/subjects/shop.t-value/versions/3", 404, 40402),
        ("GET", "/subjects/shop.t-value/versions/x", 422, 42202),
        ("POST", "/subjects/shop.t-value", 422, 42201),
        ("POST", "/subjects/shop.t-value/versions", 422, 42205),
    ],
)
def test_what_is_not_there_is_said_as_readers_expect(
    served: httpx.Client, method: str, path: str, status: int, code: int
) -> None:
    answer = served.request(method, path)
    assert (answer.status_code, answer.json()["error_code"]) == (status, code)


def test_schemas_are_read_with_a_token_that_gives_no_commands(served: httpx.Client) -> None:
    basic = base64.b64encode(f"any:{SCHEMA_TOKEN}".encode()).decode()
    for token in (f"Basic {basic}", f"Bearer {SCHEMA_TOKEN}", f"Bearer {TOKEN}"):
        assert served.get("/subjects", headers={"Authorization": token}).status_code == 200
    for token in ("", "Basic !", f"Basic {SCHEMA_TOKEN}", "Bearer wrong", "Digest x"):
        assert served.get("/subjects", headers={"Authorization": token}).status_code == 401
    assert served.get("/status").status_code == 401
    assert served.get("/status", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 503
