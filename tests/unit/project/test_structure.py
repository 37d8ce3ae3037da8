"""The rooms of the code stay as docs/explanation/architecture.md describes them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

SRC = Path(__file__).parents[3] / "src"
PACKAGE = "tidelog"
MOST_LINES = 800
MOST_IN_A_FOLDER = 24
MOST_ARROWS = 110
# The whole package. What is added takes the place of something; lower a bound where you can.
MOST_SOURCE_LINES = 130_000
MOST_IMPORT_LINES = 8_500
MOST_MODULES = 485
# Places that belong to one database, and the registries. The rest of the code asks a `WireFormat`,
# `SourceBlocks`, a section or a `SourceKind`.
OF_DATABASES = (
    "app.sources", "codecs.mysql", "codecs.postgres", "config.source", "demo",
    "kinds.adapters", "outputs.database.config", "outputs.database.mysql",
    "outputs.database.postgres", "sources.mysql", "sources.postgres",
    "state.postgres", "system.extras",
)  # fmt: skip
DATABASES = ("postgres", "postgresql", "mysql", "mariadb", "pgoutput", "binlog")
FACADES = ("", "commands", "ext")  # give names of other rooms to programs


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


TREES = {
    module_of(path): ast.parse(path.read_text(encoding="utf-8"))
    for path in (SRC / PACKAGE).rglob("*.py")
}


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules of ours that a module imports, wherever it does so."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in TREES)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if (found := inner if inner in TREES else node.module) in TREES:
                    yield found


IMPORTS = {module: set(imported(tree)) for module, tree in TREES.items()}


def room(module: str) -> str:
    """A folder below the package, or a module beside them."""
    return [*module.split("."), ""][1]


def test_no_query_calls_md5_which_servers_in_fips_mode_lack() -> None:
    called = {
        module
        for module, tree in TREES.items()
        if not module.startswith(f"{PACKAGE}.demo.")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and "md5(" in str(node.value).lower()
    }
    assert not called


def test_no_module_imports_itself_in_a_circle() -> None:
    TopologicalSorter(IMPORTS).prepare()  # raises CycleError, which names the circle


def test_rooms_are_joined_by_few_arrows() -> None:
    arrows = {(room(a), room(b)) for a, found in IMPORTS.items() for b in found}
    arrows = {(a, b) for a, b in arrows if a not in FACADES}
    assert len({(a, b) for a, b in arrows if a != b}) <= MOST_ARROWS


def folder(module: str) -> str:
    """The folder of a module, no deeper than two levels below the package."""
    is_folder = (SRC.joinpath(*module.split(".")) / "__init__.py").exists()
    return ".".join((module if is_folder else module.rpartition(".")[0]).split(".")[1:3])


def test_no_two_folders_import_each_other() -> None:
    arrows = {(folder(a), folder(b)) for a, found in IMPORTS.items() for b in found}
    pairs = {(a, b) for a, b in arrows if "" < a < b and (b, a) in arrows}
    assert sorted(pairs) == []


def test_modules_and_folders_stay_small() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in SRC.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}
    folders = Counter(path.parent for path in lines if path.name != "__init__.py")
    assert {folder: count for folder, count in folders.items() if count > MOST_IN_A_FOLDER} == {}


def test_the_package_does_not_grow() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in SRC.rglob("*.py"))
    imports = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    assert lines <= MOST_SOURCE_LINES
    assert imports <= MOST_IMPORT_LINES
    assert len(TREES) <= MOST_MODULES


def test_a_class_name_means_one_thing() -> None:
    names = Counter(
        node.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_databases_are_named_by_their_own_folders_and_the_registries() -> None:
    named = set()
    for module, tree in TREES.items():
        if any(f"{module}.".startswith(f"{PACKAGE}.{place}.") for place in OF_DATABASES):
            continue
        for node in ast.walk(tree):
            literal = isinstance(node, ast.Constant) and str(node.value).lower() in DATABASES
            if literal or any(set(found.split(".")) & set(DATABASES) for found in _names(node)):
                named.add(f"{module}:{node.lineno}")  # type: ignore[attr-defined]
    assert named == set()


def _names(node: ast.AST) -> Iterator[str]:
    """The modules that a node imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
