"""Code and docs say things in plain words (`tools/plain_words.py`)."""

from __future__ import annotations

from pathlib import Path

from tools import plain_words


def test_docstrings_comments_and_names_have_plain_words() -> None:
    assert [*plain_words.found(plain_words.SRC)] == []


def test_pages_have_plain_words() -> None:
    assert [*plain_words.in_pages(plain_words.DOCS)] == []


def test_prose_of_a_page_is_checked_and_its_code_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("`told`\n\n```\nanew\n```\n[a](anew.md) goes on\n")
    assert [place.split(": ")[:2] for place in plain_words.in_pages(tmp_path)] == [
        ["a.md:6", "'goes on'"]
    ]


def test_each_kind_of_place_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""Who is told."""\n\n\ndef looked():  # begun anew\n    pass\n'
    )
    places = [*plain_words.found(tmp_path)]
    assert [place.split(": ")[0] for place in places] == ["a.py:4", "a.py:1", "a.py:4"]
