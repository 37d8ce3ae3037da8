"""Documents of several tables: the rows of one, and the rows of others that belong to them.

Each contribution has a version of its own, kept in the document, also a deleted one; a script on
the cluster compares and replaces one contribution, and does not change the others. So tables, and
sources, may write in any order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.outputs.opensearch import documents
from tidelog.outputs.opensearch.documents import META_MAPPING
from tidelog.ports import TargetTable
from tidelog.spark.formats.envelope import join_texts, json_values
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION

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
SCRIPT = """
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
    """Returns a name that changes with the script."""
    return "tidelog-" + hashlib.sha256(script.encode()).hexdigest()[:16]


def lines(
    table: TargetTable,
    part: JoinedPart,
    rows: pa.RecordBatch,
    *,
    floor: int,
    only: pa.Array,
    at_ms: int,
) -> pa.StringArray:
    """Returns the two lines of each row's contribution in a bulk request.

    Args:
        table: the rows' table.
        part: the table's part of the documents.
        rows: keyed rows (see `tidelog.outputs.Writer`).
        floor: the table's floor; lower versions are deleted.
        only: bool[n], the row may only update.
        at_ms: now.
    """
    same = {"p": part.name, "f": floor, "n": list(table.columns.names), "t": at_ms}
    opened = {"script": {"id": script_id(SCRIPT), "params": same}}
    text = json.dumps(opened, ensure_ascii=False, separators=(",", ":"))[:-3]
    deleted = pc.equal(rows.column(CHANGE_OP), "d")
    keys: str | pa.Array = "null"
    if part.many:
        keys = json_values(documents.ids(rows, table.key))
    return join_texts(
        '{"update":{"_id":',
        json_values(documents.ids(rows, part.key)),
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
    """Returns each row as a JSON object of the columns that the log has."""
    texts = [documents.json_texts(rows.column(name)) for name in names]
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


def properties(part: JoinedPart, columns: dict[str, Any]) -> dict[str, Any]:
    """Returns the mapping of a table's columns, at their place in the document."""
    if not part.name:
        return columns
    if part.many:
        inner = {KEY: {"type": "keyword"}} | columns
        return {part.name: {"type": "nested", "properties": inner}}
    return {part.name: {"properties": columns}}
