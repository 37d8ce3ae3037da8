"""`BuiltinKind`, of which each kind of output makes one, and what the functions in it share: probes
and normal forms of locations.

Probes find out for `tidelog check` whether this host can reach a destination; they write nothing.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tidelog.errors import OutputError, OutputRefusedError
from tidelog.model.option_values import is_object_store
from tidelog.outputs.base.sections import FileStoreSection, OutputSection
from tidelog.ports import LogExtent, Output, OutputContext, OutputLocation, TargetTable
from tidelog.system.extras import check_installed, missing_extra

S = TypeVar("S", bound=OutputSection)


@dataclass(frozen=True)
class BuiltinKind(Generic[S]):
    """`tidelog.ports.OutputKind` built from functions.

    ``make``, ``probe_with``, ``names`` and ``idle`` import what they need when they are called.
    ``needs``: a package of an extra that these imports need.
    """

    section: type[S]
    make: Callable[[S, OutputContext], Output]
    location_of: Callable[[S], OutputLocation]
    needs: str | None = None
    probe_with: Callable[[S], str | None] | None = None
    names: Callable[[S, Sequence[TargetTable]], Iterator[str]] | None = None
    idle: Callable[[S, LogExtent], bool] | None = None

    def check_installed(self) -> None:
        """Raise MissingExtraError if `open` would raise it."""
        if self.needs is not None:
            check_installed(self.needs)

    def open(self, section: S, context: OutputContext) -> Output:
        try:
            return self.make(section, context)
        except ModuleNotFoundError as error:
            raise missing_extra(error) or error from error

    def location(self, section: S) -> OutputLocation:
        return self.location_of(section)

    def probe(self, section: S) -> str | None:
        """See `tidelog.ports.ProbedOutputKind`."""
        return None if self.probe_with is None else self.probe_with(section)

    def refused_names(self, section: S, tables: Sequence[TargetTable]) -> Iterator[str]:
        """See `tidelog.ports.NamingOutputKind`."""
        return iter(()) if self.names is None else self.names(section, tables)

    def is_idle(self, section: S, log: LogExtent) -> bool:
        """See `tidelog.ports.IdleOutputKind`."""
        return self.idle is not None and self.idle(section, log)


# Probes.

ANSWER_S = 5.0
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def check_directory_access(path: str) -> str | None:
    """Return what is found in the directory for files, or None for a URL, which only Spark's file
    systems can reach. Raises OutputRefusedError.
    """
    if _URL.match(path):
        return None
    place = existing = Path(path)
    try:
        if place.exists() and not place.is_dir():
            raise OutputRefusedError(f"{path} is not a directory: choose another path")
        while not existing.exists():
            existing = existing.parent
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise OutputRefusedError(f"{path} can't be checked: {why}") from None
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OutputRefusedError(
            f"{existing} can't be written: choose another path, or change its permissions"
        )
    return f"{path} can be written" if place.exists() else f"{path} will be created"


def check_port(host: str, port: int) -> str:
    """Return a message that the port accepts connections. Raises OutputError if it does not."""
    try:
        with socket.create_connection((host, port), timeout=ANSWER_S):
            return f"{host}:{port} accepts connections"
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise OutputError(f"{host}:{port} can't be reached: {why}") from None


def probe_store(section: FileStoreSection) -> str | None:
    """Return what is found at the section's path. Raises OutputError, StorageError."""
    if not is_object_store(section.path):
        return check_directory_access(section.path)
    from tidelog.outputs.base.object_store import ObjectFileStore

    section.provide_options()
    ObjectFileStore(section.path).names("")
    return f"{section.path} can be listed"


# Normal forms of locations.

_PORT = re.compile(r":\d+$")


def normal_directory(path: str) -> str:
    """Return a directory's path or URL in one normal form, with ``s3`` for Hadoop's ``s3a``."""
    if "://" not in path:
        return str(Path(path).resolve())
    scheme, _, rest = path.partition("://")
    return f"{'s3' if scheme == 's3a' else scheme}://{rest.rstrip('/')}"


def normal_hosts(text: str, port: int) -> tuple[str, ...]:
    """Return the hosts of a list separated by commas, with ``port`` where none is given."""
    found = [each.strip().lower() for each in text.split(",")]
    return tuple(sorted(each if _PORT.search(each) else f"{each}:{port}" for each in found))
