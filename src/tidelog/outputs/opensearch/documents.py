"""Converts rows to documents, also to documents of several tables: ids, JSON, mappings and scripts.

It converts column by column, by Arrow's string kernels.

A joined document has the row of one table, and the rows of others that belong to it. Each
contribution has a version of its own, kept in the document, also a deleted one; a script on the
cluster compares and replaces one contribution, and does not change the others. So tables, and
sources, may write in any order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns.times import date_texts, timestamp_texts
from tidelog.ports import TargetTable
from tidelog.spark.formats.envelope import join_texts, json_values
from tidelog.spark.formats.json_values import with_time_texts
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION

# The output's own object in each document, and a document of its own in each index, which is hidden
# like a tombstone. No row has its id: in ids, `\` is only before certain other characters.
META = "_tidelog"
VERSION, DELETED, AT = "version", "deleted", "at"
NOTES, NOTES_ID = "notes", "\\notes"
META_MAPPING: dict[str, Any] = {
    "properties": {
        VERSION: {"type": "long"},
        DELETED: {"type": "boolean"},
        AT: {"type": "date", "format": "epoch_millis"},
    }
}
# Names that documents can't have at their top.
_RESERVED = frozenset(
    (
        *("_id", "_index", "_type", "_source", "_size", "_routing", "_field_names", "_ignored"),
        *("_nested_path", "_seq_no", "_version", "_primary_term", "_doc_count", META),
    )
)

ID_MAX_BYTES = 512  # OpenSearch's limit
_KEYWORD_MAX = 8191  # characters: with four bytes each they fit into Lucene's longest term, 32766

_DATES = "strict_date_optional_time_nanos||strict_date_optional_time||epoch_millis"
_TEXT: dict[str, Any] = {
    "type": "text",
    "fields": {"keyword": {"type": "keyword", "ignore_above": _KEYWORD_MAX}},
}
_KEYWORD: dict[str, Any] = {"type": "keyword", "ignore_above": _KEYWORD_MAX}
_DATE: dict[str, Any] = {"type": "date", "format": _DATES, "ignore_malformed": True}
# Types delivered as texts that are no words to search for.
_KEYWORD_TYPES = frozenset(
    ("uuid", "inet", "inet4", "inet6", "cidr", "macaddr", "macaddr8", "oid", "bit", "varbit")
)


def mapping(columns: pa.Schema, table: TargetTable, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenSearch's ``properties`` for the columns; ``own`` replaces those of columns by
    name.
    """
    kinds = {column.name: column.type_name for column in table.schema.columns}
    found = {}
    for column in columns:
        if column.name in own:
            found[column.name] = own[column.name]
        elif pa.types.is_string(column.type) and kinds.get(column.name) in _KEYWORD_TYPES:
            found[column.name] = _KEYWORD
        else:
            found[column.name] = _of_type(column.type)
    return found


def unsupported_names(columns: Sequence[str]) -> list[str]:
    """Return the columns that documents can't have by their name."""
    return [name for name in columns if name in _RESERVED or "." in name or not name.strip()]


def _of_type(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_boolean(kind):
        return {"type": "boolean"}
    if pa.types.is_integer(kind):
        return {"type": "long"}  # for any width: a mapping can't be widened
    if pa.types.is_floating(kind):
        return {"type": "double", "ignore_malformed": True}  # NaN, Infinity
    if pa.types.is_decimal(kind):
        exact = {"exact": {"type": "keyword"}}
        return {"type": "double", "ignore_malformed": True, "fields": exact}
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _DATE
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return {"type": "binary"}
    if pa.types.is_list(kind):
        return _of_type(kind.value_type)
    if pa.types.is_struct(kind):
        return {"properties": {each.name: _of_type(each.type) for each in kind}}
    if pa.types.is_map(kind):
        return {"type": "object", "enabled": False}
    return _TEXT


def ids(rows: pa.RecordBatch, key: Sequence[str]) -> pa.StringArray:
    r"""Return each row's document id: the key's values as texts, joined by ``|``.

    No two keys have the same id: in texts, ``\`` is written ``\\`` and ``|`` ``\|``; an empty text
    is ``\0``, null ``\N``. An id longer than 512 bytes is ``\#`` and its SHA-256.
    """
    parts = [_key_text(rows.column(name)) for name in key]
    found = parts[0]
    if len(parts) > 1:
        found = pc.binary_join_element_wise(*parts, "|")
    long = pc.greater(pc.binary_length(found), ID_MAX_BYTES)
    if pc.any(long).as_py():
        digests = [
            "\\#" + hashlib.sha256(text.encode()).hexdigest()
            for text in found.filter(long).to_pylist()
        ]
        found = pc.replace_with_mask(found, long, pa.array(digests, pa.string()))
    return found


def _key_text(values: pa.Array) -> pa.StringArray:
    kind = values.type
    if pa.types.is_boolean(kind):
        text = pc.if_else(values, "true", "false")
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        text = pa.array([v if v is None else v.hex() for v in values.to_pylist()], pa.string())
        text = pc.if_else(pc.equal(text, ""), "\\0", text)
    elif pa.types.is_string(kind):
        text = values
        if pc.any(pc.match_substring_regex(text, r"[\\|]")).as_py():
            text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), "|", "\\|")
        text = pc.if_else(pc.equal(text, ""), "\\0", text)
    else:
        text = _plain(values)
    return pc.fill_null(text, "\\N")


def _plain(values: pa.Array) -> pa.StringArray:
    """Return numbers and points in time as texts, ISO 8601."""
    if pa.types.is_timestamp(values.type):
        zone = "" if values.type.tz is None else "Z"
        text = timestamp_texts(values.cast(pa.timestamp("us", values.type.tz)))
        return pc.binary_join_element_wise(text, zone, "", null_handling="emit_null")
    if pa.types.is_date32(values.type):
        return date_texts(values)
    return values.cast(pa.string())


def json_texts(values: pa.Array) -> pa.StringArray:
    """Return each value as JSON; null stays null."""
    kind = values.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pc.binary_join_element_wise('"', _plain(values), '"', "", null_handling="emit_null")
    return json_values(with_time_texts(values))


def documents(rows: pa.RecordBatch, names: Sequence[str], version: pa.Array) -> pa.StringArray:
    """Return each row as a document of the columns ``names``."""
    pieces: list[str | pa.Array] = []
    for number, name in enumerate(names):
        pieces.append(("{" if not number else ",") + json.dumps(name, ensure_ascii=False) + ":")
        pieces.append(json_texts(rows.column(name)))
    opened = f'{"," if names else "{"}"{META}":{{"{VERSION}":'
    return join_texts(*pieces, opened, version.cast(pa.string()), "}}")


def tombstones(version: pa.Array, at_ms: int) -> pa.StringArray:
    """Return a document in place of each deleted row: only its version is left."""
    end = f',"{DELETED}":true,"{AT}":{at_ms}}}}}'
    return join_texts(f'{{"{META}":{{"{VERSION}":', version.cast(pa.string()), end)


def index_lines(
    id_texts: pa.StringArray, version: pa.Array, bodies: pa.StringArray
) -> pa.StringArray:
    """Return the two lines of each document in a bulk request.

    ``external_gte``, and not ``external``: where OpenSearch really deletes a document, by a purge,
    it increases the deleted version by one, and the key's next row may have just that version.
    """
    return join_texts(
        '{"index":{"_id":',
        json_values(id_texts),
        ',"version":',
        version.cast(pa.string()),
        ',"version_type":"external_gte"}}\n',
        bodies,
        "\n",
    )


# Joined documents.

# In a document's META: the version of the root's row (0: none); by slot, the contributions'
# versions, negative if deleted. Slots: / for the root, the part's name, or part/key.
ROOT, PARTS = "root", "parts"
KEY = "_key"  # of each element of a list: its row's key, as in ids
_CONFLICTS = 5

JOINED_MAPPING: dict[str, Any] = {
    "properties": META_MAPPING["properties"]
    | {ROOT: {"type": "long"}, PARTS: {"type": "object", "enabled": False}}
}

# p: part, "" for the root's; k: key of a list's element, or null; v: version; d: deleted; u: update
# only; f: floor; c: columns; n: the root's columns; t: now, ms.
JOIN_SCRIPT = """
Map s = ctx._source;
if (s._tidelog?.parts == null) { s.clear(); s._tidelog = ['parts': [:]]; }
Map m = s._tidelog;
String slot = params.p == '' ? '/' : (params.k == null ? params.p : params.p + '/' + params.k);
long known = m.parts.containsKey(slot) ? ((Number) m.parts.get(slot)).longValue() : 0L;
long v = ((Number) params.v).longValue();
if (Math.abs(known) >= v) { ctx.op = 'none'; return; }
if (params.u && (known <= 0 || known < ((Number) params.f).longValue())) {
  ctx.op = 'none';
  return;
}
if (params.p == '') {
  if (params.d) { for (n in params.n) { s.remove(n); } } else { s.putAll(params.c); }
} else if (params.k == null) {
  if (params.d) { s.remove(params.p); }
  else if (params.u && s.get(params.p) != null) { s.get(params.p).putAll(params.c); }
  else { s.put(params.p, params.c); }
} else {
  List l = s.get(params.p);
  if (l == null) { l = new ArrayList(); s.put(params.p, l); }
  int at = -1;
  for (int i = 0; i < l.size(); ++i) { if (l.get(i)._key == params.k) { at = i; } }
  if (params.d) { if (at >= 0) { l.remove(at); } }
  else {
    Map e = params.c;
    e.put('_key', params.k);
    if (at < 0) { l.add(e); }
    else if (params.u) { l.get(at).putAll(e); }
    else { l.set(at, e); }
  }
}
m.parts.put(slot, params.d ? -v : v);
m.version = m.version == null ? v : Math.max(v, ((Number) m.version).longValue());
long root = m.parts.containsKey('/') ? ((Number) m.parts.get('/')).longValue() : 0L;
m.root = Math.max(root, 0L);
m.deleted = root <= 0L;
boolean live = false;
for (each in m.parts.values()) { if (((Number) each).longValue() > 0L) { live = true; } }
if (live) { m.remove('at'); } else { m.at = params.t; }
"""

# Removes, in all documents, the rows that a truncate or a complete dump of one table removed. p, f,
# n, t as above.
REMOVE_SCRIPT = """
Map s = ctx._source;
Map m = s._tidelog;
if (m?.parts == null) { ctx.op = 'noop'; return; }
long floor = ((Number) params.f).longValue();
boolean any = false;
boolean live = false;
for (e in m.parts.entrySet()) {
  String slot = e.getKey();
  long v = ((Number) e.getValue()).longValue();
  boolean ours = params.p == '' ? slot == '/'
    : (slot == params.p || slot.startsWith(params.p + '/'));
  if (ours && v > 0L && v < floor) {
    e.setValue(-v);
    any = true;
    if (params.p == '') { for (n in params.n) { s.remove(n); } }
    else if (slot == params.p) { s.remove(params.p); }
    else {
      String k = slot.substring(params.p.length() + 1);
      s.get(params.p).removeIf(each -> each._key == k);
    }
  } else if (v > 0L) { live = true; }
}
if (!any) { ctx.op = 'noop'; return; }
long root = m.parts.containsKey('/') ? ((Number) m.parts.get('/')).longValue() : 0L;
m.root = Math.max(root, 0L);
m.deleted = root <= 0L;
if (live) { m.remove('at'); } else { m.at = params.t; }
"""


@dataclass(frozen=True)
class JoinedPart:
    """The part of a document that comes from one table.

    Attributes:
        name: name of its member; "" for the root, whose columns are the document's own.
        key: columns of the table with the root's key, in its order.
        many: whether rows are the elements of a list; else there is one row.
    """

    name: str
    key: tuple[str, ...]
    many: bool


def script_id(script: str) -> str:
    """Return a name that changes with the script."""
    return "tidelog-" + hashlib.sha256(script.encode()).hexdigest()[:16]


def joined_lines(
    table: TargetTable,
    part: JoinedPart,
    rows: pa.RecordBatch,
    *,
    floor: int,
    only: pa.Array,
    at_ms: int,
) -> pa.StringArray:
    """Return the two lines of each row's contribution in a bulk request.

    Args:
        table: the rows' table.
        part: the table's part of the documents.
        rows: keyed rows (see `tidelog.ext.Writer`).
        floor: the table's floor; lower versions are deleted.
        only: bool[n], the row may only update.
        at_ms: now.
    """
    same = {"p": part.name, "f": floor, "n": list(table.columns.names), "t": at_ms}
    opened = {"script": {"id": script_id(JOIN_SCRIPT), "params": same}}
    text = json.dumps(opened, ensure_ascii=False, separators=(",", ":"))[:-3]
    deleted = pc.equal(rows.column(CHANGE_OP), "d")
    keys: str | pa.Array = "null"
    if part.many:
        keys = json_values(ids(rows, table.key))
    return join_texts(
        '{"update":{"_id":',
        json_values(ids(rows, part.key)),
        f',"retry_on_conflict":{_CONFLICTS}}}}}\n{text},"k":',
        keys,
        ',"v":',
        rows.column(CHANGE_VERSION).cast(pa.string()),
        ',"d":',
        pc.if_else(deleted, "true", "false"),
        ',"u":',
        pc.if_else(pc.and_not(only, deleted), "true", "false"),
        ',"c":',
        pc.if_else(deleted, "{}", _known_columns(rows, table.columns.names)),
        '}},"scripted_upsert":true,"upsert":{}}\n',
    )


def _known_columns(rows: pa.RecordBatch, names: Sequence[str]) -> pa.StringArray:
    """Return each row as a JSON object of the columns that the log has."""
    texts = [json_texts(rows.column(name)) for name in names]
    labels = [json.dumps(name, ensure_ascii=False) + ":" for name in names]
    pieces: list[str | pa.Array] = []
    for number, (label, text) in enumerate(zip(labels, texts, strict=True)):
        pieces += [("," if number else "{") + label, text]
    whole = join_texts(*pieces, "}")
    partial = rows.column(CHANGE_MISSING).is_valid()
    if not partial.true_count:
        return whole
    spelled = []
    for number in np.flatnonzero(partial.to_numpy(zero_copy_only=False)).tolist():
        absent = set(rows.column(CHANGE_MISSING)[number].as_py())
        members = [
            label + (text[number].as_py() or "null")
            for name, label, text in zip(names, labels, texts, strict=True)
            if name not in absent
        ]
        spelled.append("{" + ",".join(members) + "}")
    return pc.replace_with_mask(whole, partial, pa.array(spelled, pa.string()))


def joined_properties(part: JoinedPart, columns: dict[str, Any]) -> dict[str, Any]:
    """Return the mapping of a table's columns, at their place in the document."""
    if not part.name:
        return columns
    if part.many:
        inner = {KEY: {"type": "keyword"}} | columns
        return {part.name: {"type": "nested", "properties": inner}}
    return {part.name: {"properties": columns}}
