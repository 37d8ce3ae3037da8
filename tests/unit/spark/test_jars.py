"""Fetching Delta's jars, from a local repository only: tests use no network."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from tests.support import postgres
from tests.support.opensearch import OPENSEARCH_JARS
from typer.testing import CliRunner

from tidelog import cli
from tidelog.demo.servers import mysql
from tidelog.errors import UsageError
from tidelog.spark.sessions import jars
from tidelog.spark.sessions.versions import SPARK_VERSION
from tidelog.system import maven
from tidelog.system.download_progress import Download, report_downloads
from tidelog.system.maven import Jar

DEFAULT_OF_IVY = maven._default_of_ivy


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home directory without anything, and pinned jars of our own making."""
    data = b"a jar"
    jar = Jar("org.made", "up", "1.0", hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(jars, "DELTA_SPARK_JARS", {SPARK_VERSION: jar})
    monkeypatch.setattr(jars, "DELTA_JARS", ())
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("TIDELOG_MAVEN_REPOSITORY", "TIDELOG_JARS", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(maven, "_default_of_ivy", (tmp_path / "central").as_uri)
    monkeypatch.setattr(maven, "_from_mvn", lambda *_, **given: None)
    return tmp_path


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


LOCAL = ".m2/repository/org/made/up/1.0/up-1.0.jar"


def test_a_jar_of_the_local_repository_is_taken_once(offline: Path) -> None:
    put(offline / LOCAL, b"a jar")
    found = jars.delta_jars(offline / "cache")
    assert found[1:] == [offline / "cache" / jars.S3_LOG_STORE_JAR.name]
    assert found[0].read_bytes() == b"a jar"
    (offline / LOCAL).unlink()
    assert jars.delta_jars(offline / "cache") == found


def test_a_jar_with_another_checksum_is_not_used(offline: Path) -> None:
    put(offline / LOCAL, b"torn")
    with pytest.raises(UsageError, match="could not be fetched"):
        jars.delta_jars(offline / "cache")


def test_a_damaged_cached_jar_is_fetched_again(offline: Path) -> None:
    put(offline / "cache" / "up-1.0.jar", b"torn")
    put(offline / LOCAL, b"a jar")
    assert jars.delta_jars(offline / "cache")[0].read_bytes() == b"a jar"


def test_a_repository_of_ones_own(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(offline / "mirror/org/made/up/1.0/up-1.0.jar", b"a jar")
    monkeypatch.setenv("TIDELOG_MAVEN_REPOSITORY", (offline / "mirror").as_uri())
    assert jars.delta_jars(offline / "cache")[0].read_bytes() == b"a jar"


class Mirror(BaseHTTPRequestHandler):
    """A company's repository, or its proxy: has the jar for whoever says who it is."""

    asked: ClassVar[list[tuple[str, str | None]]] = []
    of_proxy: ClassVar[list[str | None]] = []
    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}  # by path, with the length that is told
    elsewhere: ClassVar[dict[str, str]] = {}  # by path, where it sends

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        self.of_proxy.append(self.headers["Proxy-Authorization"])
        if self.path in self.elsewhere:
            self.send_response(302)
            self.send_header("Location", self.elsewhere[self.path])
            self.end_headers()
            return
        if self.path in self.answers:
            length, data = self.answers[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(data)
            return
        allowed = self.headers["Authorization"] == f"Basic {b64encode(b'me:s3cret').decode()}"
        found = allowed and self.path.endswith("/org/made/up/1.0/up-1.0.jar")
        self.send_response(200 if found else 404 if allowed else 401)
        self.end_headers()
        self.wfile.write(b"a jar" if found else b"")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def mirror() -> Iterator[str]:
    """Its host and port."""
    Mirror.asked.clear()
    Mirror.of_proxy.clear()
    Mirror.elsewhere.clear()
    Mirror.answers.clear()
    with HTTPServer(("127.0.0.1", 0), Mirror) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def write_settings(home: Path, text: str, password: str = "${env.MAVEN_PASSWORD}") -> None:
    account = f"<username>me</username><password>{password}</password>"
    put(
        home / ".m2/settings.xml",
        f"""<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0">{text}
        <servers><server><id>ours</id>{account}</server></servers></settings>""".encode(),
    )


def mirror_of(pattern: str, host: str) -> str:
    where = f"<url>http://{host}/maven</url><mirrorOf>{pattern}</mirrorOf>"
    return f"<mirrors><mirror><id>ours</id>{where}</mirror></mirrors>"


def repository(name: str, url: str) -> str:
    """Of a profile that is active."""
    where = f"<repository><id>{name}</id><url>{url}</url></repository>"
    profile = f"<profile><id>all</id><repositories>{where}</repositories></profile>"
    active = "<activeProfiles><activeProfile>all</activeProfile></activeProfiles>"
    return f"<profiles>{profile}</profiles>{active}"


@pytest.mark.parametrize(
    "settings",
    [
        lambda host: mirror_of("*", host),
        lambda host: mirror_of("external:*,!jboss", host),
        lambda host: repository("ours", f"http://{host}/maven"),
        lambda host: repository("others", "http://127.0.0.1:1") + mirror_of("others", host),
    ],
    ids=["mirror", "mirror of all but", "profile", "mirror of a profile"],
)
def test_jars_come_from_the_repository_of_mavens_settings(
    offline: Path, mirror: str, monkeypatch: pytest.MonkeyPatch, settings: Callable[[str], str]
) -> None:
    monkeypatch.setenv("MAVEN_PASSWORD", "s3cret")
    write_settings(offline, settings(mirror))
    assert jars.delta_jars(offline / "cache")[0].read_bytes() == b"a jar"
    assert [path for path, _ in Mirror.asked] == ["/maven/org/made/up/1.0/up-1.0.jar"]


def test_an_account_in_the_url_of_mavens_settings_is_sent_and_not_shown(
    offline: Path, mirror: str
) -> None:
    write_settings(offline, repository("others", f"http://me:s3cret@{mirror}/maven"))
    assert jars.delta_jars(offline / "cache")[0].read_bytes() == b"a jar"
    write_settings(offline, repository("others", "http://me:s3cret@"))
    with pytest.raises(UsageError) as caught:
        maven.fetch([Jar("org.made", "down", "1", "0" * 64)], "a jar", offline / "cache")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("password", ["s3c/ret", "s3c[ret", "s3c\u2100ret"])
def test_of_a_url_that_can_not_be_read_no_password_is_shown(
    offline: Path, mirror: str, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    monkeypatch.setenv("TIDELOG_MAVEN_REPOSITORY", f"http://me:{password}@{mirror}/maven")
    with pytest.raises(UsageError, match=r"its URL can't be read: .* write / as %2F") as caught:
        jars.delta_jars(offline / "cache")
    assert "s3c" not in str(caught.value)


def test_maven_central_does_not_get_a_company_s_account(
    offline: Path, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maven, "_default_of_ivy", lambda: f"http://{mirror}/maven2")
    write_settings(offline, "")
    settings = offline / ".m2/settings.xml"
    settings.write_text(settings.read_text().replace("<id>ours</id>", "<id>central</id>"))
    with pytest.raises(UsageError):
        jars.delta_jars(offline / "cache")
    assert [account for _, account in Mirror.asked] == [None]


def test_a_redirect_is_followed_without_the_accounts_of_repository_and_proxy(
    offline: Path, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Mirror.elsewhere["http://maven.company/m2/org/made/up/1.0/up-1.0.jar"] = f"http://{mirror}/x"
    monkeypatch.setenv("http_proxy", f"http://of:pr0xy@{mirror}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("TIDELOG_MAVEN_REPOSITORY", "http://me:s3cret@maven.company/m2")
    with pytest.raises(UsageError, match="HTTP Error 401"):
        jars.delta_jars(offline / "cache")
    assert [(path[:6], account is None) for path, account in Mirror.asked] == [
        ("http:/", False), ("/x", True),
    ]  # fmt: skip
    assert [account is None for account in Mirror.of_proxy] == [False, True]


def test_a_mirror_replaces_maven_central_and_its_password_is_not_shown(
    offline: Path, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(maven, "_default_of_ivy", lambda: asked.append("central") or "file:///x")
    write_settings(offline, mirror_of("*", mirror), password="wr0ng")
    with pytest.raises(UsageError, match="repository ours: HTTP Error 401") as caught:
        jars.delta_jars(offline / "cache")
    assert "wr0ng" not in str(caught.value)
    assert asked == []

    write_settings(offline, mirror_of("*,!central", mirror))
    with pytest.raises(UsageError):
        jars.delta_jars(offline / "cache")
    assert asked == ["central"]
    assert len(Mirror.asked) == 1


def test_a_repository_that_the_settings_block_is_not_asked(offline: Path, mirror: str) -> None:
    put(offline / "central/org/made/up/1.0/up-1.0.jar", b"a jar")
    blocked = mirror_of("central", mirror).replace("</url>", "</url><blocked>true</blocked>")
    write_settings(offline, blocked)
    with pytest.raises(UsageError, match="tried:\n  nothing found"):
        jars.delta_jars(offline / "cache")
    assert Mirror.asked == []


def test_a_password_that_only_maven_can_decrypt_is_not_sent(offline: Path, mirror: str) -> None:
    write_settings(offline, mirror_of("central", mirror), password="{COQLCE6DU6GtcS5P=}")
    with pytest.raises(UsageError, match="repository ours: its password is encrypted: only mvn"):
        jars.delta_jars(offline / "cache")
    assert Mirror.asked == []


def test_the_repository_of_the_environment_is_the_only_one(
    offline: Path, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(maven, "_default_of_ivy", lambda: asked.append("central") or "file:///x")
    write_settings(offline, mirror_of("*", "127.0.0.1:1"))
    monkeypatch.setenv("TIDELOG_MAVEN_REPOSITORY", f"http://me:s3cret@{mirror}/maven")
    assert jars.delta_jars(offline / "cache")[0].read_bytes() == b"a jar"
    with pytest.raises(UsageError, match="REPOSITORY: it has no down-1") as caught:
        maven.fetch([Jar("org.made", "down", "1", "0" * 64)], "a jar", offline / "cache")
    assert "s3cret" not in str(caught.value)
    assert asked == []


def test_requests_go_through_the_proxy_of_mavens_settings(
    offline: Path, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = mirror.partition(":")
    proxy = f"<host>{host}</host><port>{port}</port><nonProxyHosts>*.lan|own</nonProxyHosts>"
    write_settings(offline, f"<proxies><proxy>{proxy}</proxy></proxies>")
    monkeypatch.setenv("TIDELOG_MAVEN_REPOSITORY", "http://me:s3cret@maven.company/m2")
    assert jars.delta_jars(offline / "cache")[0].read_bytes() == b"a jar"
    assert [path for path, _ in Mirror.asked] == [
        "http://maven.company/m2/org/made/up/1.0/up-1.0.jar"
    ]
    assert maven._MavenSettings().proxy_of("https://maven.lan/m2") == {}


@pytest.mark.parametrize(
    ("length", "data", "told"),
    [
        (10, b"a jar", "up-1.0.jar broke off"),
        (6, b"<html>", "up-1.0.jar is no jar: perhaps a page for a login"),
    ],
)
def test_what_came_instead_of_a_jar_is_reported(
    offline: Path,
    mirror: str,
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    data: bytes,
    told: str,
) -> None:
    Mirror.answers["/m2/org/made/up/1.0/up-1.0.jar"] = length, data
    monkeypatch.setenv("TIDELOG_MAVEN_REPOSITORY", f"http://{mirror}/m2")
    with pytest.raises(UsageError) as caught:
        jars.delta_jars(offline / "cache")
    assert f"\ntried:\n  Maven repository TIDELOG_MAVEN_REPOSITORY: {told}\nW" in str(caught.value)
    assert list((offline / "cache").iterdir()) == []


def test_a_directory_that_can_not_be_written_is_reported_with_what_it_lacks(offline: Path) -> None:
    (offline / "file").touch()
    with pytest.raises(UsageError, match=r"file/jars, .* lacks up-1.0.jar and can't be written \("):
        jars.delta_jars(offline / "file" / "jars")


def test_maven_central_is_where_spark_s_ivy_knows_it(offline: Path) -> None:
    put(offline / "central/org/made/up/1.0/up-1.0.jar", b"a jar")
    assert jars.delta_jars(offline / "cache")[0].read_bytes() == b"a jar"


def test_without_spark_it_is_said_what_to_set(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maven, "_default_of_ivy", DEFAULT_OF_IVY)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"set TIDELOG_MAVEN_REPOSITORY to its URL, or .*settings"):
        jars.delta_jars(offline / "cache")


def test_the_ivy_of_the_installed_spark_knows_it() -> None:
    assert re.fullmatch(r"https://[\w.-]+/maven2/", maven._default_of_ivy())


def test_a_local_repository_elsewhere(offline: Path) -> None:
    put(offline / "elsewhere/org/made/up/1.0/up-1.0.jar", b"a jar")
    write_settings(offline, "<localRepository>${user.home}/elsewhere</localRepository>")
    assert jars.delta_jars(offline / "cache")[0].read_bytes() == b"a jar"


def test_whoever_waits_is_shown_how_much_has_come(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(3 * maven._PIECE_BYTES)
    jar = Jar("org.made", "large", "1", hashlib.sha256(data).hexdigest(), size=len(data))
    put(offline / "mirror" / jar.repository_path, data)
    monkeypatch.setenv("TIDELOG_MAVEN_REPOSITORY", (offline / "mirror").as_uri())
    told: list[Download] = []
    with report_downloads(told.append):
        maven.fetch([jar], "a large jar", offline / "cache")
        maven.fetch([jar], "a large jar", offline / "cache")  # it is there
    assert [each.share for each in told] == [0.0, 1 / 3, 2 / 3, 0.99, 1.0]
    assert {(each.what, each.size) for each in told} == {("a large jar", len(data))}


def test_the_callback_of_a_download_can_end_it(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_now: Download) -> None:
        raise KeyboardInterrupt

    put(offline / "mirror/org/made/up/1.0/up-1.0.jar", b"a jar")
    monkeypatch.setenv("TIDELOG_MAVEN_REPOSITORY", (offline / "mirror").as_uri())
    with pytest.raises(KeyboardInterrupt), report_downloads(end):
        jars.delta_jars(offline / "cache")
    assert list((offline / "cache").iterdir()) == []
    jars.delta_jars(offline / "cache")


def test_a_program_that_fetches_is_looked_at_and_ended(tmp_path: Path) -> None:
    looked: list[float] = []

    def look() -> None:
        looked.append(time.monotonic())
        if len(looked) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        maven._run(["/bin/sh", "-c", "echo $$ > pid; exec sleep 60"], look, tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    with pytest.raises(ValueError, match="exit code 3: why"):
        maven._run(["/bin/sh", "-c", "echo why >&2; exit 3"], lambda: None)


def run_jars(*arguments: str) -> tuple[int, list[str]]:
    """Its exit code, and the lines that it prints."""
    result = CliRunner().invoke(cli.app, ["jars", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output.splitlines()


def test_the_command_puts_all_jars_of_a_cluster_into_a_directory(offline: Path) -> None:
    put(offline / LOCAL, b"a jar")
    code, lines = run_jars("--for", "delta", "--to", str(offline / "jars"))
    assert code == 0
    assert lines == [f"{offline}/jars/up-1.0.jar", f"{offline}/jars/{jars.S3_LOG_STORE_JAR.name}"]
    assert Path(lines[1]).read_bytes() == jars.S3_LOG_STORE_JAR.read_bytes()


def test_jars_that_were_fetched_before_are_copied(offline: Path) -> None:
    put(offline / ".cache/tidelog/jars/up-1.0.jar", b"a jar")
    code, _ = run_jars("--for", "delta", "--to", str(offline / "jars"))
    assert code == 0
    assert (offline / "jars/up-1.0.jar").read_bytes() == b"a jar"


def test_the_command_lists_jars_of_any_spark_without_fetching_them(offline: Path) -> None:
    code, lines = run_jars("--for", "iceberg, s3", "--spark", "4.1.4", "--list")
    assert code == 0
    assert lines[0].startswith("org.apache.iceberg:iceberg-api:1.12.0 d476a69")
    assert lines[9].startswith("org.apache.hadoop:hadoop-aws:3.4.2 d2d24e6b")
    assert len(lines) == len(set(lines)) == 45
    assert list(offline.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--for", "delta,iceberg", "--spark", "4.3"], "no jars of Delta .* for Spark 4.3"),
        (["--for", "gcs"], "jars for delta, iceberg, s3, and none for 'gcs'"),
        (["--for", "s3", "--spark", "3.5"], "for Spark 3.5; they are for 4.0, 4.1, 4.2, 4.3"),
    ],
)
def test_the_command_refuses_what_there_are_no_jars_for(
    offline: Path, arguments: list[str], said: str
) -> None:
    put(offline / LOCAL, b"a jar")
    with pytest.raises(UsageError, match=said):
        run_jars(*arguments, "--to", str(offline / "jars"))
    assert not (offline / "jars").exists()  # nothing was fetched for the others either


def test_pinned_sizes_are_those_of_the_jars() -> None:
    pinned = [*jars.DELTA_SPARK_JARS.values(), *jars.DELTA_JARS, *jars.ICEBERG_JARS]
    pinned += jars.HADOOP_AWS_JARS.values()
    pinned += postgres.JARS.values()
    pinned += [*mysql._MYSQL_JARS.values(), *mysql._MARIADB_JARS.values()]
    assert all(jar.size for jar in pinned)
    for jar in pinned:
        there = maven.cache_directory() / jar.file_name
        if there.exists():
            assert there.stat().st_size == jar.size


def test_without_network_the_error_says_how_to_continue(offline: Path) -> None:
    with pytest.raises(UsageError) as caught:
        jars.delta_jars(offline / "cache")
    text = str(caught.value)
    assert "org/made/up/1.0/up-1.0.jar  (SHA-256 " in text
    assert "TIDELOG_JARS" in text
    assert "TIDELOG_MAVEN_REPOSITORY" in text
    assert str(offline / "cache") in text


def test_a_spark_that_delta_has_no_jars_for_is_shown_the_way_on(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "DELTA_SPARK_JARS", {"3.8": jars.DELTA_SPARK_JARS[SPARK_VERSION]})
    with pytest.raises(UsageError, match=rf"for Spark {SPARK_VERSION}.*spark_session\(delta=False"):
        jars.delta_jars(offline / "cache")


def test_jars_are_read_from_a_list() -> None:
    found = maven.parse_jar_list(
        "# coordinates, SHA-256\norg.made:up:1.0 abc\n\norg.made:down:2 d\n"
    )
    assert found == (Jar("org.made", "up", "1.0", "abc"), Jar("org.made", "down", "2", "d"))


def test_every_jar_of_the_list_is_pinned() -> None:
    assert len(OPENSEARCH_JARS) == len({jar.file_name for jar in OPENSEARCH_JARS})
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in OPENSEARCH_JARS)
