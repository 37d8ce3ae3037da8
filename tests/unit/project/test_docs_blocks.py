"""Each block of Python and of a console on the pages is run by a test, or listed here with the
reason why not. Commands of Tidelog are read as the program reads them, wherever they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import typer
from tests.unit.project.test_docs_pages import PAGES, ROOT

from tidelog import cli

RUN: Final = {
    "docs/how-to/cluster.md": "integration/spark/test_cluster.py",
    "docs/how-to/dump-a-table.md": "integration/spark/test_dump_records.py",
    "docs/how-to/embed.md": "integration/test_embed_docs.py",
    "docs/how-to/read-in-spark.md": "integration/spark/test_read_in_spark_docs.py",
    "docs/how-to/two-hosts.md": "faults/test_two_hosts.py",
    "docs/how-to/your-own-output.md": "integration/spark/test_own_output.py",
    "docs/outputs/delta.md": "integration/spark/test_s3_writers.py",
    "examples/activity_log/README.md": "integration/spark/test_activity_log_example.py",
    "examples/auto_cdc/README.md": "integration/spark/test_auto_cdc_example.py",
    "examples/schema_migration/README.md": "integration/spark/test_schema_migration_example.py",
    "examples/search_index/README.md": "integration/opensearch/test_search_index_example.py",
    **dict.fromkeys(
        (
            "README.md", "docs/how-to/extend.md", "docs/how-to/managed-spark.md",
            "docs/how-to/repair.md", "docs/how-to/spark.md", "docs/reference/python.md",
        ),
        "integration/spark/test_docs_programs.py",
    ),
}  # fmt: skip
"""The test that runs what the page has besides commands of Tidelog."""
NOT_RUN: Final = {
    "make": "CI's own steps",
    "pip": "asks a package index",
    "python3": "makes an environment for pip",
    "pre-commit": "asks a package index",
    **dict.fromkeys(("podman", "docker"), "no container engine (make test-container)"),
    **dict.fromkeys(("kubectl", "helm"), "no Kubernetes (make test-chart)"),
    **dict.fromkeys(("useradd", "install", "systemctl", "kill"), "changes the machine"),
    "cp": "needs Airflow",
    "kafka-topics.sh": "Kafka's own program",
    "echo": "for Kafka's own program; its message is read by test_control_docs.py",
    "api": "curl; its requests are read by test_control_docs.py",
    "spark-submit": "a server of Spark Connect, as tests/support/spark_connect.py starts it",
    "python": "reads the table of a run before it",
    "source": "the shell's",
    "export": "the shell's",
}  # fmt: skip
BLOCK: Final = re.compile(r"^ *```(console|python)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
COMMAND: Final = re.compile(r"^ *\w*[$#] (.*)$", re.MULTILINE)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Each with its page."""
    for page in PAGES:
        for found, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if found == language:
                yield str(page.relative_to(ROOT)), text


def commands() -> Iterator[tuple[str, str]]:
    for page, text in blocks("console"):
        for line in COMMAND.findall(text):
            yield page, line


TIDELOG: Final = sorted(
    {
        shlex.join(shlex.split(line.partition(" | ")[0].rstrip(" &"), comments=True)[1:])
        for _, line in commands()
        if line.startswith("tidelog ")
    }
)


@pytest.mark.parametrize("command", TIDELOG)
def test_command_is_understood(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Up to where it would begin."""
    monkeypatch.chdir(tmp_path)
    for word in shlex.split(command):
        if re.fullmatch(r"\w+\.(csv|parquet|json)", word):
            Path(word).touch()
    group = typer.main.get_command(cli.app)
    context = group.make_context("tidelog", shlex.split(command))
    name, found, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    found.make_context(name, rest, parent=context)


def test_each_block_of_python_is_run() -> None:
    assert {page for page, _ in blocks("python")} <= RUN.keys()


def test_each_command_is_run_or_it_is_said_why_not() -> None:
    programs = {(page, Path(re.split(r"[\s(]", line)[0]).name) for page, line in commands()}
    others = {each for each in programs if each[1] != "tidelog" and each[0] not in RUN}
    unknown = {(page, program) for page, program in others if program not in NOT_RUN}
    assert unknown == set()
    assert NOT_RUN.keys() == {program for _, program in others}


def test_what_runs_a_page_names_it() -> None:
    for page, test in RUN.items():
        text = (ROOT / "tests" / test).read_text(encoding="utf-8")
        folder, _, name = page.removesuffix(".md").rpartition("/")
        wanted = folder.rpartition("/")[2] if name == "README" and folder else name
        assert wanted in text, (page, test)
