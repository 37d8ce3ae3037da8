"""docs/how-to/two-hosts.md as it is written: each configuration is put on two hosts unchanged, and
each command is given on the host that the page names. The hosts share what the configuration names,
which they find by the page's names at the page's ports, and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import yaml
from tests.campaign.paths import PathProxy
from tests.support.faulty_network import FaultyNetwork
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Server
from tests.support.two_hosts import SHARED, Host, Network, two_hosts
from tests.support.zookeeper_ensemble import Member, ensemble

from tidelog import app
from tidelog.config import Config
from tidelog.config.loading import parse_config

PAGE: Final = (Path(__file__).parents[2] / "docs/how-to/two-hosts.md").read_text(encoding="utf-8")
COMMAND: Final = re.compile(r"^(host[12])\$ (.*?)(?:\s{2,}# .*)?$", re.MULTILINE)
POSTGRES: Final = ("db", "warehouse", "operations")
DATABASES: Final = ("shop", "copy", "state")
KEEPERS: Final = ("zk1", "zk2", "zk3")
BUCKET: Final = "company-cdc"
ENVIRONMENT: Final = {"PGPASSWORD": "not-asked-for", "TIDELOG_TOKEN": "a-long-one-for-tests"}
pytestmark = [
    pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)
]  # fmt: skip
thorough = pytest.mark.thorough
HERE: Final = {"HOSTNAME": "here"}
WAIT_S: Final = 120.0


def sections() -> dict[str, str]:
    """What stands below each heading, up to the next of any depth."""
    parts = re.split(r"^##+ (.*)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def block(heading: str, language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", sections()[heading], re.DOTALL)
    return str(found)


ON_S3, IN_ZOOKEEPER, IN_POSTGRES = (
    "Event log and state on S3", "State in ZooKeeper", "State in PostgreSQL"
)  # fmt: skip


def configuration(state_of: str, log_of: str) -> str:
    """That on S3, with the lines `state` and `log` below other headings."""
    text = block(ON_S3, "yaml")
    for name, heading in (("state", state_of), ("log", log_of)):
        line = re.compile(rf"^{name}: .*$", re.MULTILINE)
        [other] = line.findall(block(heading, "yaml"))
        text = line.sub(other, text)
    return text


def shown(leads: str, stands_by: str | None) -> list[re.Pattern[str]]:
    """Each line of `status` that the page shows, whatever its numbers and times, of these hosts."""
    text = block("Start", "text")
    if stands_by is None:
        text = text.replace("host2:815 stands by", "nobody stands by")
    names = {"host1": leads, "host2": stands_by}
    found = []
    for line in text.splitlines():
        parts = re.split(r"(host[12]:\d+|\d+)", line)
        found.append(
            re.compile(
                "".join(
                    rf"{names[part[:5]]}(-\d+)?:\d+"  # the number of a pid namespace
                    if part[:5] in names
                    else r"[\d,]+"
                    if part.isdigit()
                    else re.escape(part)
                    for part in parts
                )
            )
        )
    return found


def names_of(configuration: str) -> set[tuple[str, int]]:
    """The hosts and ports of a configuration's URLs."""
    pairs = re.findall(r"[@/,]([a-z]+\d?):(\d+)", configuration)
    return {(name, int(port)) for name, port in pairs}


class Site:
    """Two hosts, and what the page says is done on them."""

    def __init__(
        self, hosts: tuple[Host, Host], configuration: str, seen: Config, source: str, copy: str
    ) -> None:
        """``seen``: the same configuration, as this machine has to name the servers."""
        self.hosts = {host.name: host for host in hosts}
        self._seen = seen
        for host in hosts:
            (host.directory / "tidelog.yaml").write_text(configuration)
        self.source = psycopg.connect(source, autocommit=True)
        self.copy = psycopg.connect(copy, autocommit=True)
        self.source.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        self.rows = 0
        self.write()
        self.leads, self.stands_by = "host1", "host2"
        self.given: list[tuple[str, str]] = []
        self.told: list[str] = []
        """What each command answered, for who looks at a failure."""
        self._checks: dict[str, Callable[[str], None]] = {
            "tidelog check": lambda told: None,  # its exit code says it
            "tidelog status": self.check_status,
            "tidelog dump": self.check_dump,
            "tidelog wait": self.check_wait,
            "tidelog pause tidelog.yaml --log": self.check_paused_log,
            "tidelog resume tidelog.yaml --log": lambda told: self.arrive(),
            "tidelog pause tidelog.yaml --pipeline": self.check_paused_pipeline,
            "tidelog resume tidelog.yaml --pipeline": lambda told: self.arrive(),
            "tidelog verify": self.check_verified,
            "curl": self.check_status_by_http,
            "tidelog handover tidelog.yaml": self.check_handed_over,
            "tidelog handover tidelog.yaml --pipeline": self.check_all_handed_over,
        }

    def close(self) -> None:
        self.source.close()
        self.copy.close()

    # ------------------------------------------------------------------ commands

    def follow(self, section: str) -> None:
        """Give the section's commands, each where and as the page says."""
        given = [
            (host, command)
            for text in re.findall(r"```console\n(.*?)```", sections()[section], re.DOTALL)
            for host, command in COMMAND.findall(text)
        ]
        self.given += given
        for host, command in given:
            begun = time.monotonic()
            if command.startswith("tidelog run "):
                self.run(self.hosts[host], command)
                answer = ""
            else:
                answer = self.hosts[host].run(command)
            took = time.monotonic() - begun
            self.told.append(f"{host}$ {command}  # {took:.1f} s\n{answer}")
            print(self.told[-1])  # pytest shows it if the test fails
            if answer:
                known = [text for text in self._checks if command.startswith(text)]
                self._checks[max(known, key=len)](answer)

    def run(self, host: Host, command: str) -> None:
        """The page says that one which runs is stopped before."""
        if host.runs:
            assert host.stop() == 0, host.said
        host.start(command)
        if host.name == self.leads:
            self.wait_for(lambda: self.status()["leader"])
            return
        self.wait_for(lambda: self.led_by(self.leads))
        self.wait_for(lambda: self.stood_by(self.stands_by))

    # ------------------------------------------------------------------ answers

    def check_status(self, told: str) -> None:
        assert " failed with " not in told, told  # an error that nobody explains
        for line in shown(self.leads, self.stands_by if self.hosts[self.stands_by].runs else None):
            assert line.search(told), (line.pattern, told)

    def check_dump(self, told: str) -> None:
        assert f"nightly is completed: 1 of 1 tables, {self.rows} rows" in told

    def check_wait(self, told: str) -> None:
        assert "nightly is completed; the outputs hold 1 of 1 tables completely" in told
        self.arrive()

    def check_paused_log(self, told: str) -> None:
        assert "paused" in told, told
        before = self.status()["log"]["next"]
        self.write()
        time.sleep(3)
        found = self.status()
        assert found["log"]["next"] == before
        assert found["log_paused"]["by"].endswith("@host2")

    def check_paused_pipeline(self, told: str) -> None:
        assert "paused" in told, told
        # Its leader looks once a second for that, and once a minute where each look is paid for.
        self.wait_for(lambda: "pipeline shop is paused" in self.hosts[self.leads].said)
        self.write()
        time.sleep(3)
        assert self.copied() < self.rows

    def check_verified(self, told: str) -> None:
        assert told.startswith("equal: yes"), told

    def check_status_by_http(self, told: str) -> None:
        assert json.loads(told)["holder"].startswith(f"{self.leads}-"), told
        [(host, command)] = [each for each in COMMAND.findall(PAGE) if each[1].startswith("curl")]
        not_followed = self.hosts[host].run(command.replace(" --location-trusted", ""))
        assert json.loads(not_followed)["error"]["url"] == f"http://{self.leads}:8490/status"

    def check_handed_over(self, told: str) -> None:
        assert re.search(rf"^from: {self.leads}-.*^to: {self.stands_by}-", told, re.M | re.S), told

    def check_all_handed_over(self, told: str) -> None:
        self.check_handed_over(told)
        self.leads, self.stands_by = self.stands_by, self.leads
        assert self.led_by(self.leads)

    # ------------------------------------------------------------------ what is so

    def status(self) -> dict[str, Any]:
        """Without a process of its own, which would take its time again and again."""
        return app.status(self._seen).document

    def led_by(self, name: str) -> bool:
        """Capture and pipeline are."""
        found = self.status()
        return bool(found["pipelines"]) and all(
            str(each["leader"]).startswith(f"{name}-") for each in (found, *found["pipelines"])
        )

    def stood_by(self, name: str) -> bool:
        found = self.status()
        return bool(found["pipelines"]) and all(
            any(one["holder"].startswith(f"{name}-") for one in each["standbys"])
            for each in (found, *found["pipelines"])
        )

    def taken_over(self) -> None:
        """The host that stood by leads, with a greater epoch, and has all that was written."""
        before = self.status()["epoch"]
        self.leads, self.stands_by = self.stands_by, self.leads
        self.write()
        self.wait_for(lambda: self.led_by(self.leads))
        self.arrive()
        assert self.status()["epoch"] > before

    def write(self) -> None:
        self.rows += 1
        self.source.execute("INSERT INTO orders VALUES (%s, 'new')", (self.rows,))

    def copied(self) -> int:
        """How many of the rows are in the copy."""
        [there] = self.copy.execute("SELECT to_regclass('public.orders')").fetchone() or [None]
        if there is None:
            return 0
        [count] = self.copy.execute("SELECT count(*) FROM public.orders").fetchone() or [0]
        return int(count)

    def arrive(self) -> None:
        """All that was written is in the copy, and so is another row."""
        self.write()
        self.wait_for(lambda: self.copied() == self.rows)

    def wait_for(self, what: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not what():
            if time.monotonic() >= deadline:
                said = [host.said for host in self.hosts.values()]
                pytest.fail("\n".join((*self.told, json.dumps(self.status()), *said)))
            time.sleep(0.3)


CASES = [
    pytest.param((ON_S3, ON_S3), id="log", marks=thorough),
    pytest.param((IN_ZOOKEEPER, IN_ZOOKEEPER), id="zookeeper-shared-directory", marks=thorough),
    pytest.param((IN_ZOOKEEPER, ON_S3), id="zookeeper-s3", marks=thorough),
    pytest.param((IN_POSTGRES, ON_S3), id="postgresql-s3", marks=thorough),
    pytest.param((IN_POSTGRES, IN_POSTGRES), id="postgresql-shared-directory", marks=thorough),
]


@pytest.fixture
def site(
    request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path: Path
) -> Iterator[Site]:
    text = configuration(*request.param)
    serves = yaml.safe_load(text)
    with ExitStack() as opened:
        first, second, network = opened.enter_context(two_hosts(tmp_path))
        environment = dict(ENVIRONMENT)
        servers = dict.fromkeys(POSTGRES, postgres.port)
        options: dict[str, str] = {}
        if serves["state"]["url"].startswith("zookeeper:"):
            members: list[Member] = opened.enter_context(ensemble())
            servers |= dict(zip(KEEPERS, (member.port for member in members), strict=True))
        if serves["log"]["path"].startswith("s3:"):
            s3: S3Server = request.getfixturevalue("s3")
            environment |= on_s3(s3, network, opened)
            options = s3.options
        for name, port in names_of(text):
            at = servers[name]  # what the page names is what is here
            proxy = PathProxy(at, address=network.address_of(name), at=port)
            opened.enter_context(proxy)
        postgres.execute("CREATE ROLE tidelog LOGIN SUPERUSER")
        opened.callback(postgres.execute, "DROP ROLE tidelog")
        for database in DATABASES:
            postgres.create_database(database)
            opened.callback(postgres.drop_database, database)
        for host in (first, second):
            host.environment.update(environment)
        seen = parse_config(
            seen_from_here(text, servers, options, tmp_path), "", tmp_path, ENVIRONMENT | HERE
        )
        site = Site((first, second), text, seen, postgres.dsn("shop"), postgres.dsn("copy"))
        opened.callback(site.close)
        # They end before what they use does.
        opened.callback(second.kill)
        opened.callback(first.kill)
        yield site


def seen_from_here(
    text: str, servers: dict[str, int], options: dict[str, str], directory: Path
) -> str:
    """The page's configuration with the servers' real addresses."""
    for name, port in names_of(text):
        text = text.replace(f"{name}:{port}", f"127.0.0.1:{servers[name]}")
    text = text.replace(SHARED, str(directory / "shared"))
    return text.replace("/log}", f"/log, storage_options: {json.dumps(options)}}}")


def on_s3(s3: S3Server, network: Network, opened: ExitStack) -> dict[str, str]:
    """The environment of who uses the page's bucket there."""
    bucket = s3.directory.parent / BUCKET
    bucket.mkdir()
    opened.callback(shutil.rmtree, bucket)
    owner = s3.directory.stat()
    os.chown(bucket, owner.st_uid, owner.st_gid)
    address = network.address_of("s3")
    at = opened.enter_context(FaultyNetwork(s3.port, one_at_a_time=True, address=address)).port
    return {
        "AWS_ENDPOINT_URL": f"http://{address}:{at}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": s3.options["region"],
        "AWS_ACCESS_KEY_ID": s3.access_key_id,
        "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
    }


@pytest.mark.parametrize("site", CASES, indirect=True)
def test_the_page_works_as_it_is_written(site: Site) -> None:
    site.follow("Start")
    site.follow("Operate from either host")
    site.follow("Upgrade")
    lost = site.hosts[site.leads]
    lost.kill()
    site.taken_over()
    site.follow("When a host is lost")
    site.run(lost, "tidelog run tidelog.yaml")
    cut_off = site.hosts[site.leads]
    cut_off.cut_off()
    site.taken_over()
    cut_off.bring_back()
    site.wait_for(lambda: site.stood_by(cut_off.name))
    site.arrive()
    assert site.given == COMMAND.findall(PAGE), "the page has a command that was not given"
