"""Keys in the order of a language: the database compares them, never we."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.integration.postgres.test_key_walk import walk, whole
from tests.left_out import SAID
from tests.support.postgres import PostgresServer

from tidelog.ports import NullRegistry
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader

pytestmark = pytest.mark.integration

LANGUAGES = {"german": "de_DE", "danish": "da_DK"}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """With two languages' locales (Debian's package `locales` has their sources)."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        for name in LANGUAGES.values():
            target = Path(directory) / f"{name}.utf8"
            made = shutil.which("localedef") and subprocess.run(
                ["localedef", "-i", name, "-f", "UTF-8", str(target)], capture_output=True
            )
            if not target.exists():
                why = made.stderr.decode() if made else "no localedef"
                pytest.skip(f"{SAID}the locale {name} ({why}): apt-get install locales")
        with PostgresServer(16, locales=Path(directory)) as started:
            yield started


@pytest.mark.parametrize("language", LANGUAGES)
def test_keys_are_walked_in_a_languages_order(server: PostgresServer, language: str) -> None:
    """Upper and lower case, accents and signs stand elsewhere than their bytes would put them."""
    dsn = server.create_database(language)
    with psycopg.connect(dsn, autocommit=True) as sql:
        locale = f"{LANGUAGES[language]}.utf8"
        sql.execute(f"CREATE COLLATION language (provider = libc, locale = '{locale}')".encode())
        sql.execute("CREATE SCHEMA tidelog")
        sql.execute("CREATE TABLE t (a text COLLATE language, b int, n int, PRIMARY KEY (a, b))")
        sql.execute(
            "INSERT INTO t SELECT (ARRAY['a', 'A', 'ä', 'Ä', 'aa', 'Aa', 'z', 'Z', 'å', 'ø', 'ß', "
            "'ss', '-a', ' a', 'a b', 'ab'])[1 + g % 16] || repeat('é', g % 3), g, g "
            "FROM generate_series(0, 99) g"
        )
        by_language = sql.execute("SELECT n FROM t ORDER BY a, b").fetchall()
        assert by_language != sql.execute('SELECT n FROM t ORDER BY a COLLATE "C", b').fetchall()
        schemas = NullRegistry()
        chunks = PostgresChunkReader(dsn, schemas, strategy="snapshot")
        for rows in (1, 7, 50):
            found = walk(chunks, schemas, rows)
            assert whole(found, 100)
            assert [(n,) for chunk in found for n in chunk] == by_language
        chunks.close()
