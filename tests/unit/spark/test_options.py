import pytest

from tidelog.errors import ConfigError
from tidelog.eventlog.reader import SegmentRef
from tidelog.model.schema import TableName
from tidelog.spark.datasource.options import PlannedRefs, SourceOptions


def test_the_shape_follows_the_table() -> None:
    assert SourceOptions.parse({"path": "x"}).shape == "envelope"
    typed = SourceOptions.parse({"path": "x", "table": "public.orders"})
    assert typed.shape == "typed"
    assert typed.tables == (TableName("public", "orders"),)


def test_names_of_options_ignore_case_and_sizes_have_units() -> None:
    options = SourceOptions.parse({"path": "x", "maxBytesPerTrigger": "3m", "PARTITIONS": "4"})
    assert options.max_bytes == 3 << 20
    assert options.partitions == 4
    as_in_yaml = SourceOptions.parse({"path": "x", "maxBytesPerTrigger": "10MiB"})
    assert as_in_yaml.max_bytes == 10 << 20


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "'path'"),
        ({"path": "x", "shap": "raw"}, "unknown option 'shap'"),
        ({"path": "x", "shape": "json"}, "not one of typed, events, envelope, variant, raw"),
        ({"path": "x", "table": "orders"}, "must be namespace.name"),
        ({"path": "x", "shape": "raw", "columns": "a"}, "does not fit shape 'raw'"),
        ({"path": "x", "maxBytesPerTrigger": "lots"}, "must be a number"),
        ({"path": "x", "before": "maybe"}, "must be true or false"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SourceOptions.parse(given)


def test_planned_refs_travel_as_an_option() -> None:
    refs = PlannedRefs("g", (SegmentRef(1, 9, "n.arrow", 2, "nonce", "log", 3, 8),))
    parsed = SourceOptions.parse({"path": "x", "refs": refs.to_option()}).refs
    assert parsed == refs
