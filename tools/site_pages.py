"""MkDocs hooks: a page of the public Python API, and links to files that are not pages as plain text."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_API = "reference/api.md"
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
    """Write links that leave the folder of the docs as their text: the site has no such files."""
    depth = len(PurePosixPath(page.file.src_uri).parent.parts)

    def plain(link: re.Match[str]) -> str:
        return link[1] if link[2].count("../") > depth else link[0]

    return _LINK.sub(plain, markdown)
