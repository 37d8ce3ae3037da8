"""Reads the publications, and plans the steps to publish every captured table correctly.

`Publications.sync` runs the steps that Tidelog may do; `tidelog check` and errors print the others
as SQL. Each step comes after those that it needs. `PublicationPlanner` itself does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tidelog.model.patterns import matching_columns
from tidelog.model.schema import TableName, double_quoted
from tidelog.ports import LeftOutColumns
from tidelog.sources.postgres.catalogue.identity import ReplicaIdentity
from tidelog.sources.postgres.connect import Connection, quote_literal

# The publications' options, owners and tables.


# The comment of a publication that a capture owns; the slot's name follows it.
MANAGED = "managed by tidelog"
_OF_SLOT = f"{MANAGED} for slot "

# Not pg_publication_tables, which locks each table: it would wait for DDL on any of them.
_MEMBERS = """
SELECT p.pubname, n.nspname, c.relname, member.direct, member.filtered, member.listed
FROM pg_catalog.pg_publication p
JOIN LATERAL (
  SELECT r.prrelid AS oid, true AS direct, {filtered} AS filtered, {listed} AS listed
  FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid
  {namespaces}
  UNION ALL SELECT t.oid, false, false, false FROM pg_catalog.pg_class t
  WHERE p.puballtables AND t.relkind IN ('r', 'p') AND t.relpersistence = 'p'
    AND t.oid >= 16384  -- no table of the system (is_publishable_class)
) AS member ON true
JOIN pg_catalog.pg_class c ON c.oid = member.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = ANY (%s)
ORDER BY member.direct
"""
_MEMBERS_BY_NAMESPACE = """
  UNION ALL SELECT t.oid, false, false, false FROM pg_catalog.pg_publication_namespace s
  JOIN pg_catalog.pg_class t ON t.relnamespace = s.pnnspid
  WHERE s.pnpubid = p.oid AND t.relkind IN ('r', 'p') AND t.relpersistence = 'p'
"""
# Not all versions have pubgencols, hence the JSON.
_PUBLICATION_OPTIONS = """
SELECT p.pubname, pg_catalog.obj_description(p.oid, 'pg_publication'),
  pg_catalog.pg_has_role(p.pubowner, 'USAGE'), p.puballtables, p.pubviaroot,
  p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
  coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false)
FROM pg_catalog.pg_publication p WHERE p.pubname = ANY (%s)
"""


@dataclass(frozen=True, slots=True)
class Member:
    """How a publication includes a table."""

    direct: bool  # by its name; otherwise as one of all tables, or of its schema
    filtered: bool = False  # with a row filter
    listed: bool = False  # with a column list


@dataclass(frozen=True, slots=True)
class PublicationState:
    """The current state of a publication. ``slot``: the slot that it was created for; empty: a
    capture created it before slots were recorded; None: no capture created it.
    """

    name: str
    slot: str | None
    alterable: bool  # by the session's role
    all_tables: bool
    via_root: bool
    kinds: tuple[str, ...]
    generated: bool  # publishes stored generated columns
    members: dict[TableName, Member] = field(default_factory=dict)


def managed_for(slot: str | None) -> str:
    """The comment of a publication that this slot owns."""
    return MANAGED if slot is None else _OF_SLOT + slot


def publications_now(connection: Connection, names: Sequence[str]) -> dict[str, PublicationState]:
    """The existing publications of these names, with all their tables."""
    found = {}
    for name, comment, alterable, everything, via_root, *kinds, generated in connection.execute(
        _PUBLICATION_OPTIONS.encode(), (list(names),)
    ).fetchall():
        published = zip(("insert", "update", "delete", "truncate"), kinds, strict=True)
        found[name] = PublicationState(
            name=name,
            slot=_slot_of(comment),
            alterable=alterable,
            all_tables=everything,
            via_root=via_root,
            kinds=tuple(kind for kind, is_published in published if is_published),
            generated=generated,
        )
    since_15 = connection.info.server_version >= 150000
    query = _MEMBERS.format(
        namespaces=_MEMBERS_BY_NAMESPACE if since_15 else "",
        filtered="r.prqual IS NOT NULL" if since_15 else "false",
        listed="r.prattrs IS NOT NULL" if since_15 else "false",
    )
    for name, namespace, table, direct, filtered, listed in connection.execute(
        query.encode(), (list(found),)
    ):
        # Included by name and by its schema: then there is neither a filter nor a column list.
        members = found[name].members
        in_all = members.get(TableName(namespace, table))
        if direct and in_all is not None:
            filtered = listed = False
        members[TableName(namespace, table)] = Member(direct, filtered, listed)
    return found


def members_of(connection: Connection, publications: Sequence[str]) -> dict[str, set[TableName]]:
    """Tables by publication; only publications that exist."""
    found = publications_now(connection, publications)
    return {name: set(publication.members) for name, publication in found.items()}


def _slot_of(comment: str | None) -> str | None:
    if comment is not None and comment.startswith(_OF_SLOT):
        return comment.removeprefix(_OF_SLOT)
    return "" if comment == MANAGED else None


# The plan.

KINDS = {True: ("insert", "update", "delete", "truncate"), False: ("insert", "truncate")}

_GENERATED = "publish_generated_columns = stored"
_COMPUTE = "let outputs compute them (step compute)"


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table, its replica identity, and whether the session's role may publish it."""

    table: TableName
    relation_id: int
    partitioned: bool
    owned: bool
    stored: tuple[str, ...]  # generated columns
    virtual: tuple[str, ...]
    identity: ReplicaIdentity

    @property
    def quoted(self) -> str:
        return double_quoted(self.table.namespace, self.table.name)

    @property
    def target(self) -> str:
        """The table in ALTER PUBLICATION. ONLY: without inheriting tables, which are tables of
        their own.
        """
        return self.quoted if self.partitioned else f"ONLY {self.quoted}"


@dataclass(frozen=True, slots=True)
class PublicationView:
    """The current state of the source, as far as publications need it."""

    publications: dict[str, PublicationState]
    own: Sequence[PublishedTable]  # Tidelog's own tables that are published too
    captured: Sequence[PublishedTable]
    others: Sequence[PublishedTable]  # other tables of the publications
    may_create: bool  # publications
    logs_generated: bool  # the server can log generated columns

    @property
    def by_name(self) -> dict[TableName | None, PublishedTable]:
        """All tables by name; built at each call."""
        return {table.table: table for table in [*self.own, *self.captured, *self.others]}


@dataclass(frozen=True, slots=True)
class PublicationStep:
    """Statements of one transaction.

    ``kind``: ``create`` a publication, ``add`` a table that is in none, ``fix`` something
    wrong. ``lost``: captured tables whose changes were not all published until now.
    """

    kind: Literal["create", "add", "fix"]
    publications: tuple[str, ...]
    why: str
    statements: tuple[str, ...]
    allowed: bool  # whether the session's role may run it
    table: TableName | None = None
    lost: tuple[TableName, ...] = ()


@dataclass
class PublicationPlanner:
    """Plans the steps for two publications.

    Args:
        view: the state of the source.
        name, inserts_name: the publications.
        slot: the owner's slot; None: any owner.
        exclude_columns: patterns of columns that nobody wants.
    """

    view: PublicationView
    name: str
    inserts_name: str
    slot: str | None
    exclude_columns: Sequence[str] = ()
    _automatic: bool = field(default=False, init=False)

    def steps(self, *, automatic: bool = False) -> list[PublicationStep]:
        """All steps; with ``automatic`` only those that Tidelog runs itself."""
        self._automatic = automatic
        generated = self._generated()
        steps = [*self._create(generated), *self._options(generated)]
        for table in [*self.view.own, *self.view.captured]:
            steps += self._table(table, generated)
        for table in self.view.others:
            steps += self._other(table, generated)
        return [step for step in steps if self.is_automatic(step)] if automatic else steps

    def is_automatic(self, step: PublicationStep) -> bool:
        """Return True if Tidelog runs the step itself: it adds to any publication that it may
        alter, and changes existing things only in its own.
        """
        return step.allowed and (
            step.kind != "fix" or all(self.owns(name) for name in step.publications)
        )

    def owns(self, name: str) -> bool:
        """Return True if the publication was, or will be, created for this capture."""
        state = self.view.publications.get(name)
        if state is None or state.slot is None:
            return state is None
        return self.slot is None or state.slot in ("", self.slot)

    def stuck_tables(self) -> list[PublishedTable]:
        """Tables whose updates and deletes fail, and which can't be removed by name."""
        main = self.view.publications.get(self.name)
        if main is None:
            return []
        tables = [*self.view.own, *self.view.captured, *self.view.others]
        return [
            table
            for table in tables
            if not self._can_publish_updates(table, main.generated)
            and (member := main.members.get(table.table)) is not None
            and not member.direct
            and self._publishes_updates(main)
        ]

    def left_out_columns(self) -> dict[TableName, LeftOutColumns]:
        """The generated columns of captured tables that the log does not have, once all steps are
        done. Without excluded ones.
        """
        generated, found = self._generated(), {}
        for table in self.view.captured:
            every = (*table.stored, *table.virtual)
            excluded = matching_columns(self.exclude_columns, table.table, every)
            stored, virtual = (
                tuple(name for name in names if name not in excluded)
                for names in (table.stored, table.virtual)
            )
            unpublished = () if generated else stored
            columns = (*unpublished, *virtual)
            reasons: list[str] = []
            remedies: list[str] = []
            if unpublished and self.view.logs_generated:
                reasons.append("stored ones are not published")
                remedies.append(self._publish_generated())
            elif unpublished:
                reasons.append("PostgreSQL logs them from version 18 on")
                remedies.append(f"{_COMPUTE}, or upgrade to PostgreSQL 18")
            if virtual:
                reasons.append("PostgreSQL logs no virtual ones")
                if not any(_COMPUTE in each for each in remedies):
                    remedies.append(_COMPUTE)
            if columns:
                reason, remedy = "; ".join(reasons), " -- ".join(remedies)
                found[table.table] = LeftOutColumns(columns, reason, remedy)
        return found

    def _publish_generated(self) -> str:
        names = (self.name, self.inserts_name)
        if any(name not in self.view.publications for name in names):
            return (
                f"{_COMPUTE}, or have them published: once capture has made its publications, "
                "tidelog check prints the SQL"
            )
        return " ".join(f"ALTER PUBLICATION {double_quoted(n)} SET ({_GENERATED});" for n in names)

    # ------------------------------------------------------------------ publications

    def _create(self, generated: bool) -> Iterator[PublicationStep]:
        for name in (self.name, self.inserts_name):
            if name in self.view.publications:
                continue
            options = [
                f"publish = '{', '.join(KINDS[name == self.name])}'",
                "publish_via_partition_root = true",
                *([_GENERATED] if generated else []),
            ]
            quoted = double_quoted(name)
            yield PublicationStep(
                "create",
                (name,),
                f"publication {name} does not exist",
                (
                    f"CREATE PUBLICATION {quoted} WITH ({', '.join(options)});",
                    f"COMMENT ON PUBLICATION {quoted} IS {quote_literal(managed_for(self.slot))};",
                ),
                self.view.may_create,
            )

    def _options(self, generated: bool) -> Iterator[PublicationStep]:
        for name, state in self.view.publications.items():
            held = [t for t in self.view.captured if t.table in state.members]
            wanted = KINDS[name == self.name]
            lacking = [kind for kind in wanted if kind not in state.kinds]
            surplus = [kind for kind in state.kinds if kind not in wanted]
            if not state.via_root:
                yield self._set(
                    state,
                    "publishes partitions instead of their root",
                    "publish_via_partition_root = true",
                    [t for t in held if t.partitioned],
                )
            if lacking or surplus:
                what = (
                    f"does not publish {', '.join(lacking)}"
                    if lacking
                    else (f"publishes {', '.join(surplus)}, which not all its tables can")
                )
                yield self._set(
                    state, what, f"publish = '{', '.join(wanted)}'", held if lacking else []
                )
            if state.generated != generated:
                yield self._set(
                    state,
                    "does not publish generated columns, which identify rows",
                    _GENERATED,
                    [t for t in held if t.stored],
                )

    def _set(
        self, state: PublicationState, what: str, option: str, lost: Sequence[PublishedTable]
    ) -> PublicationStep:
        return PublicationStep(
            "fix",
            (state.name,),
            f"publication {state.name} {what}",
            (f"ALTER PUBLICATION {double_quoted(state.name)} SET ({option});",),
            state.alterable,
            lost=tuple(table.table for table in lost),
        )

    def _generated(self) -> bool:
        """Whether to publish stored generated columns. Both publications do or none, so that a
        table's columns do not depend on its publication; once they do, they always do.
        """
        if not self.view.logs_generated:
            return False
        states = list(self.view.publications.values())
        if any(state.generated for state in states):
            wanted = True
        else:
            wanted = any(table.identity.needs_generated for table in self.view.captured)
        if self._automatic and not all(
            state.generated or (state.alterable and self.owns(state.name)) for state in states
        ):
            return bool(states) and all(state.generated for state in states)
        return wanted

    # ------------------------------------------------------------------ tables

    def _can_publish_updates(self, table: PublishedTable, generated: bool) -> bool:
        """Return True if the table's updates can be published."""
        identity = table.identity
        return identity.trouble is None or (identity.needs_generated and generated)

    def _publishes_updates(self, state: PublicationState) -> bool:
        return "update" in state.kinds or "delete" in state.kinds

    def _member(self, name: str, table: PublishedTable) -> Member | None:
        state = self.view.publications.get(name)
        return None if state is None else state.members.get(table.table)

    def _table(self, table: PublishedTable, generated: bool) -> Iterator[PublicationStep]:
        sound = self._can_publish_updates(table, generated)
        right, wrong = self.name, self.inserts_name
        if not sound:
            right, wrong = wrong, right
        there, elsewhere = self._member(right, table), self._member(wrong, table)
        ours = [] if table in self.view.own else [table.table]
        if elsewhere is not None and not elsewhere.direct and not sound:
            return  # stuck
        drop = self._drop(wrong, table) if elsewhere is not None and elsewhere.direct else None
        if there is None:
            add = self._add(right, table)
            if elsewhere is None:
                yield self._step("add", (right,), f"{table.table} is not published", [add], table)
            else:
                why = (
                    "its updates and deletes are not published"
                    if sound
                    else f"its updates and deletes fail: {_why(table)}"
                )
                both = (right, wrong) if drop else (right,)
                statements = [drop, add] if drop else [add]
                yield self._step("fix", both, f"{table.table}: {why}", statements, table, ours)
            return
        if drop is not None:
            both_hold = f"{table.table} is in both publications"
            yield self._step("fix", (wrong,), both_hold, [drop], table)
        if there.filtered or there.listed:
            what = "a row filter" if there.filtered else "a column list"
            yield self._step(
                "fix",
                (right,),
                f"publication {right} holds {table.table} with {what}",
                [self._drop(right, table), self._add(right, table)],
                table,
                ours,
            )

    def _other(self, table: PublishedTable, generated: bool) -> Iterator[PublicationStep]:
        """Leave tables alone that no pattern matches, unless they break the application's DML."""
        member = self._member(self.name, table)
        if member is None or not member.direct or self._can_publish_updates(table, generated):
            return
        if not self._publishes_updates(self.view.publications[self.name]):
            return
        statements = [self._drop(self.name, table)]
        names = [self.name]
        if self._member(self.inserts_name, table) is None:
            names.append(self.inserts_name)
            statements.append(self._add(self.inserts_name, table))
        why = f"{table.table}: its updates and deletes fail: {_why(table)}"
        yield self._step("fix", tuple(names), why, statements, table)

    def _step(
        self,
        kind: Literal["add", "fix"],
        names: tuple[str, ...],
        why: str,
        statements: list[str],
        table: PublishedTable,
        lost: Sequence[TableName] = (),
    ) -> PublicationStep:
        allowed = (table.owned or " ADD TABLE " not in statements[-1]) and all(
            self.view.publications[name].alterable
            if name in self.view.publications
            else self.view.may_create
            for name in names
        )
        if kind == "add" and table not in self.view.own:
            lost = (table.table,)
        return PublicationStep(
            kind, names, why, tuple(statements), allowed, table.table, tuple(lost)
        )

    def _add(self, name: str, table: PublishedTable) -> str:
        return f"ALTER PUBLICATION {double_quoted(name)} ADD TABLE {table.target};"

    def _drop(self, name: str, table: PublishedTable) -> str:
        return f"ALTER PUBLICATION {double_quoted(name)} DROP TABLE {table.target};"


def _why(table: PublishedTable) -> str:
    return "" if table.identity.trouble is None else table.identity.trouble.why
