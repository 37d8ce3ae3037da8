"""The docs as a whole: no link leads nowhere, no page is lost, no paragraph hides in a table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
FRONT = ROOT / "README.md"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
LONGEST_CELL = 120
LONGEST_RECORD = 350  # words
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\]\(([^)\s]+)\)")
DEFINED = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)
USED = re.compile(r"\]\[([^\]]+)\]")
CITED = re.compile(r"(?<![\w/.])docs/[\w/-]+(?:\.\w+)?\b")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: a second heading of one text gets ``-1``."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-")
        number = 0
        while (unique := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(unique)
    return found


def linked(page: Path) -> list[str]:
    text = prose(page)
    return [*INLINE.findall(text), *(target for _, target in DEFINED.findall(text))]


def test_no_link_leads_nowhere() -> None:
    broken = []
    for page in PAGES:
        for target in linked(page):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
        defined = {name for name, _ in DEFINED.findall(prose(page))}
        used = set(USED.findall(prose(page)))
        broken += [f"{page.relative_to(ROOT)}: [{name}]" for name in sorted(defined ^ used)]
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, ahead = {FRONT}, [FRONT]
    while ahead:
        page = ahead.pop()
        for target in linked(page):
            file = (page.parent / target.partition("#")[0]).resolve()
            if "://" not in target and file in PAGES and file not in reached:
                reached.add(file)
                ahead.append(file)
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


def test_no_paragraph_hides_in_a_table() -> None:
    """Links count by their text. `spark-source.md` is generated: a list in the form of a table."""
    long = []
    for page in PAGES:
        for line in prose(page).splitlines() if page.name != "spark-source.md" else ():
            for cell in re.split(r"(?<!\\)\|", line)[1:-1] if line.startswith("|") else ():
                if len(re.sub(r"\]\([^)]*\)", "]", cell.strip())) > LONGEST_CELL:
                    long.append(f"{page.relative_to(ROOT)}: {cell.strip()[:60]}…")
    assert long == []


def test_pages_that_the_code_cites_exist() -> None:
    missing = []
    for folder in ("src", "tools", "benchmarks"):
        for module in sorted((ROOT / folder).rglob("*.py")):
            for cited in CITED.findall(module.read_text(encoding="utf-8")):
                # a record of decisions may be cited by its number: docs/adr/0013
                if not (ROOT / cited).exists() and not list(ROOT.glob(f"{cited}-*.md")):
                    missing.append(f"{module.relative_to(ROOT)}: {cited}")
    assert missing == []


def test_options_that_pages_for_users_of_other_tools_name_exist() -> None:
    schema = json.loads((ROOT / "src/tidelog/config/tidelog.schema.json").read_text())
    sections = set(schema["properties"])
    unknown = []
    for page in ("from-debezium", "from-other-tools"):
        text = (ROOT / f"docs/how-to/{page}.md").read_text(encoding="utf-8")
        rows = [line for line in text.splitlines() if line.startswith(("| ", "- "))]
        for option in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", " ".join(rows)):
            path = option.split(".")
            if path[0] in sections and not has_option(
                schema, schema["properties"][path[0]], path[1:]
            ):
                unknown.append(option)
    assert not unknown


def has_option(schema: dict[str, Any], section: dict[str, Any], path: list[str]) -> bool:
    """Is there such an option in the section, or in one of its kinds?"""
    if not path:
        return True
    if "$ref" in section:
        section = schema["$defs"][section["$ref"].rsplit("/", 1)[1]]
    kinds = [*section.get("anyOf", ()), *section.get("oneOf", ())]
    if "items" in section:
        kinds.append(section["items"])
    inner = section.get("properties", {})
    return any(has_option(schema, kind, path) for kind in kinds) or (
        path[0] in inner and has_option(schema, inner[path[0]], path[1:])
    )


def test_records_of_decisions_are_short() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    words = {
        page.name: sum(bool(word.strip("|-")) for word in page.read_text(encoding="utf-8").split())
        for page in records
    }
    assert {name: count for name, count in words.items() if count > LONGEST_RECORD} == {}


def test_each_record_of_decisions_is_listed_by_its_title() -> None:
    listed = (ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs" / "adr").glob("0*.md")):
        number, title = page.read_text(encoding="utf-8").splitlines()[0][2:].split(". ", 1)
        assert f"- {number}: [{title}]({page.name})" in listed
