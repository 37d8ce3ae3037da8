"""What an output's user needs to be allowed, and what happens where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from tests.integration.database.copies import Copy, copy_of
from tests.support.payloads import table_schema
from tests.support.postgres import PostgresServer

from tidelog.errors import OutputRefusedError, TableLeftOutError
from tidelog.outputs.database.postgres import Postgres

pytestmark = pytest.mark.integration

SCHEMA = table_schema([("id", "int64"), ("v", "text")], key=["id"])


@pytest.fixture
def copy(postgres18: PostgresServer, tmp_path: Path) -> Copy:
    """A table of somebody else's."""
    url = postgres18.create_database(tmp_path.name)
    return copy_of(Postgres(url), SCHEMA, "postgres", "public", own="tidelog")


def test_an_identity_of_the_user_s_takes_the_values_of_the_source(copy: Copy) -> None:
    copy.select(
        "CREATE TABLE {t} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text, "
        "_tidelog_version bigint)"
    )
    assert list(copy.prepare().types) == ["id", "v"]


def test_rows_that_are_only_marked_need_no_right_to_delete(copy: Copy) -> None:
    for statement in (
        "CREATE ROLE marker LOGIN",
        "CREATE SCHEMA tidelog AUTHORIZATION marker",
        "CREATE TABLE {t} (id bigint PRIMARY KEY, v text, _tidelog_version bigint, "
        "_tidelog_deleted boolean NOT NULL DEFAULT false)",
        "GRANT SELECT, INSERT, UPDATE ON {t} TO marker",
    ):
        copy.select(statement)
    assert isinstance(copy.dialect, Postgres)
    copy.dialect, copy.soft = Postgres(make_conninfo(copy.dialect.url, user="marker")), True
    assert copy.prepare().soft
    copy.soft = False
    with pytest.raises(TableLeftOutError, match="UPDATE and DELETE to the output's user"):
        copy.prepare()


def test_a_role_that_may_not_create_a_schema_is_shown_the_grant(copy: Copy) -> None:
    assert isinstance(copy.dialect, Postgres)
    copy.select("CREATE ROLE maker LOGIN")
    copy.dialect = Postgres(make_conninfo(copy.dialect.url, user="maker"))
    with pytest.raises(OutputRefusedError, match=r"run: GRANT CREATE ON DATABASE .* TO maker$"):
        copy.prepare()
