"""Downloads pinned and verified artifacts of Maven Central, once, into our own directory.

Used for Delta's jars and for the database servers of tests and demo that are packed in jars.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.errors import UsageError
from tidelog.system.download_progress import report_progress


@dataclass(frozen=True, slots=True)
class Jar:
    """A pinned artifact of Maven Central; ``size`` in bytes, 0: not known before the download."""

    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""
    size: int = 0

    @property
    def file_name(self) -> str:
        of = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{of}.jar"

    @property
    def repository_path(self) -> str:
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"

    def __str__(self) -> str:
        of = f":jar:{self.classifier}" if self.classifier else ""
        return f"{self.group}:{self.artifact}:{self.version}{of}"


def parse_jar_list(text: str) -> tuple[Jar, ...]:
    """Parse a list of jars: ``group:artifact:version`` and SHA-256 a line; ``#``: a comment."""
    jars = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            coordinates, sha256 = line.split()
            group, artifact, version = coordinates.split(":")
            jars.append(Jar(group, artifact, version, sha256))
    return tuple(jars)


_CENTRAL = "https://repo1.maven.org/maven2"
_FETCH_TIMEOUT_S = 300
_POLL_S = 0.2
_PIECE_BYTES = 1 << 18

# Ivy's own default for an m2-compatible "ibiblio" resolver is Maven Central.
_IVY_SETTINGS = """<ivysettings><settings defaultResolver="central"/>
<resolvers><ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>
"""


def cache_directory() -> Path:
    """Return ``$TIDELOG_JARS``, else ``~/.cache/tidelog/jars``."""
    configured = os.environ.get("TIDELOG_JARS")
    return Path(configured) if configured else Path.home() / ".cache" / "tidelog" / "jars"


def fetch(jars: Sequence[Jar], what: str, directory: Path | None = None) -> list[Path]:
    """Return the paths of the jars in the directory; download missing ones.

    Args:
        jars: the jars.
        what: their name in error messages, e.g. "Delta's jars".
        directory: where they are kept; default `cache_directory`.

    The places are tried in this order: ``directory`` (default `cache_directory`); the local Maven
    repository; the Maven repository at ``$TIDELOG_MAVEN_URL``; Maven Central by the Ivy of Spark;
    Maven Central (or the mirror of its settings) by ``mvn``. A jar is used only if its SHA-256 is
    the pinned one.

    Raises UsageError that says what to do without network.
    """
    directory = directory or cache_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{directory}, where {what} are kept, can't be created ({error.strerror}): set "
            "TIDELOG_JARS to a directory that can be written"
        ) from None
    missing = [jar for jar in jars if not _is_valid(directory / jar.file_name, jar)]
    if missing:
        _fetch(missing, what, directory)
    return [directory / jar.file_name for jar in jars]


OnBytes = Callable[[int], None]
"""Called with the number of bytes received."""


def _fetch(missing: list[Jar], what: str, directory: Path) -> None:
    sizes = [jar.size for jar in missing]
    size = sum(sizes) if all(sizes) else None
    failures: list[str] = []
    ways: list[tuple[str, Callable[[list[Jar], Path, OnBytes], None]]] = [
        ("local Maven repository", _from_local_repository),
        ("TIDELOG_MAVEN_URL", _from_url),
        ("Spark's Ivy", _from_ivy),
        ("mvn", _from_mvn),
    ]
    for way, fetch_from in ways:
        if not missing:
            break
        with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as scratch:
            try:
                fetch_from(missing, Path(scratch), lambda come: report_progress(what, come, size))
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                failures.append(f"{way}: {error}")
            for jar in missing:
                fetched = Path(scratch) / jar.file_name
                if not fetched.exists():
                    continue
                if _is_valid(fetched, jar):
                    fetched.replace(directory / jar.file_name)
                else:
                    failures.append(f"{way}: {jar.file_name} has another SHA-256 than pinned")
        missing = [jar for jar in missing if not (directory / jar.file_name).exists()]
    if missing:
        raise UsageError(_manual_steps(what, missing, directory, failures))
    report_progress(what, None, size)


def _is_valid(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


def _from_local_repository(jars: list[Jar], scratch: Path, on_bytes: OnBytes) -> None:
    del on_bytes  # a copy takes no time
    repository = Path.home() / ".m2" / "repository"
    for jar in jars:
        local = repository / jar.repository_path
        if _is_valid(local, jar):
            shutil.copyfile(local, scratch / jar.file_name)


def _from_url(jars: list[Jar], scratch: Path, on_bytes: OnBytes) -> None:
    base = os.environ.get("TIDELOG_MAVEN_URL")
    if not base:
        return
    come = 0
    on_bytes(come)
    for jar in jars:
        url = f"{base.rstrip('/')}/{jar.repository_path}"
        with (
            urllib.request.urlopen(url, timeout=_FETCH_TIMEOUT_S) as response,  # noqa: S310
            (scratch / jar.file_name).open("wb") as file,
        ):
            while piece := response.read(_PIECE_BYTES):
                file.write(piece)
                come += len(piece)
                on_bytes(come)


def _from_ivy(jars: list[Jar], scratch: Path, on_bytes: OnBytes) -> None:
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        return
    ivy = sorted(Path(spark.origin).parent.glob("jars/ivy-*.jar"))
    if not ivy:
        return
    (scratch / "settings.xml").write_text(_IVY_SETTINGS)
    dependencies = "".join(
        f'<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}"'
        f' transitive="false" conf="default->master">{_ivy_artifact(jar)}</dependency>'
        for jar in jars
    )
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="tidelog" module="jars"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    java_home = os.environ.get("JAVA_HOME")
    java = str(Path(java_home) / "bin" / "java") if java_home else "java"
    arguments = [java, "-jar", str(ivy[-1]), "-settings", str(scratch / "settings.xml")]
    arguments += ["-cache", str(scratch / "cache"), "-ivy", str(scratch / "ivy.xml")]
    arguments += ["-retrieve", str(scratch / "[artifact]-[revision](-[classifier]).[ext]")]
    _run(arguments, lambda: on_bytes(_bytes_of((scratch / "cache").rglob("*.jar*"))))


def _ivy_artifact(jar: Jar) -> str:
    if not jar.classifier:
        return ""
    of = f'm:classifier="{jar.classifier}"'
    return f'<artifact name="{jar.artifact}" type="jar" ext="jar" {of}/>'


def _from_mvn(jars: list[Jar], scratch: Path, on_bytes: OnBytes) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        return
    places = [Path.home() / ".m2" / "repository" / jar.repository_path for jar in jars]

    def on_poll() -> None:
        on_bytes(
            _bytes_of(file for place in places for file in place.parent.glob(f"{place.name}*"))
        )

    for jar in jars:
        command = [mvn, "-q", "-B", "dependency:get", f"-Dartifact={jar}", "-Dtransitive=false"]
        _run(command, on_poll)
    _from_local_repository(jars, scratch, on_bytes)


def _bytes_of(files: Iterable[Path]) -> int:
    """Return the bytes of the files, finished or not."""
    total = 0
    for file in files:
        with contextlib.suppress(OSError):  # it was renamed just now
            total += file.stat().st_size if file.suffix in (".jar", ".part") else 0
    return total


def _run(arguments: list[str], on_poll: Callable[[], None], place: Path | None = None) -> None:
    """Run a program to its end, in the directory ``place``.

    ``on_poll`` is called now and then, and may raise an error that ends it.
    """
    deadline = time.monotonic() + _FETCH_TIMEOUT_S
    with subprocess.Popen(  # noqa: S603
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
    ) as process:
        try:
            while True:
                on_poll()
                try:
                    output, errors = process.communicate(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() >= deadline:
                        raise
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        lines = (errors or output).strip().splitlines()
        raise ValueError(f"exit code {process.returncode}: {lines[-1] if lines else 'no output'}")


def _manual_steps(what: str, missing: list[Jar], directory: Path, failures: list[str]) -> str:
    names = "\n".join(f"  {jar}  ({jar.file_name}, sha256 {jar.sha256})" for jar in missing)
    urls = " ".join(f"{_CENTRAL}/{jar.repository_path}" for jar in missing)
    tried = "\n".join(f"  {failure}" for failure in failures) or "  nothing found"
    return (
        f"{what} could not be fetched:\n{names}\ntried:\n{tried}\n"
        "Without network here, fetch them on a machine that has one:\n"
        f"  curl --fail --remote-name-all {urls}\n"
        f"and copy them into {directory}. Or set TIDELOG_JARS to a directory that holds them, or "
        "TIDELOG_MAVEN_URL to a Maven repository that you can reach. Then run the command again."
    )
