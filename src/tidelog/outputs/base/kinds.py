"""What Tidelog's own kinds of outputs have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tidelog.errors import MissingExtraError
from tidelog.outputs.base.sections import OutputSection
from tidelog.ports import Output, OutputContext, OutputPlace

S = TypeVar("S", bound=OutputSection)

# A missing module → the pip extra that holds it.
_EXTRAS: Mapping[str, str] = {
    "confluent_kafka": "kafka",
    "httpx": "http",
    "opensearchpy": "opensearch",
    "pymysql": "mysql",
    "pyspark": "spark",
}

_PORT = re.compile(r":\d+$")


@dataclass(frozen=True)
class OwnKind(Generic[S]):
    """`tidelog.ports.OutputKind` of functions. ``make`` imports its adapter when it is called."""

    section: type[S]
    make: Callable[[S, OutputContext], Output]
    where: Callable[[S], OutputPlace]

    def open(self, section: S, context: OutputContext) -> Output:
        try:
            return self.make(section, context)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing in _EXTRAS:
                raise MissingExtraError(missing, _EXTRAS[missing]) from error
            raise

    def place(self, section: S) -> OutputPlace:
        return self.where(section)


def directory(path: str) -> str:
    """The path or URL of a directory, alike however it is written."""
    return path.rstrip("/") if "://" in path else str(Path(path).resolve())


def hosts(text: str, port: int) -> tuple[str, ...]:
    """Hosts separated by commas, with ``port`` where none is named."""
    found = [each.strip().lower() for each in text.split(",")]
    return tuple(sorted(each if _PORT.search(each) else f"{each}:{port}" for each in found))
