"""Options and conditions as people type them."""

from __future__ import annotations

import pytest

from tidelog.control.commands import SetDumpOptions
from tidelog.control.option_texts import parse_conditions, parse_options
from tidelog.errors import UsageError


def test_options_have_units_and_can_be_off() -> None:
    texts = ["chunk_rows=500", "delay=1.5s", "max_lag=64MiB", "max_replica_lag=10s"]
    texts += ["max_select=off", "rows_per_second=off", "parallelism=4", "max_commit_delay=5ms"]
    assert parse_options(texts) == SetDumpOptions(
        chunk_rows=500,
        delay_ms=1500,
        max_lag_bytes=64 << 20,
        max_replica_lag_ms=10_000,
        max_select_ms=0,
        rows_per_second=0,
        parallelism=4,
        max_commit_delay_ms=5,
    )
    assert parse_options(["delay_ms=7", "max_lag_bytes=5"]) == SetDumpOptions(
        delay_ms=7, max_lag_bytes=5
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("chunk_rows", "is not NAME=VALUE"),
        ("speed=9", "is no option; there are chunk_rows, .*max_select"),
        ("delay=soon", "delay: expected a duration"),
        ("max_lag=much", "max_lag: expected a size"),
        ("chunk_rows=many", "chunk_rows: expected a whole number"),
        ("parallelism=0", "parallelism"),
        ("parallelism=65", "parallelism"),
    ],
)
def test_bad_option_is_named(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        parse_options([text])


def test_conditions_by_table() -> None:
    texts = ["public.a=x = 1", "public.b=y >= 'a=b'"]
    assert parse_conditions(texts) == {"public.a": "x = 1", "public.b": "y >= 'a=b'"}
    for bad in (["public.a"], ["public.a="], ["public.a=x", "public.a=y"]):
        with pytest.raises(UsageError, match="--condition"):
            parse_conditions(bad)
