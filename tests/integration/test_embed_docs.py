"""The programs of docs/how-to/embed.md do what the page says."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.support.engines import committed, no_threads_left, until, versions
from tests.support.postgres import PostgresServer

import tidelog
from tidelog.errors import OffsetAheadError
from tidelog.eventlog.reader import EventLog

pytestmark = pytest.mark.integration
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "embed.md").read_text(encoding="utf-8")


def program(heading: str) -> dict[str, Any]:
    """The names that the section's program defines."""
    section = PAGE.split(f"\n### {heading}\n", 1)[1]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(found[1], heading, "exec"), names)
    return names


@pytest.fixture
def source(
    postgres: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    name = database.rsplit("/", 1)[1]
    postgres.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text);"
        "CREATE TABLE outbox (id int PRIMARY KEY, payload text);"
        "INSERT INTO orders VALUES (1, 'one'), (2, 'two');"
        "INSERT INTO outbox VALUES (1, 'first')",
        name,
    )
    (tmp_path / "tidelog.yaml").write_text(
        f"source: {{kind: postgres, url: '{database}', slot: {name}}}\n"
        f"log: {{path: {tmp_path}/log}}\nstate: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
    )
    monkeypatch.chdir(tmp_path)
    return name


def taken(name: str) -> int:
    return committed("log", name) or 0


class Receiver(BaseHTTPRequestHandler):
    """Refuses the first request, as a service that starts does."""

    got: ClassVar[list[tuple[str | None, str]]] = []
    refused = 0

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if not Receiver.refused:
            Receiver.refused += 1
            self.send_response(503)
        else:
            Receiver.got.append((self.headers["Idempotency-Key"], text))
            self.send_response(200)
        self.end_headers()

    def log_message(self, *_told: Any) -> None: ...


def test_the_cache_and_the_relay(
    postgres: PostgresServer, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = program("A cache that hears of changes")
    cache = names["cache"]
    with names["engine"]:
        until(lambda: len(found := versions("log")) == 3 and taken("cache") > found[-1], "the dump")
        cache[("public.orders", 1)] = cache[("public.orders", 2)] = {"note": "old"}
        postgres.execute("UPDATE orders SET id = 3 WHERE id = 1", source)
        until(lambda: ("public.orders", 1) not in cache)
        assert ("public.orders", 2) in cache
        cache[("public.other", 2)] = {}
        postgres.execute("TRUNCATE orders", source)
        until(lambda: list(cache) == [("public.other", 2)])

    Receiver.got, Receiver.refused = [], 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("RELAY_URL", f"http://127.0.0.1:{server.server_port}/")
    try:
        with program("An outbox relay")["engine"]:
            until(lambda: len(Receiver.got) == 1, "what stood there")
            postgres.execute("INSERT INTO outbox VALUES (2, 'second')", source)
            postgres.execute("DELETE FROM outbox", source)
            postgres.execute("INSERT INTO outbox VALUES (3, 'third')", source)
            until(lambda: len(Receiver.got) == 3)
    finally:
        server.shutdown()
        server.server_close()
    assert [text for _, text in Receiver.got] == ["first", "second", "third"]
    assert len({key for key, _ in Receiver.got}) == 3
    assert Receiver.refused == 1


def test_the_exactly_once_copy_and_the_coroutines(
    postgres: PostgresServer, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = postgres.create_database("embed_target")
    monkeypatch.setenv("TARGET", target)

    def rows() -> list[tuple[Any, ...]]:
        return postgres.execute("SELECT * FROM orders ORDER BY id", "embed_target")

    def reached() -> int:
        [(found,)] = postgres.execute("SELECT reached FROM progress", "embed_target")
        return int(found)

    try:
        postgres.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)", "embed_target")
        # No write of it passes twice: each is counted where it is made.
        postgres.execute(
            "CREATE TABLE written (id int, note text);"
            "CREATE FUNCTION count_it() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO written VALUES (NEW.id, NEW.note); RETURN NULL; END $$;"
            "CREATE TRIGGER counted AFTER INSERT OR UPDATE ON orders "
            "FOR EACH ROW EXECUTE FUNCTION count_it()",
            "embed_target",
        )
        with program("An exactly-once copy into PostgreSQL")["engine"]:
            until(lambda: len(rows()) == 2, "the dump")
            postgres.execute("UPDATE orders SET note = 'ONE' WHERE id = 1", source)
            postgres.execute("DELETE FROM orders WHERE id = 2", source)
            until(lambda: rows() == [(1, "ONE")])

        # It breaks between the target's commit and the mark: the batch comes again, and is known.
        names = program("An exactly-once copy into PostgreSQL")
        before = reached()
        engine = names["tidelog"].AsyncEngine(
            "tidelog.yaml",
            change_consumer=lambda events, _: names["copy"](events, Broken()),
            offsets=names["Offsets"](),
            name="copy",
        )
        postgres.execute("INSERT INTO orders VALUES (7, 'seven')", source)
        with pytest.raises(names["tidelog"].TidelogError), engine:
            until(lambda: engine.state.value == "stopped")
        assert reached() > before
        with program("An exactly-once copy into PostgreSQL")["engine"]:
            postgres.execute("INSERT INTO orders VALUES (8, 'eight')", source)
            until(lambda: len(rows()) == 3)
        written = postgres.execute("SELECT * FROM written ORDER BY ctid", "embed_target")
        assert written == [(1, "one"), (2, "two"), (1, "ONE"), (7, "seven"), (8, "eight")]
    finally:
        postgres.drop_database("embed_target")

    names = program("Beside asyncio")

    async def until_handled() -> None:
        running = asyncio.create_task(names["main"]())
        while len(names["handled"]) < 7:  # two tables' dumps and all changes since
            await asyncio.sleep(0.02)
            assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(until_handled(), 60))
    until(no_threads_left)

    names = program("Iterate over events")

    async def until_followed() -> None:
        running = asyncio.create_task(names["follow"]())
        while taken("loop") <= versions("log")[-1]:
            await asyncio.sleep(0.05)
            assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(until_followed(), 60))
    until(no_threads_left)


def test_engines_ahead_of_a_restored_log_continue_as_the_page_says(
    postgres: PostgresServer, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/how-to/restore.md: one that stores its offset with what it makes, and one by name."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "restore.md").read_text("utf-8")
    [statement] = re.findall(r"```sql\n\s*(UPDATE progress .*?)\n\s*```", page, re.DOTALL)
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        file.read_text().replace("kind: postgres,", "kind: postgres, snapshot: when_needed,")
    )
    target = postgres.create_database("embed_target")
    monkeypatch.setenv("TARGET", target)

    def rows(of: str) -> list[tuple[Any, ...]]:
        return postgres.execute("SELECT * FROM orders ORDER BY id", of)

    def is_equal() -> bool:
        return rows("embed_target") == rows(source)

    def refused(engine: Any) -> tuple[str, str]:
        with pytest.raises(OffsetAheadError) as found:
            engine.run()
        said = re.search(r"stands at offset (\d+), .* at (\d+): .*restore\.md", str(found.value))
        assert said is not None, found.value
        return said[1], said[2]

    saved = tmp_path / "saved"
    postgres.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)", "embed_target")
    try:
        with program("An exactly-once copy into PostgreSQL")["engine"]:
            until(is_equal, "the dump")
        saved.mkdir()
        shutil.copytree("log", saved / "log")
        shutil.copy2("state.db", saved)
        end = EventLog.open("log").latest_offset()
        postgres.execute("UPDATE orders SET note = 'lost' WHERE id = 1", source)
        postgres.execute("INSERT INTO orders VALUES (9, 'nine')", source)
        with program("An exactly-once copy into PostgreSQL")["engine"]:
            until(is_equal, "the changes")
        shutil.rmtree("log")
        for each in tmp_path.glob("state.db*"):
            each.unlink()
        shutil.copytree(saved / "log", "log")
        shutil.copy2(saved / "state.db", "state.db")
        ahead, parted = refused(program("An exactly-once copy into PostgreSQL")["engine"])
        assert int(parted) == end < int(ahead)

        postgres.execute("UPDATE orders SET note = 'new' WHERE id = 2", source)
        assert "1674" in statement
        postgres.execute(statement.replace("1674", parted), "embed_target")
        with program("An exactly-once copy into PostgreSQL")["engine"]:
            until(is_equal, "what came since")
            postgres.execute("DELETE FROM orders WHERE id = 9", source)
            until(is_equal, "a change")
        seen = list[int]()
        other = tidelog.AsyncEngine(
            file, consumer=lambda event: seen.append(event.version), name="copy-2"
        )
        with other:
            until(lambda: seen == versions("log"))
    finally:
        postgres.drop_database("embed_target")


class Broken:
    """A committer that fails as if the process had ended there."""

    def mark_processed(self, _done: Any) -> None:
        raise RuntimeError("killed here")

    def mark_batch_finished(self) -> None: ...


def test_every_program_of_the_page_is_run() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    for heading in re.findall(r"\n### ([^\n]+)\n(?:(?!\n##)[\s\S])*?```python", PAGE):
        assert f'program("{heading}")' in tested, heading
