"""Finds, creates, checks and alters the source's tables in the destination, on the driver.

Names that the destination can't have, or can't distinguish, are refused before that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from tidelog.codecs.columns.values import arrow_type
from tidelog.codecs.wire_formats import wire_format
from tidelog.errors import NameRefusedError, OutputRefusedError, TableLeftOutError
from tidelog.model.schema import Column, TableName
from tidelog.outputs.base.left_out import check_columns_differ, rename_step, route_step
from tidelog.outputs.database.dialect import (
    DELETED,
    SHAPE,
    VERSION,
    DatabaseSession,
    Dialect,
    FoundColumn,
    FoundTargetTable,
    TableLayout,
    with_digits,
    without_nullability,
)
from tidelog.ports import TargetTable

# Names.


def check_names(
    session: DatabaseSession, dialect: Dialect, output: str, table: TargetTable, place: TableName
) -> None:
    """Raise NameRefusedError if the server can't have the names of the table and its columns."""
    for name in (place.namespace, place.name):
        if fault := dialect.name_fault(session, name):
            raise _refused(
                output,
                f"the table {place} has a name that {fault}",
                route_step(table.source),
            )
    faults = {
        name: f"'{name}' whose name {fault}"
        for name in table.columns.names
        if (fault := dialect.name_fault(session, name))
    }
    if faults:
        what = f"the table {place} has a column {', and '.join(faults.values())}"
        raise _refused(output, what, rename_step(table.source, *faults))
    check_columns_differ(
        table, (VERSION, DELETED, SHAPE), session.product, ignores_case=dialect.ignores_case
    )


def _refused(output: str, what: str, step: str) -> NameRefusedError:
    return NameRefusedError(f"output {output}: {what}. {step}")


# Tables.

# Types with fractional digits in brackets.
_CLOCKS = ("time", "timetz", "timestamp", "timestamptz", "datetime")
_ONE_SPELLING = ("uuid", "inet", "inet4", "inet6", "cidr", "macaddr", "macaddr8")
# Types of a source whose texts never end in a space, or where it is not significant.
_WITHOUT_SPACES = re.compile(r"(char|character|bpchar)(\(|$)|(enum|set)\(")
_NOT_ALL_TEXTS = ("char", "bpchar", "enum", "set")  # cut spaces, or take members by other names
_DECIMALS = ("decimal", "numeric")
_MOST_DIGITS = 6


class Tables:
    """Manages the destination's tables.

    Args:
        dialect: the server's dialect.
        output: the output's name, for messages.
        namespace: schema or database of tables that no step routes; None: as in the source.
        own: namespace of our tables.
        soft: whether rows of deleted keys stay, marked.
    """

    def __init__(
        self,
        dialect: Dialect,
        output: str,
        namespace: str | None,
        own: str,
        soft: bool,
    ) -> None:
        self._dialect = dialect
        self._output = output
        self._namespace = namespace
        self._own = own
        self._soft = soft

    def place(self, session: DatabaseSession, table: TargetTable) -> TableName:
        """Return the destination of the table: as a step routes it, else in our namespace, else as
        in the source.
        """
        if table.name == str(table.source):
            return TableName(self._namespace or table.source.namespace, table.source.name)
        if "." in table.name:
            return TableName.parse(table.name)
        return TableName(self._namespace or self._dialect.default_namespace(session), table.name)

    def address(self, session: DatabaseSession, table: TargetTable) -> str:
        """Return a text that is equal for two tables that the server takes for one."""
        place = str(self.place(session, table))
        return f"the table {place.lower() if self._dialect.folds_tables(session) else place}"

    def exists(self, session: DatabaseSession, place: TableName) -> bool:
        """Does the destination's table exist?"""
        return self._dialect.find_table(session, place.namespace, place.name) is not None

    def create(
        self, session: DatabaseSession, table: TargetTable, place: TableName
    ) -> FoundTargetTable:
        """Return the table, created if it does not exist, with our columns added if they are
        missing.
        """
        check_names(session, self._dialect, self._output, table, place)
        found = self._find(session, table, place)
        if found is None:
            columns = [
                f"{self._quoted(f.name)} {self._type(session, table, f)}" for f in table.columns
            ]
            key = ", ".join(self._quoted(name) for name in table.key)
            ours = [f"{name} {kind}" for name, kind in self.own_columns()]
            definition = (
                f"{self._dialect.quoted(place.namespace, place.name)} "
                f"({', '.join([*columns, *ours])}, PRIMARY KEY ({key}))"
            )
            try:
                self._dialect.create_namespace(session, place.namespace)
                session.rows(f"CREATE TABLE IF NOT EXISTS {definition}")
            except OutputRefusedError as error:
                raise TableLeftOutError(
                    f"output {self._output}: {error}. Give its user the right, or run: CREATE "
                    f"TABLE {definition}"
                ) from None
        else:
            self._check_key(table, found, place)
            by_name = {column.name: column for column in found.columns}
            for name, kind in self.own_columns():
                if name not in by_name:
                    self._alter(session, place, f"ADD COLUMN {name} {kind}")
            if VERSION in by_name:
                self._follow_case(session, table, place)
                self._follow_digits(session, table, place, by_name)
        return self._existing_table(session, table, place)

    def extend(
        self,
        session: DatabaseSession,
        table: TargetTable,
        place: TableName,
        added: Sequence[pa.Field],
        widened: Sequence[pa.Field],
    ) -> None:
        """Add missing columns, and widen those that need it."""
        found = {c.name: c for c in self._existing_table(session, table, place).columns}
        for field in (*added, *widened):
            column = found.get(field.name)
            sql_type = self._type(session, table, field)
            if column is None:
                self._alter(session, place, f"ADD COLUMN {self._quoted(field.name)} {sql_type}")
            elif not self._can_store(table, column, field):
                change = self._dialect.widen(self._quoted(field.name), sql_type)
                self._alter(session, place, change)

    def accepts_type(
        self,
        session: DatabaseSession,
        table: TargetTable,
        place: TableName,
        field: pa.Field,
        former: str,
    ) -> bool:
        """Does the column keep the current values as they are, or does the table not exist? A
        column that stores the former ones, too, was not altered: a text column stores anything,
        numbers' columns read texts (``007``), and clocks' ones times with a zone and without.
        """
        found = self._find(session, table, place)
        if found is None:
            return True
        column = next((each for each in found.columns if each.name == field.name), None)
        if column is None or not self._can_store(table, column, field):
            return False
        if _is_same(column.sql_type, self._type(session, table, field)):
            return True
        if former == "string":
            text = pa.field(field.name, pa.string())
            return not self._dialect.holds(column.base, column.sql_type, text)
        if pa.types.is_string(field.type):
            return column.base not in _DECIMALS
        return not (former.startswith("timestamp") and pa.types.is_timestamp(field.type))

    def remedy_for(
        self, session: DatabaseSession, table: TargetTable, place: TableName, names: Sequence[str]
    ) -> str:
        """Return the advice for columns of another type than the table has."""
        return (
            f"{self._conversion_advice(session, table, place, names)} Or set on_schema_change to "
            "lenient: the columns stay as they are, NULL in new rows."
        )

    def _conversion_advice(
        self, session: DatabaseSession, table: TargetTable, place: TableName, names: Sequence[str]
    ) -> str:
        quoted = self._dialect.quoted(place.namespace, place.name)
        bases = {c.name: c.base for c in self._existing_table(session, table, place).columns}
        changes = []
        for name in names:
            sql_type = self._type(session, table, table.columns.field(name))
            base = bases.get(name)
            if base is None:
                changes.append(f"ADD COLUMN {self._quoted(name)} {sql_type}")
            else:
                changes.append(self._dialect.convert(self._quoted(name), base, sql_type))
        return (
            f"Change the table: ALTER TABLE {quoted} {', '.join(changes)}; or have it created "
            f"again: DROP TABLE {quoted}. It is dumped then."
        )

    def layout(
        self,
        session: DatabaseSession,
        table: TargetTable,
        place: TableName,
        floor: int,
        former: Sequence[Column] = (),
    ) -> TableLayout:
        """Return the layout for rows of ``table``. Raises TableLeftOutError if the columns don't
        suffice, or the key has changed. ``former``: columns that the source's table had.
        """
        found = self._existing_table(session, table, place)
        self._check_key(table, found, place)
        by_name = {column.name: column for column in found.columns}
        types: dict[str, str] = {}
        for field in table.columns:
            column = by_name.get(field.name)
            if column is None:
                raise self._refused(
                    place,
                    f"has no column {field.name}. Add it, or leave it out by a step `drop`",
                )
            if column.computed:
                raise self._refused(place, f"computes its column {field.name}")
            if not self._can_store(table, column, field):
                values = with_digits(field, table.unchanged.get(field.name)).type
                raise self._refused(
                    place,
                    f"has a column {field.name} of type {column.sql_type}, which can't store "
                    f"all values of {values}. Change it, or add a step `cast`",
                )
            self._check_former_type(session, table, place, field, column, former)
            self._check_distinct_keys(session, table, place, field, column)
            types[field.name] = column.sql_type
        ours = [name for name, _ in self.own_columns()]
        for column in found.columns:
            if column.needed and column.name not in types and column.name not in ours:
                raise self._refused(
                    place,
                    f"has a column {column.name} that needs a value, which rows do not have. Give "
                    "it a default, or add a step `compute`",
                )
        self._check_rights(session, place, [*types, *ours])
        return TableLayout(
            place.namespace, place.name, types, table.key, self._own, floor, self._soft
        )

    # ------------------------------------------------------------------

    def _check_former_type(
        self,
        session: DatabaseSession,
        table: TargetTable,
        place: TableName,
        field: pa.Field,
        column: FoundColumn,
        former: Sequence[Column],
    ) -> None:
        """Check a column that is delivered as text, and was of another type in the source: a
        column for values of that type, such as `numeric`, would take ``007`` for 7.
        """
        source = table.unchanged.get(field.name)
        if source is None or not pa.types.is_string(with_digits(field, source).type):
            return

        def created(of: Column) -> str | None:
            kind = pa.field(of.name, arrow_type(of.logical))
            return self._dialect.type_of(session, kind, of, table.origin.kind, key=())

        def is_former(of: Column) -> bool:
            if of.name != source.name:
                return False
            if column.base in _NOT_ALL_TEXTS and created(of) == now:
                return _is_plain(of) != _is_plain(source)
            kind = pa.field(of.name, arrow_type(of.logical))
            return created(of) != now and self._can_store(table, column, kind)

        now = created(source) or ""
        texts = column.base in self._dialect.texts and column.base not in _NOT_ALL_TEXTS
        kept = texts or _is_same(column.sql_type, now) or (column.base, now) == ("json", "jsonb")
        if not kept and any(map(is_former, former)):
            raise self._refused(
                place,
                f"has a column {field.name} of type {column.sql_type}, as the source had it, where "
                f"it is {source.type_name} now. "
                f"{self._conversion_advice(session, table, place, [field.name])}".rstrip("."),
            )

    def _check_rights(
        self, session: DatabaseSession, place: TableName, columns: Sequence[str]
    ) -> None:
        """Raise TableLeftOutError if the output's user may not write rows or, unless they are only
        marked, delete them. Servers check rights before they explain a statement.
        """
        table = self._dialect.quoted(place.namespace, place.name)
        names = ", ".join(map(self._quoted, columns))
        statements = [
            f"INSERT INTO {table} ({names}) {self._dialect.own_values}SELECT {names} FROM {table}",
            f"UPDATE {table} SET {VERSION} = {VERSION}",
        ]
        if not self._soft:
            statements.append(f"DELETE FROM {table}")
        for statement in statements:
            try:
                session.rows(f"EXPLAIN {statement}")
            except OutputRefusedError as error:
                raise self._refused(
                    place,
                    f"can't be written: {error}. Let its owner grant SELECT, INSERT, UPDATE"
                    f"{'' if self._soft else ' and DELETE'} to the output's user",
                ) from None

    def _follow_case(self, session: DatabaseSession, table: TargetTable, place: TableName) -> None:
        """Rename columns whose names in the source differ in case from the copy's."""
        if not self._dialect.ignores_case:
            return
        found = self._dialect.find_table(session, place.namespace, place.name)
        now = self._existing_table(session, table, place)
        for column, known in zip(found.columns if found else (), now.columns, strict=True):
            if column.name != known.name:
                self._alter(session, place, self._dialect.rename(session, column, known.name))

    def _follow_digits(
        self,
        session: DatabaseSession,
        table: TargetTable,
        place: TableName,
        by_name: Mapping[str, FoundColumn],
    ) -> None:
        """Alter decimals whose digits have changed in the source. Rows have them as text before and
        after, so that no change of type is detected.
        """
        for field in table.columns:
            column = by_name.get(field.name)
            if column is None or column.base not in _DECIMALS or not pa.types.is_string(field.type):
                continue
            if not self._can_store(table, column, field):
                sql_type = self._type(session, table, field)
                self._alter(session, place, self._dialect.widen(self._quoted(field.name), sql_type))

    def _can_store(self, table: TargetTable, column: FoundColumn, field: pa.Field) -> bool:
        if column.base in _DECIMALS:
            field = with_digits(field, table.unchanged.get(field.name))
        return self._dialect.holds(column.base, column.sql_type, field)

    def _check_key(self, table: TargetTable, found: FoundTargetTable, place: TableName) -> None:
        if found.obstacle is not None:
            raise self._refused(place, found.obstacle)
        others = [index for index in found.unique if set(index) != set(table.key)]
        if len(others) == len(found.unique):
            raise self._refused(
                place,
                f"has no primary key or unique index of the columns {', '.join(table.key)}"
                f"{self._key_advice(table, found, place)}",
            )
        if others:
            raise self._refused(
                place,
                f"has another unique index, of {', '.join(others[0])}: rows of several keys are "
                "written at once and in any order, so that it could refuse correct rows. Drop "
                "it, and create it again when the output has ended",
            )

    def _check_distinct_keys(
        self,
        session: DatabaseSession,
        table: TargetTable,
        place: TableName,
        field: pa.Field,
        column: FoundColumn,
    ) -> None:
        """Check a key column: values that are distinct in the source must not be one row here."""
        if field.name not in table.key:
            return
        source = table.unchanged.get(field.name)
        type_name = "" if source is None else source.type_name.lower()
        why = ""
        if column.alike and pa.types.is_string(field.type):
            why = (
                ""
                if _has_one_spelling(type_name)
                else f"texts that differ {_smallest_difference(column.sql_type)}"
            )
        elif column.padded and pa.types.is_string(field.type):
            one = bool(_WITHOUT_SPACES.match(type_name)) or _has_one_spelling(type_name)
            why = "" if one else "texts that differ in trailing spaces"
        elif column.base in _CLOCKS and not pa.types.is_date(field.type):
            digits = _MOST_DIGITS
            if type_name:
                digits = _digits(type_name, wire_format(table.schema).fraction_digits)
            if _digits(column.sql_type, self._dialect.digits) < digits:
                why = "times that differ in their fractions"
        if why:
            change = self._dialect.widen(
                self._quoted(field.name), self._type(session, table, field)
            )
            raise self._refused(
                place,
                f"takes {why} for equal in its key's column {field.name} ({column.sql_type}): rows "
                "would replace and delete each other. Run: ALTER TABLE "
                f"{self._dialect.quoted(place.namespace, place.name)} {change}",
            )

    def _key_advice(self, table: TargetTable, found: FoundTargetTable, place: TableName) -> str:
        """Return the advice for a table whose rows still have the former key."""
        if VERSION not in {column.name for column in found.columns} or not found.unique:
            return ""  # the user's own table
        quoted = self._dialect.quoted(place.namespace, place.name)
        before = [name for name in found.unique[0] if name not in table.key]
        now = [name for name in table.key if name not in found.unique[0]]
        known = {column.name for column in found.columns}
        renamed = ""
        if len(before) == len(now) == 1 and now[0] not in known:
            renamed = (
                f"If the source renamed the column: ALTER TABLE {quoted} RENAME COLUMN "
                f"{self._quoted(before[0])} TO {self._quoted(now[0])}. Else have "
            )
        return (
            f", but of {', '.join(found.unique[0])}: the key has changed. "
            f"{renamed or 'Have '}the table created again: DROP TABLE {quoted}. It is dumped then"
        )

    def own_columns(self) -> list[tuple[str, str]]:
        """Return names and types of our columns."""
        ours = [(VERSION, self._dialect.version_type)]
        return [*ours, (DELETED, "boolean NOT NULL DEFAULT false")] if self._soft else ours

    def _type(self, session: DatabaseSession, table: TargetTable, field: pa.Field) -> str:
        key = [table.columns.field(n) for n in table.key] if field.name in table.key else []
        source = table.unchanged.get(field.name)
        found = self._dialect.type_of(session, field, source, table.origin.kind, key=key)
        if found is None:
            raise TableLeftOutError(
                f"output {self._output}: {session.product} has no type for column {field.name} "
                f"of {table.source} ({field.type}): cast it by a step"
            )
        return f"{found} NOT NULL" if key else f"{found} NULL"

    def _find(
        self, session: DatabaseSession, table: TargetTable, place: TableName
    ) -> FoundTargetTable | None:
        found = self._dialect.find_table(session, place.namespace, place.name)
        if found is None or not self._dialect.ignores_case:
            return found
        return found.with_spelling(table.columns.names)

    def _existing_table(
        self, session: DatabaseSession, table: TargetTable, place: TableName
    ) -> FoundTargetTable:
        found = self._find(session, table, place)
        if found is None:
            raise self._refused(place, "does not exist any more")
        return found

    def _alter(self, session: DatabaseSession, place: TableName, change: str) -> None:
        table = self._dialect.quoted(place.namespace, place.name)
        try:
            session.rows(f"ALTER TABLE {table} {change}")
        except OutputRefusedError as error:
            raise TableLeftOutError(
                f"output {self._output}: {error}. Let its owner run: ALTER TABLE {table} {change}"
            ) from None

    def _quoted(self, name: str) -> str:
        return self._dialect.quoted(name)

    def _refused(self, place: TableName, why: str) -> TableLeftOutError:
        return TableLeftOutError(f"output {self._output}: the table {place} {why}.")


def _is_same(found: str, created: str) -> bool:
    """Is a column's type the one that we create? Without schemas of types, and collations."""
    one, other = (each.replace('"', "").rpartition(".")[2] for each in (found, created))
    return f"{one} ".startswith(f"{without_nullability(other)} ")


def _is_plain(source: Column) -> bool:
    """Is it of a type of any texts, of which spaces at the end are a part?"""
    return _WITHOUT_SPACES.match(source.type_name.lower()) is None


def _has_one_spelling(source_type: str) -> bool:
    """Does the source give each value one spelling as text, so that no two differ in case, in
    accents or in how characters are composed?
    """
    if source_type.startswith("enum("):
        members = [each.rstrip() for each in re.findall(r"'((?:[^']|'')*)'", source_type)]
        plain = all(re.fullmatch(r"[A-Za-z0-9_. -]+", each) for each in members)
        return plain and len({_folded(each) for each in members}) == len(members)
    return re.sub(r"\(.*?\)", "", source_type).strip() in _ONE_SPELLING


def _folded(label: str) -> str:
    """Return a common form of labels that some language's collation takes for equal: Latin has no
    j, v and w of their own, Lithuanian sorts y with i and ch with c.
    """
    letters = re.sub(r"[^a-z0-9]", "", label.lower()).translate(str.maketrans("jyvw", "iiuu"))
    return letters.replace("ch", "c")


def _smallest_difference(sql_type: str) -> str:
    """Return how, at most, texts differ that a column with this collation takes for equal."""
    if re.search(r"_cs\b", sql_type):
        return "in how characters are composed, as é of one and of two,"
    if re.search(r"_as_ci\b", sql_type):
        return "in case"
    return "in case or accents"


def _digits(sql_type: str, otherwise: int) -> int:
    found = re.search(r"\((\d)\)", sql_type)
    return int(found[1]) if found else otherwise
