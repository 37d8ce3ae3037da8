"""MkDocs hooks: the public Python API, the index of failures, and links to files that are no pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

sys.path.append(str(Path(__file__).parents[1]))
from tools.failure_index import with_index

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_API = "reference/api.md"
_FAILURES = "failure-modes.md"
_MODULES = (
    "tidelog",
    "tidelog.commands",
    "tidelog.spark",
    "tidelog.ext",
    "tidelog.testing",
    "tidelog.errors",
)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of the API, which mkdocstrings fills from docstrings."""
    text = "# Python API\n\n" + "\n\n".join(f"::: {module}" for module in _MODULES) + "\n"
    files.append(File.generated(config, _API, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add the index of failures; write links that leave the folder of the docs as their text."""
    if page.file.src_uri == _FAILURES:
        markdown = with_index(markdown)
    depth = len(PurePosixPath(page.file.src_uri).parent.parts)

    def plain(link: re.Match[str]) -> str:
        return link[1] if link[2].count("../") > depth else link[0]

    return _LINK.sub(plain, markdown)
