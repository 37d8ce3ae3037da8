"""What programs may import: it is there, typed, documented, and all that the docs import."""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from types import FunctionType

import pytest
from tests.left_out import SAID

import tidelog
import tidelog.commands
import tidelog.errors
import tidelog.ext
import tidelog.results
import tidelog.spark
import tidelog.testing

ROOT = Path(__file__).parents[3]
PUBLIC = {
    "tidelog": set(tidelog.__all__),
    "tidelog.commands": set(tidelog.commands.__all__),
    "tidelog.ext": set(tidelog.ext.__all__),
    "tidelog.spark": set(tidelog.spark.__all__),
    "tidelog.testing": set(tidelog.testing.__all__),
    "tidelog.errors": set(vars(tidelog.errors)),
    "tidelog.results": set(vars(tidelog.results)),
}
SUBMODULES = {"commands", "errors", "ext", "results", "spark"}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("module", [tidelog, tidelog.commands, tidelog.ext, tidelog.spark])
def test_names_are_the_same_at_run_time_and_for_type_checkers(module: object) -> None:
    source = Path(str(getattr(module, "__file__", "")))
    (typed,) = (node for node in ast.parse(source.read_text()).body if isinstance(node, ast.If))
    told = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in typed.body
        if isinstance(node, ast.ImportFrom) and node.module != "tidelog"
        for alias in node.names
    }
    lazy = {
        name: (place, name) if isinstance(place, str) else place
        for name, place in vars(module)["_LAZY"].items()
    }
    assert told == lazy
    assert set(vars(module)["__all__"]) - told.keys() <= SUBMODULES | {"__version__"}
    for name in vars(module)["__all__"]:
        assert getattr(module, name) is not None
        value = getattr(module, name)
        if isinstance(value, type | FunctionType):
            assert value.__module__ in (vars(module)["__name__"], "tidelog.errors")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = module.nonsense  # type: ignore[attr-defined]


def test_no_name_is_hidden_by_a_module_of_the_same_name() -> None:
    """Importing ``tidelog.x`` anywhere makes ``tidelog.x`` that module."""
    modules = {module.name for module in pkgutil.iter_modules(tidelog.__path__)}
    assert modules & PUBLIC["tidelog"] == SUBMODULES


def test_the_help_of_tidelog_is_read_in_five_screens() -> None:
    code = "import tidelog; help(tidelog)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) <= 250
    listed = done.stdout.partition("PACKAGE CONTENTS")[0]
    for name in PUBLIC["tidelog"] - {"__version__"}:
        assert re.search(rf"\b{name}\b", listed), name


def test_importing_tidelog_loads_next_to_nothing() -> None:
    code = "import sys, tidelog; print(*sorted(n.split('.')[0] for n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pyspark", "pyarrow", "numpy", "psycopg", "pydantic"} & set(done.stdout.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_import_only_what_is_public(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidelog"):
                names = {alias.name for alias in node.names}
                assert names <= PUBLIC.get(node.module or "", set()), ast.unparse(node)
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names if alias.name.startswith("tidelog")}
                assert names <= PUBLIC.keys(), ast.unparse(node)


def test_every_public_name_is_on_its_page() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    modules = PUBLIC.keys() - {"tidelog.errors", "tidelog.results"}
    for name in set.union(*(PUBLIC[name] for name in modules)) - {"__version__"}:
        assert f"`{name}`" in page, name


PROJECT = """\
# The program of a user.

from contextlib import aclosing

import tidelog
from pyspark.sql import DataFrame, SparkSession
from tidelog import Capture, Config, CaptureGroup
from tidelog.commands import StartDump, Outcome
from tidelog.ext import Rejection, Writer
from tidelog.errors import ConfigError
from tidelog.results import Verification
from tidelog.spark import as_of


def captured(path: str) -> Outcome | None:
    try:
        config: Config = tidelog.load_config(path)
    except ConfigError:
        raise
    capture = Capture(config, on_notification=lambda told: print(told.type), on_status=print)
    capture.run()
    tidelog.Pipeline(config, once=True, on_status=print).run()
    with CaptureGroup([path], pipelines=False) as engine:
        engine.wait()
    found: Verification = tidelog.verify_outputs(config)
    print(tidelog.status(path).overview.problems[0].remedy, found.tables[0].different)
    return capture.send(StartDump(dump_id="d", tables=("public.*",)), timeout_s=1)


def then(spark: SparkSession, log: str) -> DataFrame:
    tidelog.spark.register(spark)
    return as_of(spark, log, version=5).table("public.t")


async def follow(engine: tidelog.AsyncEngine) -> None:
    async with aclosing(aiter(engine.events())) as events:
        async for event in events:
            print(event.after)


class Mine(Writer):
    def open(self, task: tidelog.ext.WriteTask) -> None:
        reveal_type(task.start)

    def commit(self) -> list[Rejection]:
        return []


reveal_type(tidelog.Capture)
reveal_type(tidelog.repair)
reveal_type(as_of)
tidelog.nonsense
Capture(5)
tidelog.load_config(5)
tidelog.AsyncEngine("tidelog.yaml", consumer=print, order="key", batch_size="many")
"""
FOUND = """\
43: note: Revealed type is "int"
49: note: Revealed type is "def (config: tidelog.config.models.Config | typing.Mapping[str, Any]
50: note: Revealed type is "def (df: pyspark.sql.dataframe.DataFrame,
51: note: Revealed type is "def (spark: pyspark.sql.session.SparkSession,
52: error: Module has no attribute "nonsense"
53: error: Argument 1 to "Capture" has incompatible type "int"
54: error: Argument 1 to "load_config" has incompatible type "int"
55: error: Argument "batch_size" to "AsyncEngine" has incompatible type "str"
"""
ERRORS = {int(line.split(":")[0]) for line in FOUND.splitlines() if " error: " in line}


def installed(directory: Path) -> str:
    """The Python of an environment that has the wheel, and otherwise what this one has."""
    wheels = directory / "wheels"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    venv.create(directory / "env", with_pip=False)
    (site,) = (directory / "env").glob("lib/python*/site-packages")
    (wheel,) = wheels.glob("tidelog-*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others))
    return str(directory / "env" / "bin" / "python")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A user's project, and the Python that it runs with."""
    directory = tmp_path_factory.mktemp("outside")
    project = directory / "project"
    project.mkdir()
    (project / "program.py").write_text(PROJECT)
    return project, installed(directory)


ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.mark.slow
def test_a_project_of_a_user_is_checked_by_mypy_against_the_wheel(
    project: tuple[Path, str],
) -> None:
    directory, python = project
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "program.py"),
            *("--cache-dir", os.devnull, "--python-executable", python),
        ],
        cwd=directory,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    said = [line.removeprefix("program.py:") for line in done.stdout.splitlines()]
    assert len(said) == len(FOUND.splitlines()) + 1, done.stdout + done.stderr
    for line, expected in zip(said, FOUND.splitlines(), strict=False):
        assert line.startswith(expected), done.stdout


@pytest.mark.slow
def test_a_project_of_a_user_is_checked_by_pyright_against_the_wheel(
    project: tuple[Path, str],
) -> None:
    if shutil.which("node") is None:
        pytest.skip(f"{SAID}node, for pyright")
    directory, python = project
    (directory / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, "program.py"],
        cwd=directory,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    found = {
        each["range"]["start"]["line"] + 1: each["message"]
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] != "information"
    }
    assert found.keys() == ERRORS, found


@pytest.mark.slow
def test_the_wheel_has_its_jar(project: tuple[Path, str]) -> None:
    directory, python = project
    jar = "from tidelog.spark import s3_log_store_jar as jar; print(jar())"
    done = subprocess.run(
        [python, "-c", jar], cwd=directory, env=ENVIRONMENT, capture_output=True, text=True
    )
    path = Path(done.stdout.strip())
    assert path.is_relative_to(directory.parent), done.stderr  # not the one beside the source
    assert path.is_file()
