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


def test_names_and_modules_of_tests_have_plain_words(tmp_path: Path) -> None:
    assert [*plain_words.in_tests(plain_words.TESTS)] == []
    (tmp_path / "test_a.py").write_text('"""It goes on."""\n\ndef test_who_is_told():\n    pass\n')
    places = [place.split(": ")[0] for place in plain_words.in_tests(tmp_path)]
    assert places == ["test_a.py:1", "test_a.py"]


def test_each_kind_of_place_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""Who is told."""\n\n\ndef looked():  # begun anew\n    pass\n\n\n'
        "GOES_ON = 3\n\n\ndef f(told):\n    raise E(f'{told} was altered meanwhile')\n\n\n"
        "thread = Thread(name='tidelog-web-look')\n"
    )
    (tmp_path / "b.js").write_text("const a = 1;\nsteer(a);\n")
    places = [place.split(": ")[0] for place in plain_words.found(tmp_path)]
    assert sorted(places) == sorted(
        ["b.js:2", "a.py:1", "a.py:4", "a.py:4", "a.py:8", "a.py:11", "a.py:12", "a.py:15"]
    )
