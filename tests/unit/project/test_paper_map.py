"""The maps, INVARIANTS.md, architecture.md and peers-bugs.md name symbols and tests that exist."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "PAPER_MAP.md").read_text()
SYMBOL = re.compile(r"`(tidelog[\w.]*):([\w.]+)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ORACLE = "tests/e2e/test_history_oracle.py"
"""A run of it for each kind of source has the marker `first`: `make test` runs it."""
INVARIANTS = (ROOT / "docs" / "INVARIANTS.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
ENGINE = (ROOT / "docs" / "explanation" / "async-engine.md").read_text()
PEERS = (ROOT / "docs" / "internals" / "peers-bugs.md").read_text()
ALL = TEXT + INVARIANTS + ARCHITECTURE + ENGINE + PEERS
ENTRY = re.compile(r"^\*\*[^*]+\*\*\n\n- code: .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
ROWS = ENTRY.findall(TEXT) + ENTRY.findall(ENGINE)


@functools.cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=[row[2:50].strip() for row in ROWS])
def test_every_entry_names_a_symbol_and_a_test(row: str) -> None:
    assert SYMBOL.search(row)
    assert TEST.search(row)


def test_no_entry_is_passed_over() -> None:
    assert len(ROWS) == (TEXT + ENGINE).count("\n- code: ") > 60


@pytest.mark.parametrize("step", range(1, 8))
def test_every_step_of_the_algorithm_has_an_entry(step: int) -> None:
    assert any(row.startswith(f"**({step}) ") for row in ROWS)


@pytest.mark.parametrize("number", range(1, 11))
def test_every_invariant_has_a_section_and_a_test_that_says_so(number: int) -> None:
    [section] = re.findall(rf"^## {number}\. .*?(?=^## |\Z)", INVARIANTS, re.MULTILINE | re.DOTALL)
    upheld, named = section.split("\nUpheld by\n")[1].split("\nQuick tests\n")
    quick, tests = named.split("\nTests\n")
    assert SYMBOL.search(upheld)
    assert TEST.search(quick)
    assert TEST.search(tests)
    for path, _name in TEST.findall(quick):
        assert path.startswith(("tests/unit/", "tests/property/")) or path == ORACLE, path
    said = re.compile(rf"[Ii]nvariants? (?:\d+, )*(?:\d+ and )?{number}\b")
    assert any(said.search(path.read_text()) for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize(("module", "name"), sorted(set(SYMBOL.findall(ALL))))
def test_symbol_exists(module: str, name: str) -> None:
    functools.reduce(getattr, name.split("."), importlib.import_module(module))


@pytest.mark.parametrize(("path", "name"), sorted(set(TEST.findall(ALL))))
def test_test_exists(path: str, name: str) -> None:
    assert name in functions_of(path)


def test_every_bug_of_a_peer_names_its_report_and_a_test() -> None:
    entries = re.findall(r"^- .*?(?=^- |^#|\Z)", PEERS, re.MULTILINE | re.DOTALL)
    assert len(entries) >= 40
    for entry in entries:
        assert re.match(r"- \[[^]]+ #\d+\]\(https://github\.com/", entry), entry
        assert TEST.search(entry), entry


def test_a_new_contributor_finds_it_in_two_hops() -> None:
    for question in ("a row superseded", "Kafka's retry", "a lease is lost"):
        [row] = [line for line in ARCHITECTURE.splitlines() if question in line and "|" in line]
        assert SYMBOL.search(row), question


def test_every_mutation_is_used() -> None:
    """A way of breaking a rule that no test is run with proves nothing."""
    directory = "tests/integration/windows"
    tree = ast.parse((ROOT / directory / "mutations.py").read_text())
    mutations = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    used = "".join(path.read_text() for path in (ROOT / directory).glob("test_*.py"))
    assert {name for name in mutations if f"mutations.{name}" not in used} == set()
