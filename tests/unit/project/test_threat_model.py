"""Each route opens to the tokens that docs/explanation/threat-model.md says, and to no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tidelog.app.web.http_server import RestServer
from tidelog.config import parse_config
from tidelog.control.channels.rate_limit import TokenRateLimit

TOKENS = {name: f"{name}-of-this-test" for name in ("token", "viewer", "metrics", "schema")}
CONFIG = f"""\
source: {{kind: postgres, url: "postgresql://u@127.0.0.1:1/d"}}
log: {{path: log}}
control:
  rest:
    token: {TOKENS["token"]}
    viewer_token: {TOKENS["viewer"]}
    metrics_token: {TOKENS["metrics"]}
    schema_token: {TOKENS["schema"]}
"""
OPEN = {"/health", "/health/live", "/health/ready", "/", "/web/files/{name}"}
CLOSED = (401, 403)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starlette:
    async def at_once(_self: TokenRateLimit, _address: str) -> bool:
        return False

    monkeypatch.setattr(TokenRateLimit, "reject", at_once)  # wrong tokens are answered late
    config = parse_config(CONFIG, "test", tmp_path, {})
    assert config.control.rest is not None
    server = RestServer(config.control.rest, lambda: None, str(tmp_path / "log"), config=config)
    found = server._server.config.app
    assert isinstance(found, Starlette)
    return found


@pytest.fixture
def client(app: Starlette) -> Iterator[TestClient]:
    with TestClient(app, base_url="http://127.0.0.1:8490", raise_server_exceptions=False) as each:
        yield each


def routes(app: Starlette) -> list[tuple[str, str]]:
    found = [
        (method, route.path)  # type: ignore[attr-defined]
        for route in app.routes
        for method in sorted(route.methods - {"HEAD"})  # type: ignore[attr-defined]
    ]
    assert len(found) > 35
    return found


def opened(client: TestClient, app: Starlette, **headers: str) -> set[str]:
    """Return the paths of the routes that answer anything but that one may not."""
    found = set()
    for method, path in routes(app):
        url = re.sub(r"\{(\w+)[^}]*\}", lambda m: {"name": "page.css"}.get(m[1], "0"), path)
        body = {} if method in ("POST", "PATCH", "PUT") else None
        if path == "/web/stream" and headers.get("x-session"):
            continue  # it does not end
        answer = client.request(
            method, url, json=body, headers={k: v for k, v in headers.items() if k != "x-session"}
        )
        if answer.status_code not in CLOSED:
            found.add(path)
    return found


def test_without_a_token_only_health_and_the_pages_files_are_open(
    client: TestClient, app: Starlette
) -> None:
    assert opened(client, app) - {"/web/login"} == OPEN


def test_clients_of_the_schema_registry_are_asked_for_no_bearer_token(
    client: TestClient,
) -> None:
    answer = client.get("/subjects", auth=("user", "wrong"))
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Basic")
    assert answer.json()["message"] == "the token is missing or wrong"


def test_tokens_for_metrics_and_schemas_open_nothing_else(
    client: TestClient, app: Starlette
) -> None:
    def beyond(name: str) -> set[str]:
        headers = {"authorization": f"Bearer {TOKENS[name]}"}
        return opened(client, app, **headers) - OPEN - {"/web/login"}

    assert beyond("metrics") == {"/metrics"}
    schemas = beyond("schema")
    assert {path.split("/")[1] for path in schemas} == {"subjects", "schemas", "config", "mode"}
    assert beyond("viewer") == set()  # it is for the page alone


def test_viewers_change_nothing(client: TestClient, app: Starlette) -> None:
    done = client.post("/web/login", json={"token": TOKENS["viewer"], "name": "v"})
    assert done.status_code == 200
    csrf = client.get("/web/session").json()["csrf"]
    headers = {"x-session": "1", "x-tidelog-csrf": csrf}
    acting = {path for method, path in routes(app) if method != "GET"} - {"/web/login"}

    assert opened(client, app, **headers) & acting == {"/web/logout"}
