"""The command ``init``: asks for source, tables and outputs, and writes a configuration."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidelog.cli import terminal
from tidelog.cli.arguments import Excluded, Tables
from tidelog.cli.terminal import EXIT_INTERRUPTED
from tidelog.errors import TidelogError, UsageError
from tidelog.model.patterns import check_listed, matches, patterns_without_table, unmatched_text
from tidelog.model.units import printable

if TYPE_CHECKING:
    from tidelog.app.sources.first_config import FirstOutput, FirstSource
    from tidelog.model.schema import TableName

Answer = TypeVar("Answer")


def init(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The file to write.")] = Path(
        "tidelog.yaml"
    ),
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="The database; its password may be ${NAME}, from the environment.",
        ),
    ] = None,
    table: Tables = None,
    exclude: Excluded = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="KIND=PLACE",
            help="An output, such as delta=./data/lake; may be repeated.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a first configuration, check it, and print the SQL that the database still needs.

    On a terminal it asks for what no option says; elsewhere all tables go to a Delta lake. Changes
    nothing in the database. Passwords are not written to the file. Exits 2 if capture could not
    start yet, as `tidelog check`; the file is written.
    """
    if config.exists() and not force:
        raise UsageError(f"{config} exists already; name another file, or add --force")
    if url is None and not _can_ask():
        raise UsageError("--url is missing, e.g. postgresql://user:password@host:5432/shop")
    from tidelog.app.sources.first_config import config_text, secrets_of, variables_of

    try:
        source, tables = _ask_source() if url is None else _given_source(url)
        patterns = _choose_tables(source, tables, [*(table or ()), *(exclude or ())])
        outputs = _choose_outputs(source, output)
    except typer.Abort:
        terminal.print_line("\nnothing is written", error=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    try:
        with config.open("w" if force else "x", encoding="utf-8") as file:
            file.write(config_text(source, patterns, outputs))
    except OSError as error:
        raise UsageError(f"{config} can't be written: {error.strerror}") from None
    selected = [each for each in tables or () if matches(patterns, each)]
    found = (
        "correct source.url in it, if it is wrong" if tables is None else _name_schemas(selected)
    )
    terminal.print_line(f"wrote {config}: {found}\n")
    secrets = secrets_of(source, outputs)
    code = _check(config, secrets)
    _print_next(config, variables_of(source, outputs), ready=not code)
    if code:
        raise typer.Exit(code)


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


# ---------------------------------------------------------------- questions


def _ask(question: str, read: Callable[[str], Answer], default: str | None = None) -> Answer:
    """Return what ``read`` makes of the answer; a UsageError of it is shown, and asked again."""

    def checked(text: str) -> Answer:
        try:
            return read(text.strip())
        except UsageError as error:
            raise typer.BadParameter(str(error)) from None

    answer: Answer = typer.prompt(
        question, default=default, show_default=bool(default), value_proc=checked
    )
    return answer


def _ask_password(place: str) -> str:
    """Return the place; if it is a URL with a user alone, with the password that is typed."""
    from tidelog.app.sources.first_config import lacks_password, with_password

    if not lacks_password(place):
        return place
    password = typer.prompt(
        "Its password (not shown; empty: none)", default="", show_default=False, hide_input=True
    )
    return with_password(place, password) if password else place


def _ask_source() -> tuple[FirstSource, list[TableName] | None]:
    """Return the source, and its tables; None: the user keeps a URL that does not answer."""
    from tidelog.app.sources.first_config import read_source, url_forms

    forms = " or ".join(form.replace(":password", "") for form in url_forms())
    terminal.print_sentence(f"The database to capture: {forms}")

    def valid(text: str) -> str:
        read_source(text)
        return text

    while True:
        source, tables = _connect(read_source(_ask_password(_ask("Its URL", valid))))
        if tables is not None or typer.confirm("Write this URL all the same?", default=False):
            return source, tables


def _given_source(url: str) -> tuple[FirstSource, list[TableName] | None]:
    from tidelog.app.sources.first_config import read_source

    try:
        return _connect(read_source(url))
    except UsageError as error:
        raise UsageError(f"--url: {error}") from None


def _connect(source: FirstSource) -> tuple[FirstSource, list[TableName] | None]:
    from tidelog.app.sources.first_config import find_tables

    try:
        return source, find_tables(source)
    except TidelogError as error:
        terminal.print_error(f"the tables can't be listed: {error}")
        return source, None


def _choose_tables(
    source: FirstSource, tables: list[TableName] | None, given: list[str]
) -> list[str]:
    """Return the patterns of the tables to capture."""
    from tidelog.app.sources.first_config import chosen_patterns, default_patterns

    default = default_patterns(source, tables or [])
    if given or not _can_ask():
        return chosen_patterns(given or default, default)
    shown = ", ".join(map(printable, default))

    def read(text: str) -> list[str]:
        if text == shown:
            return default
        patterns = [each.strip() for each in text.split(",")]
        try:
            return chosen_patterns([check_listed(each) for each in patterns], default)
        except ValueError as error:
            raise UsageError(str(error)) from None

    if tables is not None:
        terminal.print_line(f"\nThe database has {_name_schemas(tables)}.")
    question = "Tables to capture, as patterns with commas between; ! in front excludes"
    while True:
        patterns = _ask(question, read, shown)
        unused = patterns_without_table(patterns, tables) if tables else []
        for pattern in unused:
            terminal.print_line(unmatched_text(pattern, "table"))
        if not unused or typer.confirm("Keep it all the same?", default=False):
            return patterns


def _choose_outputs(source: FirstSource, given: list[str] | None) -> list[FirstOutput]:
    from tidelog.app.sources.first_config import example_location, output_kinds, read_output

    kinds = output_kinds()
    usual = next(iter(kinds))
    outputs: list[FirstOutput] = []
    if given or not _can_ask():
        for each in given or [f"{usual}={example_location(usual, [])}"]:
            kind, _, place = each.partition("=")
            try:
                outputs.append(read_output(source, kind, place, outputs))
            except UsageError as error:
                raise UsageError(f"--output: {error}") from None
        return outputs

    def known(kind: str) -> str:
        if kind and kind not in kinds:
            raise UsageError(f"expected {', '.join(kinds)}, not {printable(kind)!r}")
        return kind

    terminal.print_line(f"\nKinds of outputs: {', '.join(kinds)}.")
    kind = _ask("Output", known, usual)
    while kind:
        outputs.append(_ask_output(source, kind, outputs))
        kind = _ask("Another output (empty: no more)", known, "")
    return outputs


def _ask_output(source: FirstSource, kind: str, others: Sequence[FirstOutput]) -> FirstOutput:
    from tidelog.app.sources.first_config import example_location, output_kinds, read_output

    option, example = output_kinds()[kind], example_location(kind, others)

    def valid(text: str) -> str:
        read_output(source, kind, text, others)
        return text

    if option == "path":
        place = _ask("Its path", valid, example)
    else:
        place = _ask(f"Its {option}, such as {example}", valid)
    return read_output(source, kind, _ask_password(place), others)


# ---------------------------------------------------------------- what it has done


def _name_schemas(tables: Sequence[TableName]) -> str:
    """Return the number of tables, and the names of the first schemas."""
    from tidelog.app.sources.first_config import schemas_of

    if not tables:
        return "no tables that this account may see"
    schemas = schemas_of(tables)
    named = ", ".join(
        f"{printable(name)} ({n})" if len(schemas) > 1 else printable(name)
        for name, n in list(schemas.items())[:5]
    )
    more = f" and {len(schemas) - 5} more" if len(schemas) > 5 else ""
    count = "1 table" if len(tables) == 1 else f"{len(tables):,} tables"
    return f"{count} in {named}{more}"


def _check(config: Path, secrets: Mapping[str, str]) -> int:
    """Check the file as `tidelog check` does, print its SQL; returns 0 if capture can start."""
    from tidelog import app
    from tidelog.config import load_config

    try:
        loaded = load_config(config, {**os.environ, **secrets})
        findings, script = app.check_with_script(loaded)
    except TidelogError as error:
        terminal.print_error(str(error))
        return error.exit_code
    documents = [each.to_dict() for each in findings]
    terminal.show_findings([_without_sql(each, script) for each in documents], as_json=False)
    if script:
        terminal.print_line("")
    for line in script:
        terminal.print_line(line)
    return UsageError.exit_code if terminal.any_error(documents) else 0


def _without_sql(finding: Mapping[str, Any], script: Sequence[str]) -> dict[str, Any]:
    """Return the finding, without the fix if the script has it."""
    named = f"-- {printable(finding['check'])}: {printable(finding['message'])}"
    return {**finding, "fix": ""} if named in script else dict(finding)


def _print_next(config: Path, variables: Sequence[str], *, ready: bool) -> None:
    terminal.print_line("\nnext:")
    for name in variables:
        terminal.print_line(f"  export {name}=…   # a secret, which is not in the file")
    file = shlex.quote(str(config))
    if not ready:
        terminal.print_line(f"  tidelog check {file}   # again, when what is marked ✗ is fixed")
    terminal.print_line(f"  tidelog run {file}")
