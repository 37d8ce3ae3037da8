"""Rights that capture's role has and need not have: `tidelog check` warns of them."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.sources.findings import Finding
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.preflight.report import Connection, one_row


def superuser_reads_others(connection: Connection, publications: Publications) -> Iterator[Finding]:
    """To plan a SELECT the server runs what a table's owner put into its indexes, as whoever reads
    it; SET ROLE would not help, for such a function may undo it.
    """
    tables = [table.relation_id for table in publications.captured(connection)]
    count, owner = one_row(
        connection,
        "SELECT count(*), min(o.rolname) FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_roles o ON o.oid = c.relowner "
        "WHERE c.oid = ANY (%s::oid[]) AND NOT o.rolsuper AND EXISTS "
        "(SELECT FROM pg_catalog.pg_roles u WHERE u.rolname = current_user AND u.rolsuper)",
        (tables,),
    )
    if count:
        yield Finding(
            "role",
            "warn",
            f"capture's role is a superuser, and {count} captured tables are others' (one is "
            f"{owner}'s): to read a table the server may run functions of its owner, with "
            "capture's rights",
            "give capture a role of its own with REPLICATION and SELECT (the page on PostgreSQL "
            "has the SQL)",
        )
