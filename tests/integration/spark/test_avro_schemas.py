"""Schemas and messages as Avro's own Java library takes them, which comes with Spark."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED
from tests.unit.spark.avro_rows import CELLS, Told, everything, register

from tidelog.outputs.formatters import formatter
from tidelog.ports import SchemaFormatter

pytestmark = pytest.mark.spark


def parsed(avro: Any, text: str) -> Any:
    return avro.Schema.Parser().parse(text)


@pytest.fixture
def avro(spark: Any) -> Any:
    return spark._jvm.org.apache.avro


@pytest.mark.parametrize("name", ["avro", "avro_flat"])
def test_java_reads_every_type_and_finds_later_schemas_compatible(
    spark: Any, avro: Any, built: BuiltLog, name: str
) -> None:
    schema = register(built, everything())
    built.insert(schema, "1", *(cell[2] for cell in CELLS.values()))
    built.update(schema, "1", *([UNCHANGED] * len(CELLS)))
    built.delete(schema, "1")
    before = Told(built, schema)
    wider = built.table("public.t", {"id": "int64", "small": "int32", "added": "date"})
    built.insert(wider, "2", "3", None)
    after = Told(built, wider)
    made = formatter(name, tombstones=False)
    assert isinstance(made, SchemaFormatter)
    written, read = (parsed(avro, made.schemas(told.table).value) for told in (before, after))
    compatibility = avro.SchemaCompatibility.checkReaderWriterCompatibility(read, written)
    assert str(compatibility.getType()) == "COMPATIBLE"
    for reader in (written, read):
        found = []
        for message in made.format(before.table, before.events[0]).column("value").to_pylist():
            decoder = avro.io.DecoderFactory.get().binaryDecoder(bytearray(message[5:]), None)
            record = avro.generic.GenericDatumReader(written, reader).read(None, decoder)
            assert decoder.isEnd()
            found.append(record)
        row = found[0].get("after") if name == "avro" else found[0]
        assert row.get("id") == 1
        assert row.get("small") == -7
    assert row.get("added") is None
