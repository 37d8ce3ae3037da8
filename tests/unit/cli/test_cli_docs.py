"""The docs keep step with the code: errors, links, examples, generated pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tidelog import errors
from tidelog.app.sources.first_config import PASSWORD
from tidelog.config import parse_config

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Written by others' hands later, or not at all; a link to them may dangle in a partial checkout.
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

ENVIRONMENT = {
    "PGPASSWORD": "x", "MYSQL_PASSWORD": "x", "TIDELOG_TOKEN": "of-8-chars", "HOSTNAME": "db1",
    "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
}  # fmt: skip
"""What the pages take from it."""


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_every_error_has_its_place_on_the_failure_page() -> None:
    names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TidelogError)
    }
    described = anchors(ROOT / "docs" / "failure-modes.md")
    assert {name for name in names if name.lower() not in described} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_configurations_in_the_docs_are_valid(page: Path, tmp_path: Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        if "source" in yaml.safe_load(block):
            parse_config(block, str(page), tmp_path, ENVIRONMENT)


def test_the_quick_start_of_the_readme_exports_what_init_leaves_out() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.partition("$ tidelog init ")[2].partition("```")[0]
    assert re.findall(r"^\$ export (\w+)=", block, re.MULTILINE) == [PASSWORD]


def test_reference_pages_are_current() -> None:
    command = [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


STORES = {
    "local disk": "a", "NFS, CephFS": "a", "S3": "s3://bucket/a", "GCS": "gs://bucket/a",
    "Azure": "abfss://box@account.dfs.core.windows.net/a", "HDFS": "hdfs://name/a",
}  # fmt: skip
PARTS = {
    "event log": "log: {path: 'PLACE'}",
    "state `log:`": "log: {path: 'PLACE'}\nstate: {url: 'log:'}",
    "checkpoint": "log: {path: log}\npipeline: {checkpoint: 'PLACE'}",
    "Delta": "log: {path: log}\noutputs: [{kind: delta, path: 'PLACE'}]",
    "files": "log: {path: log}\noutputs: [{kind: files, path: 'PLACE'}]",
}
TESTS = {
    ("event log", "local disk"): "behaviours/test_eventlog.py",
    ("event log", "S3"): "faults/test_object_store.py",
    ("state `log:`", "S3"): "faults/test_state_stores.py",
    **{("event log", store): "behaviours/test_eventlog.py" for store in ("GCS", "Azure")},
    **{("state `log:`", store): "behaviours/test_state.py" for store in ("GCS", "Azure")},
    **{
        (part, store): "integration/spark/test_each_store.py"
        for part in ("checkpoint", "Delta", "files")
        for store in ("GCS", "Azure")
    },
    **{(part, "HDFS"): "integration/spark/test_each_store.py" for part in ("Delta", "files")},
    ("checkpoint", "local disk"): "unit/state/test_second_document.py",
    ("checkpoint", "S3"): "integration/spark/test_cluster.py",
    ("Delta", "local disk"): "integration/spark/test_delta.py",
    ("Delta", "S3"): "faults/test_delta_on_object_store.py",
    ("files", "local disk"): "integration/spark/test_files_output.py",
    ("files", "S3"): "faults/test_files_on_object_store.py",
}


def stores() -> dict[tuple[str, str], str]:
    """The cells of the table of what may be on which store."""
    page = (ROOT / "docs/how-to/log-on-an-object-store.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\|(.*)\|$", page.partition("on which store:\n")[2], re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")] for line in lines[: 2 + len(PARTS)]]
    heads = rows[0][1:]
    return {
        (row[0], head): cell for row in rows[2:] for head, cell in zip(heads, row[1:], strict=True)
    }


def test_what_is_tested_on_a_store_has_a_test() -> None:
    found = stores()
    assert set(found) == {(part, store) for part in PARTS for store in STORES}
    assert set(found.values()) == {"tested", "by manual", "refused"}
    assert {cell for cell, how in found.items() if how == "tested"} == set(TESTS)
    assert all((ROOT / "tests" / test).exists() for test in TESTS.values())


@pytest.mark.parametrize("part", PARTS)
def test_what_is_refused_on_a_store_is_refused_and_nothing_else(part: str, tmp_path: Path) -> None:
    for store, place in STORES.items():
        text = f"source: {{kind: postgres, url: 'postgresql://h/d'}}\n{PARTS[part]}\n"
        text = text.replace("PLACE", place)
        if stores()[part, store] != "refused":
            parse_config(text, "tidelog.yaml", tmp_path, {})
            continue
        with pytest.raises(errors.ConfigError) as caught:
            parse_config(text, "tidelog.yaml", tmp_path, {})
        if store == "HDFS":
            assert "HDFS has no conditional writes: expected a directory" in str(caught.value)
