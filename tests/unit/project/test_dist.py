"""Wheel and sdist: built from what is committed alone, complete, and usable without the clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tidelog import __version__

ROOT = Path(__file__).parents[3]
RELATIVE_LINK = re.compile(r"\]\((?!https?://)[^)]+\)")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [ROOT / "tools" / "dist.sh", out],
        env=os.environ | {"PY": sys.executable},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in out.iterdir())
    assert names == [f"tidelog-{__version__}-py3-none-any.whl", f"tidelog-{__version__}.tar.gz"]
    return out / names[0]


def test_installed_wheel_works_without_the_clone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)  # what pip does with a wheel of pure Python

    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "smoke.py", __version__],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert str(tmp_path / "tidelog") in done.stdout


def test_readme_of_the_package_leads_to_no_page_beside_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        metadata = packed.read(f"tidelog-{__version__}.dist-info/METADATA").decode()

    _, _, readme = metadata.partition("\n\n")
    assert readme.startswith("# Tidelog")
    assert RELATIVE_LINK.findall(readme) == []
    assert "[[1]][d1]" in readme  # links to other hosts are kept
