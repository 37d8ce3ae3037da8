"""Options and conditions as people type them."""

from __future__ import annotations

import pytest
from typer.main import get_command

from tidelog import cli
from tidelog.config import Config
from tidelog.control.commands import (
    SetDumpOptions,
    build_command,
    parse_conditions,
    parse_options,
    typed_name,
)
from tidelog.errors import UsageError
from tidelog.model.dump_options import RunTimeOptions


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
        ("speed=9", "is not an option; there are chunk_rows, .*max_select"),
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


def test_help_of_set_names_every_option() -> None:
    options = RunTimeOptions.model_fields
    listed = ", ".join(
        f"{typed_name(name)} ({option.examples[0]})" if option.examples else typed_name(name)
        for name, option in options.items()
    )
    [argument] = [a for a in get_command(cli.app).commands["set"].params if a.name == "options"]  # type: ignore[attr-defined]
    assert argument.help == f"{listed}; off is 0."


def test_configuration_and_command_have_the_same_options() -> None:
    """One list, from which the configuration takes defaults and the command what may change."""
    fields = Config.model_fields["dump"].annotation.model_fields  # type: ignore[union-attr]
    for name, option in RunTimeOptions.model_fields.items():
        assert (fields[name].default, fields[name].metadata) == (option.default, option.metadata)
        assert SetDumpOptions.model_fields[name].metadata == option.metadata
    assert set(SetDumpOptions.model_fields) == set(RunTimeOptions.model_fields)


def test_null_changes_nothing() -> None:
    """As clients send it that write every field of theirs."""
    command = build_command(SetDumpOptions, {"delay_ms": None, "chunk_rows": 5})
    assert command.to_json() == {"type": "set-dump-options", "data": {"chunk_rows": 5}}
    assert repr(command) == "SetDumpOptions(chunk_rows=5)"


def test_default_that_is_given_is_a_change() -> None:
    assert parse_options(["parallelism=1"]).changes == {"parallelism": 1}
