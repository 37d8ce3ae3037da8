"""The optional event trigger that runs in the transaction of a DDL statement.

It has two uses, and capture works without it:

- A table that loses its replica identity while its updates are published refuses every UPDATE and
  DELETE of the application. The trigger moves it to the publication of inserts in the same
  transaction, even while capture is down; without the trigger, capture does that at its next check.
- It writes an empty logical message, which makes capture check the catalogue at once. Anyone can
  write such a message, so it is only a hint.

Only a superuser (on managed servers its equivalent, e.g. ``rds_superuser``) can create an event
trigger, and it runs for everybody's DDL. So Tidelog never creates it: an administrator runs the SQL
that ``tidelog check --json`` prints. The trigger's function belongs to that administrator and not
to the capture's role, which could otherwise replace it and have a superuser run it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.model.schema import double_quoted
from tidelog.sources.findings import SUPERUSER, Finding
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.connect import Connection, quote_literal

DDL_PREFIX = "tidelog.ddl"
"""The prefix of the logical messages."""

# Selects whether the server accepts updates of these tables and their partitions
# (CheckCmdReplicaIdentity). PostgreSQL 18 and later refuse them if the identity has a generated
# column that is not published.
_IDENTIFIED = """
WITH RECURSIVE tree AS (
  SELECT c.oid AS root, c.oid FROM pg_class c WHERE c.oid = ANY (touched)
  UNION ALL
  SELECT tree.root, i.inhrelid FROM pg_inherits i
  JOIN tree ON i.inhparent = tree.oid
  JOIN pg_class p ON p.oid = tree.oid AND p.relkind = 'p'
), missing AS (
  SELECT a.attrelid, a.attnum FROM pg_attribute a
  WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''
    AND current_setting('server_version_num')::int >= 180000
    AND NOT (a.attgenerated = 's' AND EXISTS (SELECT FROM pg_publication p
      WHERE p.pubname = {publication} AND to_jsonb(p) ->> 'pubgencols' = 's'))
)
SELECT tree.root::int8, bool_and(CASE WHEN c.relreplident = 'f'
  THEN NOT EXISTS (SELECT FROM missing WHERE missing.attrelid = c.oid)
  ELSE EXISTS (
    SELECT FROM pg_index i
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
      AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
      AND NOT EXISTS (SELECT FROM missing
        WHERE missing.attrelid = c.oid AND missing.attnum = ANY (i.indkey::int2[])))
  END)
FROM tree JOIN pg_class c ON c.oid = tree.oid
GROUP BY tree.root
"""

# The tables of a DDL statement are known, except for statements that drop objects: those check all
# tables. SECURITY DEFINER: the user who alters a table need not own the publication. No statement
# here may wait long or fail: lock_timeout is shorter than deadlock_timeout.
_FUNCTION = """
CREATE OR REPLACE FUNCTION {function}() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' SET client_min_messages = 'error'
AS $tidelog$
DECLARE
  touched oid[];
  lost record;
  target text;
BEGIN
  IF TG_TAG <> 'ALTER PUBLICATION' THEN
    SELECT array_agg(r.prrelid) INTO touched
    FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
    WHERE p.pubname = {publication} AND (TG_TAG LIKE 'DROP %' OR r.prrelid IN (
      SELECT part.oid FROM pg_event_trigger_ddl_commands() AS command
      LEFT JOIN pg_index i ON i.indexrelid = command.objid
      CROSS JOIN LATERAL (SELECT coalesce(i.indrelid, command.objid)) AS altered(oid)
      CROSS JOIN LATERAL (SELECT altered.oid
        UNION SELECT a.relid FROM pg_partition_ancestors(altered.oid::regclass) AS a) AS part(oid)
      WHERE command.classid = 'pg_class'::regclass));
    FOR lost IN
      SELECT n.nspname, c.relname, c.relkind, EXISTS (SELECT FROM pg_publication_rel r
        JOIN pg_publication p ON p.oid = r.prpubid
        WHERE r.prrelid = c.oid AND p.pubname = {inserts}) AS there
      FROM ({identity}) AS found(root, identified)
      JOIN pg_class c ON c.oid = found.root JOIN pg_namespace n ON n.oid = c.relnamespace
      WHERE NOT found.identified
    LOOP
      target := CASE WHEN lost.relkind = 'p' THEN '' ELSE 'ONLY ' END
        || format('%I.%I', lost.nspname, lost.relname);
      BEGIN
        EXECUTE format('ALTER PUBLICATION %I DROP TABLE ', {publication}) || target;
        IF NOT lost.there THEN
          EXECUTE format('ALTER PUBLICATION %I ADD TABLE ', {inserts}) || target;
        END IF;
      EXCEPTION WHEN OTHERS THEN
        RAISE LOG 'tidelog: % stays published with its updates: %', target, SQLERRM;
      END;
    END LOOP;
  END IF;
  PERFORM pg_logical_emit_message(true, {prefix}, '');
EXCEPTION WHEN OTHERS THEN
  RAISE LOG 'tidelog: the event trigger passed over %: %', TG_TAG, SQLERRM;
END
$tidelog$;
"""

_TRIGGER = """
SELECT e.evtenabled IN ('O', 'A'), p.prosrc FROM pg_catalog.pg_event_trigger e
JOIN pg_catalog.pg_proc p ON p.oid = e.evtfoid WHERE e.evtname = %s
"""


def install_sql(publications: Publications) -> str:
    """The SQL with which a superuser creates or replaces the trigger."""
    name, function = _names(publications)
    schema = double_quoted(publications.watermark.namespace)
    return (
        f"CREATE SCHEMA IF NOT EXISTS {schema}; {_function(publications)}"
        f"DROP EVENT TRIGGER IF EXISTS {double_quoted(name)};\n"
        f"CREATE EVENT TRIGGER {double_quoted(name)} ON ddl_command_end "
        f"EXECUTE FUNCTION {function}();"
    )


def findings(connection: Connection, publications: Publications) -> Iterator[Finding]:
    """Check that the trigger exists, in this release's version."""
    name, _ = _names(publications)
    row = connection.execute(_TRIGGER.encode(), (name,)).fetchone()
    sql = install_sql(publications)
    if row is None:
        text = (
            "there is no event trigger: a table that loses its key refuses UPDATE and DELETE until "
            "capture's next check. `tidelog check --json` has the SQL that creates one"
        )
        yield Finding("event trigger", "ok", text, sql, SUPERUSER)
    elif not row[0]:
        fix = f"ALTER EVENT TRIGGER {double_quoted(name)} ENABLE;"
        yield Finding("event trigger", "warning", f"{name} is disabled", fix, SUPERUSER)
    elif row[1] not in _function(publications):
        yield Finding("event trigger", "warning", f"{name} is of another release", sql, SUPERUSER)
    else:
        yield Finding("event trigger", "ok", f"{name} exists")


def _names(publications: Publications) -> tuple[str, str]:
    """The names of the trigger and its function (quoted); they contain the publication's, as there
    may be several.
    """
    name = f"{publications.name[:59]}_ddl"
    return name, double_quoted(publications.watermark.namespace, name)


def _function(publications: Publications) -> str:
    return _FUNCTION.format(
        function=_names(publications)[1],
        publication=quote_literal(publications.name),
        inserts=quote_literal(publications.inserts_name),
        identity=_IDENTIFIED.strip().format(publication=quote_literal(publications.name)),
        prefix=quote_literal(DDL_PREFIX),
    )
