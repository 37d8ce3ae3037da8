"""A YAML file as plain data that remembers the line of each value, with ``${NAME}`` filled in.

Variables are filled in after parsing, so that no value can change the file's structure.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import yaml

from tidelog.errors import ConfigError

Path = tuple[str | int, ...]

# ${NAME} must be set, ${NAME:-default} need not be, $${ is a literal ${.
_VARIABLE = re.compile(r"(\$\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|(\$\{)")
_USER_INFO = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/]*@")


@dataclass(slots=True)
class MarkedData:
    """What a file says, and where.

    Attributes:
        data: mappings, lists and scalars.
        lines: 1-based line of each value by its path; a mapping's value has the line of its key.
        interpolated: paths whose text came from a variable, and may be secret.
    """

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    interpolated: set[Path] = field(default_factory=set)

    def line(self, path: Path) -> int:
        """The line of ``path``, or of the nearest part of it that the file has."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(text: str, file_name: str, environ: Mapping[str, str]) -> MarkedData:
    """Parse ``text`` and fill in variables from ``environ``.

    Raises:
        ConfigError: a syntax error, a key given twice, a variable that is not set; each with
            ``file_name`` and line. Missing variables are all named at once.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        reader = _Reader(loader, file_name, environ)
        if node is not None:
            reader.marked.data = reader.read(node, (), ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file_name}:{mark.line + 1}" if mark else file_name
        raise ConfigError(f"{where}: not valid YAML: {_yaml_problem(error)}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file_name}: not valid YAML: {error}") from None
    finally:
        loader.dispose()
    if reader.problems:
        raise ConfigError("\n".join(reader.problems))
    return reader.marked


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "syntax error"
    return f"{error.context}, {problem}" if error.context else problem


class _Reader:
    def __init__(self, loader: yaml.SafeLoader, file_name: str, environ: Mapping[str, str]) -> None:
        self.loader = loader
        self.file_name = file_name
        self.environ = environ
        self.marked = MarkedData()
        self.problems: list[str] = []

    def read(self, node: yaml.Node, path: Path, parents: tuple[int, ...]) -> Any:
        line = node.start_mark.line + 1
        self.marked.lines.setdefault(path, line)
        if id(node) in parents:
            raise ConfigError(f"{self.file_name}:{line}: an alias refers to what contains it")
        parents = (*parents, id(node))
        if isinstance(node, yaml.MappingNode):
            return {
                key: self.read(value, (*path, key), parents)
                for key, value in self._entries(node, path)
            }
        if isinstance(node, yaml.SequenceNode):
            return [
                self.read(item, (*path, index), parents) for index, item in enumerate(node.value)
            ]
        value = self.loader.construct_object(node, deep=True)
        return self._fill_in(value, path, line) if isinstance(value, str) else value

    def _entries(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, yaml.Node]]:
        seen: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                self.problems.append(f"{self.file_name}:{line}: a key must be a plain word")
            elif key in seen and key != "<<":
                self.problems.append(
                    f"{self.file_name}:{line}: {key!r} is given twice, first on line {seen[key]}"
                )
            else:
                seen[key] = line
        self.loader.flatten_mapping(node)
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                self.marked.lines[(*path, key_node.value)] = key_node.start_mark.line + 1
                yield key_node.value, value_node

    def _fill_in(self, text: str, path: Path, line: int) -> str:
        user_info = _USER_INFO.match(text)
        encode_before = user_info.end() if user_info else 0

        def replacement(match: re.Match[str]) -> str:
            escaped, name, default, malformed = match.group(1, 2, 3, 4)
            if escaped:
                return "${"
            if malformed:
                self.problems.append(
                    f"{self.file_name}:{line}: ${{ does not start a variable; "
                    "write ${NAME} or ${NAME:-default}, or $${ for a literal ${"
                )
                return ""
            value: str | None = self.environ.get(name, default)
            if value is None:
                self.problems.append(
                    f"{self.file_name}:{line}: environment variable {name} is not set; "
                    f"export it, or write ${{{name}:-default}}"
                )
                return ""
            self.marked.interpolated.add(path)
            # A password is put in as it is; in a URL's user:password@ it must be percent-encoded.
            return quote(value, safe="") if match.start() < encode_before else value

        return _VARIABLE.sub(replacement, text)
