"""Downloads pinned and verified artifacts of Maven Central, once, into our own directory.

Used for Delta's jars and for the database servers of tests and demo that are packed in jars.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

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


REPOSITORY_VARIABLE = "TIDELOG_MAVEN_REPOSITORY"
"""Environment: the URL of the Maven repository to fetch from, in place of Maven Central."""
_FETCH_TIMEOUT_S = 300
_POLL_S = 0.2
_PIECE_BYTES = 1 << 18


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

    Tried in this order: ``directory``; `cache_directory`; the local Maven repository; then the
    repository at ``$TIDELOG_MAVEN_REPOSITORY`` alone, or, if that is not set, the repositories of
    ``~/.m2/settings.xml``, Maven Central (at the URL that the Ivy of PySpark has) unless a mirror
    replaces it, and ``mvn``. A jar is used only if its SHA-256 is the pinned one.

    Raises UsageError that says what to do without network.
    """
    directory = directory or cache_directory()
    missing = [jar for jar in jars if not _is_valid(directory / jar.file_name, jar)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if missing:
            tempfile.TemporaryDirectory(dir=directory).cleanup()
    except OSError as error:
        names = ", ".join(jar.file_name for jar in missing)
        raise UsageError(
            f"{directory}, where {what} are kept, lacks {names} and can't be written "
            f"({error.strerror}): set TIDELOG_JARS to a directory that can be written"
        ) from None
    if missing:
        _fetch(missing, what, directory)
    return [directory / jar.file_name for jar in jars]


OnBytes = Callable[[int], None]
"""Called with the number of bytes received."""


def _fetch(missing: list[Jar], what: str, directory: Path) -> None:
    sizes = [jar.size for jar in missing]
    size = sum(sizes) if all(sizes) else None
    failures: list[str] = []
    settings = _MavenSettings()
    for way, fetch_from in _ways(settings):
        if not missing:
            break
        with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as scratch:
            try:
                fetch_from(missing, Path(scratch), lambda come: report_progress(what, come, size))
            except (OSError, HTTPException, subprocess.SubprocessError, ValueError) as error:
                failures.append(f"{way}: {error}")
            for jar in missing:
                fetched = Path(scratch) / jar.file_name
                if not fetched.exists():
                    continue
                if _is_valid(fetched, jar):
                    fetched.replace(directory / jar.file_name)
                elif zipfile.is_zipfile(fetched):
                    failures.append(f"{way}: {jar.file_name} has another SHA-256 than pinned")
                else:
                    failures.append(f"{way}: {jar.file_name} is no jar: perhaps a page for a login")
        missing = [jar for jar in missing if not _is_valid(directory / jar.file_name, jar)]
    if missing:
        raise UsageError(_manual_steps(what, missing, directory, failures))
    report_progress(what, None, size)


def _is_valid(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


class _MavenSettings:
    """The user's settings of Maven, ``~/.m2/settings.xml`` (https://maven.apache.org/settings.html):
    local repository, repositories, mirrors, their accounts, and proxies.

    A file that is missing or is no XML has none.
    """

    def __init__(self) -> None:
        path = Path.home() / ".m2" / "settings.xml"
        try:
            self._root = ElementTree.parse(path).getroot()  # noqa: S314 - the user's own file
        except (OSError, ElementTree.ParseError):
            self._root = ElementTree.Element("settings")

    @property
    def local_repository(self) -> Path:
        given = _text(self._root, "localRepository")
        return Path(given) if given else Path.home() / ".m2" / "repository"

    def repositories(self) -> Iterator[_Repository]:
        """Yield those of active profiles, then `_CENTRAL`, or each one's mirror; none that the
        settings block.
        """
        known = [_Repository.at(url, name) for name, url in self._of_profiles()]
        if all(each.name != _CENTRAL.name for each in known):
            known.append(_CENTRAL)
        found = [self._mirror_of(each) for each in known]
        yield from (self._with_account(each) for each in dict.fromkeys(found) if each is not None)

    def proxy_of(self, url: str) -> dict[str, str]:
        """Return the proxy for a URL by its protocol, as `urllib.request.ProxyHandler` takes it;
        that of the environment if the settings have none.
        """
        target = urllib.parse.urlsplit(url)
        for proxy in self._root.iterfind("{*}proxies/{*}proxy"):
            if _text(proxy, "active") == "false":
                continue
            direct = _text(proxy, "nonProxyHosts").split("|")
            if any(_is_like(target.hostname or "", pattern) for pattern in direct):
                return {}
            user = urllib.parse.quote(_text(proxy, "username"), safe="")
            password = urllib.parse.quote(_text(proxy, "password"), safe="")
            account = f"{user}:{password}@" if user else ""
            place = f"{_text(proxy, 'host')}:{_text(proxy, 'port') or 8080}"
            return {target.scheme: f"http://{account}{place}"}
        if urllib.request.proxy_bypass(target.hostname or ""):
            return {}
        return urllib.request.getproxies()

    def _of_profiles(self) -> Iterator[tuple[str, str]]:
        active = {each.text for each in self._root.iterfind("{*}activeProfiles/{*}activeProfile")}
        for profile in self._root.iterfind("{*}profiles/{*}profile"):
            by_default = _text(profile, "{*}activation/{*}activeByDefault") == "true"
            if _text(profile, "id") in active or by_default:
                for each in profile.iterfind("{*}repositories/{*}repository"):
                    if _text(each, "{*}releases/{*}enabled") != "false":
                        yield _text(each, "id"), _text(each, "url")

    def _mirror_of(self, repository: _Repository) -> _Repository | None:
        for mirror in self._root.iterfind("{*}mirrors/{*}mirror"):
            patterns = [part.strip() for part in _text(mirror, "mirrorOf").split(",")]
            if f"!{repository.name}" in patterns:
                continue
            if {"*", "external:*", repository.name} & set(patterns):
                if _text(mirror, "blocked") == "true":
                    return None
                return _Repository.at(_text(mirror, "url"), _text(mirror, "id"))
        return repository

    def _with_account(self, repository: _Repository) -> _Repository:
        if not repository.url:
            return repository  # a company's account for its "central" is not Maven Central's
        for server in self._root.iterfind("{*}servers/{*}server"):
            if _text(server, "id") == repository.name:
                user, password = _text(server, "username"), _text(server, "password")
                return replace(repository, user=user, password=password)
        return repository


def _is_like(host: str, pattern: str) -> bool:
    """Whether a host is one of Java's ``nonProxyHosts``, where ``*`` is any text."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), host, re.IGNORECASE) is not None


def _text(element: ElementTree.Element, path: str) -> str:
    """Return an element's text, with ``${env.NAME}`` and ``${user.home}`` replaced, or ""."""
    text = element.findtext(path if "{" in path else f"{{*}}{path}") or ""
    text = re.sub(r"\$\{env\.(\w+)\}", lambda name: os.environ.get(name[1], ""), text.strip())
    return text.replace("${user.home}", str(Path.home()))


@dataclass(frozen=True)
class _Repository:
    """A Maven repository; ``url`` is empty for Maven Central, whose URL Spark's Ivy knows."""

    name: str
    url: str
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def at(cls, url: str, name: str) -> _Repository:
        """Return the one at a URL, which may hold user and password."""
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:  # which `check_url` reports
            return cls(name, url)
        account, at, host = parts.netloc.rpartition("@")
        user, _, password = account.partition(":")
        bare = parts._replace(netloc=host).geturl() if at else url
        return cls(name, bare, urllib.parse.unquote(user), urllib.parse.unquote(password))

    def check_url(self) -> None:
        """Raise ValueError, without a part of a password in its text, if the URL is none."""
        try:
            _ = urllib.parse.urlsplit(self.url).port
        except ValueError:
            raise ValueError(
                "its URL can't be read: in user and password write / as %2F, # as %23, @ as %40"
            ) from None

    def request(self, jar: Jar) -> urllib.request.Request:
        """Return the request for a jar; raises ValueError if only Maven can decrypt the password
        (https://maven.apache.org/guides/mini/guide-encryption.html).
        """
        request = urllib.request.Request(f"{self.url.rstrip('/')}/{jar.repository_path}")  # noqa: S310
        if re.search(r"(?<!\\)\{.*[^\\]\}", self.password):
            raise ValueError("its password is encrypted: only mvn can read it")
        if self.user:
            account = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {account}")
        return request


_CENTRAL = _Repository("central", "")
_Way = tuple[str, Callable[[list[Jar], Path, OnBytes], None]]


def _ways(settings: _MavenSettings) -> Iterator[_Way]:
    yield "TIDELOG_JARS", _from_cache
    local = settings.local_repository
    yield "local Maven repository", lambda jars, scratch, _: _copy_from(local, jars, scratch)
    if base := os.environ.get(REPOSITORY_VARIABLE):
        given = _Repository.at(base, REPOSITORY_VARIABLE)
        yield f"Maven repository {given.name}", partial(_from_url, given, settings)
        return
    for repository in settings.repositories():
        yield f"Maven repository {repository.name}", partial(_from_url, repository, settings)
    yield "mvn", partial(_from_mvn, repository=local)


def _from_cache(jars: list[Jar], scratch: Path, on_bytes: OnBytes) -> None:
    """Copy what another directory than ours is to have."""
    del on_bytes  # a copy takes no time
    for jar in jars:
        kept = cache_directory() / jar.file_name
        if _is_valid(kept, jar):
            shutil.copyfile(kept, scratch / jar.file_name)


def _copy_from(repository: Path, jars: list[Jar], scratch: Path) -> None:
    for jar in jars:
        local = repository / jar.repository_path
        if _is_valid(local, jar):
            shutil.copyfile(local, scratch / jar.file_name)


def _from_url(
    repository: _Repository,
    settings: _MavenSettings,
    jars: list[Jar],
    scratch: Path,
    on_bytes: OnBytes,
) -> None:
    at = repository if repository.url else replace(repository, url=_default_of_ivy())
    at.check_url()
    proxy = urllib.request.ProxyHandler(settings.proxy_of(at.url))
    opener = urllib.request.build_opener(proxy, _Redirects)
    come = 0
    part = scratch / "part"
    lacks: list[str] = []
    on_bytes(come)
    for jar in jars:
        try:
            with (
                opener.open(at.request(jar), timeout=_FETCH_TIMEOUT_S) as response,
                part.open("wb") as file,
            ):
                while piece := response.read(_PIECE_BYTES):
                    file.write(piece)
                    come += len(piece)
                    on_bytes(come)
                if getattr(response, "length", None):  # of HTTP: what is still to come
                    raise ConnectionError(f"{jar.file_name} broke off")
            part.replace(scratch / jar.file_name)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            lacks.append(jar.file_name)
    if lacks:
        raise FileNotFoundError(f"it has no {', '.join(lacks)}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects without the account of a proxy; `ProxyHandler` adds it where one is used
    again.
    """

    def redirect_request(self, *answer: Any) -> urllib.request.Request | None:
        request = super().redirect_request(*answer)
        if request is not None:
            request.remove_header("Proxy-authorization")
        return request


def _default_of_ivy() -> str:
    """Return the URL of Maven Central, which is a default of the Ivy that PySpark contains.

    Raises ValueError if there is no such Ivy. It is not run: Java knows no certificates of a
    company, and Python does.
    """
    remedy = f"set {REPOSITORY_VARIABLE} to its URL, or give it in ~/.m2/settings.xml"
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise ValueError(f"pyspark, whose Ivy knows where it is, is not installed: {remedy}")
    for ivy in sorted(Path(spark.origin).parent.glob("jars/ivy-*.jar")):
        with zipfile.ZipFile(ivy) as classes:
            found = re.search(rb"https://[\w./-]+/maven2/", classes.read(_IVY_CLASS))
        if found is not None:
            return found[0].decode()
    raise ValueError(f"the installed pyspark has no Ivy, which knows where it is: {remedy}")


_IVY_CLASS = "org/apache/ivy/plugins/resolver/IBiblioResolver.class"


def _from_mvn(jars: list[Jar], scratch: Path, on_bytes: OnBytes, repository: Path) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise FileNotFoundError("not on the PATH")
    places = [repository / jar.repository_path for jar in jars]

    def on_poll() -> None:
        on_bytes(
            _bytes_of(file for place in places for file in place.parent.glob(f"{place.name}*"))
        )

    for jar in jars:
        command = [mvn, "-q", "-B", "dependency:get", f"-Dartifact={jar}", "-Dtransitive=false"]
        _run(command, on_poll)
    _copy_from(repository, jars, scratch)


def _bytes_of(files: Iterable[Path]) -> int:
    """Return the bytes of the files, finished or not."""
    total = 0
    for file in files:
        with contextlib.suppress(OSError):  # it was renamed just now
            total += file.stat().st_size if file.suffix in (".jar", ".part") else 0
    return total


def _run(arguments: list[str], on_poll: Callable[[], None], place: Path | None = None) -> None:
    """Run a program to its end, in the directory ``place``. ``on_poll`` is called now and then, and
    may raise an error that ends it.
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
    names = "\n".join(f"  {jar.repository_path}  (SHA-256 {jar.sha256})" for jar in missing)
    tried = "\n".join(f"  {failure}" for failure in failures) or "  nothing found"
    return (
        f"{what} could not be fetched:\n{names}\ntried:\n{tried}\n"
        "Without network here, fetch these files from Maven Central, or from your company's Maven "
        f"repository, on a machine that reaches it, and copy them into {directory}. Or set "
        f"TIDELOG_JARS to a directory that holds them, or {REPOSITORY_VARIABLE} to the URL of a "
        "Maven repository that you can reach. Then run the command again."
    )
