"""The page's own files, and the headers of all its answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from tidelog.system.version import __version__

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "md": "text/markdown; charset=utf-8",
}
_HELP: Final = "failure-modes.md"
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page, as it is sent."""

    body: bytes
    media_type: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """Read all files, by name; requests are looked up among them, never on disk."""
    files = {}
    for entry in _entries():
        media_type = _TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            body = entry.read_bytes()
            digest = hashlib.sha256(__version__.encode() + body).hexdigest()[:20]
            files[entry.name] = PageFile(body, media_type, f'"{digest}"')
    return files


def _entries() -> Iterator[Traversable]:
    yield from (resources.files("tidelog.app.web") / "static").iterdir()
    in_clone = Path(__file__).parents[4] / "docs" / _HELP
    if in_clone.is_file():  # in a wheel it is beside the others
        yield in_clone
