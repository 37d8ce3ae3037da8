"""Triggers that note in the source what is done to its tables, in each key's own order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

Key = tuple[str | None, ...]

POSTGRES = """
CREATE SCHEMA aside;
CREATE SEQUENCE aside.ns START 1000;
CREATE FUNCTION ns() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT nextval('aside.ns') $$;
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

MYSQL = (
    "CREATE TABLE aside.ledger (seq bigint AUTO_INCREMENT PRIMARY KEY, tab varchar(99), "
    "op char(1), new_key text, gone_key text)",
    # Without the server's number, which may be large; the rest only grows.
    "CREATE FUNCTION ns() RETURNS bigint NOT DETERMINISTIC NO SQL "
    "RETURN uuid_short() & 0x00ffffffffffffff",
)
"""Keys are noted as texts in hexadecimal, separated by spaces; NULL is a minus."""

_OPS = {"INSERT": ("NEW", ""), "UPDATE": ("NEW", "OLD"), "DELETE": ("", "OLD")}


@dataclass(frozen=True)
class Change:
    """One row change. ``old_key``: of an update that changed the key."""

    xid: int
    op: str  # I, U, D
    key: Key
    old_key: Key | None


def install_postgres(table: str, key: tuple[str, ...]) -> str:
    """The SQL of the trigger that notes what is done to ``table``."""
    name = table if "." in table else f"public.{table}"
    arguments = ", ".join("'" + text.replace("'", "''") + "'" for text in (name, *key))
    return (
        f"CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW "
        f"EXECUTE FUNCTION aside.note({arguments})"
    )


def install_mysql(table: str, key: tuple[str, ...], binary: Collection[str]) -> list[str]:
    """The same of MySQL and MariaDB; ``binary``: columns that hold bytes."""
    name = table if "." in table else f"public.{table}"
    statements = []
    for op, (new, gone) in _OPS.items():
        keys = [hex_key(row, key, binary) if row else "NULL" for row in (new, gone)]
        statements.append(
            f"CREATE TRIGGER {_trigger(table, op)} AFTER {op} ON {table} FOR EACH ROW "
            "INSERT INTO aside.ledger (tab, op, new_key, gone_key) "
            f"VALUES ('{name}', '{op[0]}', {', '.join(keys)})"
        )
    return statements


def uninstall_mysql(table: str) -> list[str]:
    return [f"DROP TRIGGER {_trigger(table, op)}" for op in _OPS]


def hex_key(row: str, key: tuple[str, ...], binary: Collection[str]) -> str:
    """SQL of a row's key as `from_hex` reads it."""
    cells = [f"ifnull({hex_cell(f'{row}.`{c}`', c in binary)}, '-')" for c in key]
    return f"concat_ws(' ', {', '.join(cells)})"


def hex_cell(cell: str, binary: bool) -> str:
    """SQL of a cell's text, in hexadecimal; bytes have the text that keys of bytes have."""
    text = (
        f"concat('0x', lower(hex({cell})))" if binary else f"convert(concat({cell}) USING utf8mb4)"
    )
    return f"hex({text})"


def from_hex(text: str | None) -> str | None:
    """The text."""
    return None if text is None else bytes.fromhex(text).decode()


def key_from_hex(text: str) -> Key:
    return tuple(from_hex(None if cell == "-" else cell) for cell in text.split(" "))


def _trigger(table: str, op: str) -> str:
    return f"noted_{table.replace('.', '_')}_{op}"
