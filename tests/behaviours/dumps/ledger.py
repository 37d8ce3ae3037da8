"""Triggers that note in the source what is done to its tables, in each key's own order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

Key = tuple[str | None, ...]

LEDGER = """
CREATE SCHEMA aside;
CREATE SEQUENCE aside.ns START 1000;
CREATE TABLE aside.ledger (
  seq bigserial PRIMARY KEY, tab text, xid bigint, op text, key text[], old_key text[]);
CREATE FUNCTION aside.note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  listed text; new_key text[]; gone_key text[];
BEGIN
  SELECT string_agg(format('($1).%I::text', c), ', ' ORDER BY place) INTO listed
    FROM unnest(TG_ARGV) WITH ORDINALITY given (c, place) WHERE place > 1;
  IF TG_OP <> 'DELETE' THEN
    EXECUTE 'SELECT ARRAY[' || listed || ']' INTO new_key USING NEW;
  END IF;
  IF TG_OP <> 'INSERT' THEN
    EXECUTE 'SELECT ARRAY[' || listed || ']' INTO gone_key USING OLD;
  END IF;
  INSERT INTO aside.ledger (tab, xid, op, key, old_key) VALUES (
    TG_ARGV[0], pg_current_xact_id()::text::bigint, left(TG_OP, 1),
    coalesce(new_key, gone_key),
    CASE WHEN TG_OP = 'UPDATE' AND new_key IS DISTINCT FROM gone_key THEN gone_key END);
  RETURN NULL;
END $$;
"""
"""``aside`` is captured by no test that says nothing else; ``ns`` gives every write a greater n."""


@dataclass(frozen=True)
class Change:
    """One row change. ``old_key``: of an update that changed the key."""

    xid: int
    op: str  # I, U, D
    key: Key
    old_key: Key | None


def install(table: str, key: tuple[str, ...]) -> str:
    """The SQL of the trigger that notes what is done to ``table``."""
    name = table if "." in table else f"public.{table}"
    arguments = ", ".join("'" + text.replace("'", "''") + "'" for text in (name, *key))
    return (
        f"CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW "
        f"EXECUTE FUNCTION aside.note({arguments})"
    )


def noted(connection: psycopg.Connection[Any], table: str) -> list[Change]:
    """What was done to the table and is committed."""
    rows = connection.execute(
        "SELECT xid, op, key, old_key FROM aside.ledger WHERE tab = %s ORDER BY seq", (table,)
    )
    return [Change(x, op, tuple(k), None if old is None else tuple(old)) for x, op, k, old in rows]
