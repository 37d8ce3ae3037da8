"""Finds words in the code's docstrings, comments, texts and names, in the page's scripts, in names and
modules of tests and in the docs, that have a plainer one.

    python tools/plain_words.py [FOLDER]

Prints each place with the word to use, and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parent.parent / "src" / "tidelog"
DOCS = Path(__file__).parent.parent / "docs"
TESTS = Path(__file__).parent.parent / "tests"
INTERNALS = "internals"  # its pages quote notes of campaigns and descriptions of mutants
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`|\]\([^)\n]*\)", re.MULTILINE | re.DOTALL)
PLAINER = {
    r"told|tells?|telling": "report, log, return, notify",
    r"mend(?:s|ed|ing)?": "fix, repair, remedy",
    r"so long|as long as somebody": "until, while, seconds to wait",
    r"anew": "again, recreated",
    r"who leads|whoever leads": "the leader",
    r"who stands by": "a standby",
    r"goes on|go on from": "continues, resumes at",
    r"meanwhile|in the midst": "during, in the meantime",
    r"bring(?:s|ing)? over|brought": "write, deliver",
    r"(?:became|becomes|come|comes) of it": "result, outcome",
    r"let in": "admitted",
    r"looked at|looks? at|looks? into|look(?:s|ed)? for": "poll, read, check, search",
    r"steer(?:s|ed|ing)?": "control",
    r"flavours?": "flavor",
}
WORDS = [(re.compile(rf"\b(?:{pattern})\b"), use) for pattern, use in PLAINER.items()]
ANY = re.compile(rf"\b(?:{'|'.join(PLAINER)})\b")
# Names of functions, classes and threads.
NAMES = re.compile(
    r"^_?(?:told|mend\w*|look|looks|looked|brought|said|drawn|taken_apart|so_long)$"
    r"|_(?:upto|anew|there|away|behind_it|look|looks)$"
)
THREAD = re.compile(r"tidelog-[a-z-]+\Z")
# Names of tests. Those of sampled variants (`tests/support/samples.py`) decide which ones run.
TEST_NAMES = re.compile(r"_(?:told|goes_on|go_on|in_the_midst|mend|mends|mended|anew)(?:_|$)")
TESTS_OF = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
SAMPLED = ("behaviours/dumps", "behaviours/outputs")


def words(line: str) -> Iterator[str]:
    """Yield each word that has a plainer one, with that."""
    if ANY.search(line):
        for word, use in WORDS:
            if match := word.search(line):
                yield f"{match.group()!r}: say {use}"


def texts(source: str, nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment, docstring and other text, and of each variable's name
    the words.
    """
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, line
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id.lower().replace("_", " ")
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg.replace("_", " ")


def names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each function, class and thread."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Constant) and THREAD.match(str(node.value)):
            yield node.lineno, str(node.value).replace("-", "_")


def moods(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and first word of each function's docstring that is not in the imperative."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or " ").split(maxsplit=1)[0:1]
            if first and first[0].rstrip(",") in ("Returns", "Yields", "Raises"):
                yield node.lineno, first[0]


def in_pages(folder: Path) -> Iterator[str]:
    """Yield a line for each place in the prose of Markdown pages: not in code, not in links."""
    for path in sorted(folder.rglob("*.md")):
        page = path.relative_to(folder)
        if page.parts[0] == INTERNALS:
            continue
        text = CODE.sub(lambda code: "\n" * code[0].count("\n"), path.read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), 1):
            for word in words(line):
                yield f"{page}:{number}: {word}"


def in_tests(folder: Path) -> Iterator[str]:
    """Yield a line for each name of a test and docstring of a module."""
    for path in sorted(folder.rglob("*.py")):
        source, place = path.read_text(encoding="utf-8"), path.relative_to(folder)
        about = source[3:].partition('"""')[0] if source.startswith('"""') else ""
        for number, line in enumerate(about.splitlines(), 1):
            for word in words(line):
                yield f"{place}:{number}: {word}"
        if place.parent.as_posix() not in SAMPLED:
            for test in TESTS_OF.finditer(source):
                if TEST_NAMES.search(test[1]):
                    yield f"{place}: the name {test[1]} has a plainer word"


def found(folder: Path) -> Iterator[str]:
    """Yield a line for each place in Python files and scripts of pages."""
    for path in sorted(folder.rglob("*.js")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for word in words(line):
                yield f"{path.relative_to(folder)}:{number}: {word}"
    for path in sorted(folder.rglob("*.py")):
        source, place = path.read_text(encoding="utf-8"), path.relative_to(folder)
        nodes = [*ast.walk(ast.parse(source))]
        for number, text in texts(source, nodes):
            for word in words(text):
                yield f"{place}:{number}: {word}"
        for number, word in moods(nodes):
            yield f"{place}:{number}: begin with a verb in the imperative, not with {word}"
        for number, name in names(nodes):
            if NAMES.search(name):
                yield f"{place}:{number}: the name {name} does not say what it does or returns"


def main() -> int:
    if len(sys.argv) > 1:
        places = [*found(Path(sys.argv[1]))]
    else:
        places = [*found(SRC), *in_tests(TESTS), *in_pages(DOCS)]
    print(*places, sep="\n")
    return int(bool(places))


if __name__ == "__main__":
    sys.exit(main())
