"""The names that docstrings have are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[3] / "src"
NAME = re.compile(r"(?<!`)`(tidelog(?:\.\w+)+)`")


def documented(docstring: str, section: str) -> Iterator[str]:
    """The names that a section such as ``Args`` describes."""
    if f"{section}:" not in docstring:
        return
    found = re.search(rf"^( *){section}:\n((?:\1 +.*\n|\n)+)", f"{docstring}\n", re.MULTILINE)
    for line in found[2].splitlines() if found else ():
        names = re.match(rf"{found[1]}    (\*{{0,2}}\w+(?:, \*{{0,2}}\w+)*): ", line)
        yield from (each.strip(" *") for each in names[1].split(",")) if names else ()


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    of = function.args
    found = [*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg]
    return {each.arg for each in found if each is not None}


def attributes(of: ast.ClassDef) -> set[str]:
    """The names that a class has, or sets in its objects."""
    found = {
        each.attr
        for each in ast.walk(of)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    }
    for each in of.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found.add(each.target.id)
        elif isinstance(each, ast.Assign):
            found |= {name.id for name in each.targets if isinstance(name, ast.Name)}
        elif isinstance(each, ast.FunctionDef):
            found.add(each.name)
            found |= parameters(each) if each.name == "__init__" else set()
    return found


def test_arguments_and_attributes_have_their_names() -> None:
    wrong = []
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node, clean=False) or ""
            names = [*documented(text, "Args"), *documented(text, "Attributes")]
            if not names:
                continue
            known = attributes(node) if isinstance(node, ast.ClassDef) else parameters(node)
            if not known and isinstance(node, ast.ClassDef) and node.bases:
                continue  # its base has them
            wrong += [f"{file.name}: {node.name}: {each}" for each in names if each not in known]
    assert not wrong, "\n".join(wrong)


def module_of(name: str) -> Path | None:
    """The file of a module of this name."""
    path = SOURCES.joinpath(*name.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((each for each in found if each.exists()), None)


def exists(name: str) -> bool:
    """Is it a module, or does the module that the name begins with have the next word?"""
    last = ""
    while (module := module_of(name)) is None:
        name, _, last = name.rpartition(".")
    return not last or re.search(rf"\b{last}\b", module.read_text(encoding="utf-8")) is not None


def test_names_of_this_package_exist() -> None:
    wrong = {
        f"{file.name}: {name}"
        for file in SOURCES.rglob("*.py")
        for name in set(NAME.findall(file.read_text(encoding="utf-8")))
        if not exists(name)
    }
    assert not wrong, "\n".join(wrong)
