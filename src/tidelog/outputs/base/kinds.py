"""Shared by Tidelog's own kinds of outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tidelog.outputs.base.sections import OutputSection
from tidelog.ports import (
    LogExtent,
    Output,
    OutputContext,
    OutputPlace,
    TargetTable,
)
from tidelog.system.extras import check_installed, missing_extra

S = TypeVar("S", bound=OutputSection)

_PORT = re.compile(r":\d+$")


@dataclass(frozen=True)
class BuiltinKind(Generic[S]):
    """`tidelog.ports.OutputKind` built from functions.

    ``make``, ``probe_with``, ``names`` and ``idle`` import what they need when they are called.
    ``needs``: a package of an extra that these imports need.
    """

    section: type[S]
    make: Callable[[S, OutputContext], Output]
    where: Callable[[S], OutputPlace]
    needs: str | None = None
    probe_with: Callable[[S], str | None] | None = None
    names: Callable[[S, Sequence[TargetTable]], Iterator[str]] | None = None
    idle: Callable[[S, LogExtent], bool] | None = None

    def check_installed(self) -> None:
        """Raises MissingExtraError if `open` would raise it."""
        if self.needs is not None:
            check_installed(self.needs)

    def open(self, section: S, context: OutputContext) -> Output:
        try:
            return self.make(section, context)
        except ModuleNotFoundError as error:
            raise missing_extra(error) or error from error

    def place(self, section: S) -> OutputPlace:
        return self.where(section)

    def probe(self, section: S) -> str | None:
        """See `tidelog.ports.ProbedOutputKind`."""
        return None if self.probe_with is None else self.probe_with(section)

    def refused_names(self, section: S, tables: Sequence[TargetTable]) -> Iterator[str]:
        """See `tidelog.ports.NamingOutputKind`."""
        return iter(()) if self.names is None else self.names(section, tables)

    def is_idle(self, section: S, log: LogExtent) -> bool:
        """See `tidelog.ports.IdleOutputKind`."""
        return self.idle is not None and self.idle(section, log)


def directory(path: str) -> str:
    """Returns the path or URL of a directory in one normal form: ``s3a``, Hadoop's name, becomes
    ``s3``.
    """
    if "://" not in path:
        return str(Path(path).resolve())
    scheme, _, rest = path.partition("://")
    return f"{'s3' if scheme == 's3a' else scheme}://{rest.rstrip('/')}"


def hosts(text: str, port: int) -> tuple[str, ...]:
    """Returns the hosts of a list separated by commas, with ``port`` where none is given."""
    found = [each.strip().lower() for each in text.split(",")]
    return tuple(sorted(each if _PORT.search(each) else f"{each}:{port}" for each in found))
