"""A primary of MySQL or MariaDB is lost, and a replica is promoted in its place."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.campaign.paths import PathProxy
from tests.e2e.history_processes import CaptureProcess
from tests.integration.mysql.log_capture import LogCapture
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer
from tests.support.oracle.log import read_event_log

from tidelog import app
from tidelog.app.base.log_location import event_log_path
from tidelog.config import Config, load_config
from tidelog.control.commands import StartDump
from tidelog.errors import ConnectionLostError, GapError, SourceChangedError
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import Resume
from tidelog.ports import SourceId
from tidelog.sources.mysql.stream.gtids import LoggedGtids

pytestmark = pytest.mark.integration

KINDS = pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer])
Family = type[MySqlFamilyServer]
WAIT_S = 120.0


@dataclass
class Pair:
    """A primary with the table ``d.t (a, b)``, and its replica."""

    primary: MySqlFamilyServer
    replica: MySqlFamilyServer

    def insert(self, *ids: int, on: MySqlFamilyServer | None = None) -> None:
        server = on or self.primary
        for number in ids:
            server.execute(f"INSERT INTO d.t VALUES ({number}, 'b')")

    def promote(self, *, lost: bool = False) -> None:
        """``lost``: what the replica did not receive by now is."""
        if not lost:
            self.replica.caught_up()
        self.primary.kill()
        self.replica.follow_no_more()
        self.replica.execute("SET GLOBAL read_only = OFF")


@contextmanager
def pair_of(kind: Family, **settings: Any) -> Iterator[Pair]:
    with kind(settings=settings) as primary:
        primary.create_database("d")
        primary.execute("CREATE TABLE d.t (a int PRIMARY KEY, b varchar(2000))")
        with kind.replica_of(primary, settings) as replica:
            replica.caught_up()
            yield Pair(primary, replica)


@dataclass
class Log:
    """What a reader gave, and where it ended, as an event log keeps it."""

    server: MySqlFamilyServer
    expected: SourceId | None = None
    logged: LoggedGtids = field(default_factory=LoggedGtids)

    def __post_init__(self) -> None:
        options = {"expected": self.expected, "logged": self.logged, "buffer_bytes": 4096}
        self.capture = LogCapture(self.server, ("d.*",), keep_batches=True, options=options)

    @property
    def ids(self) -> list[int]:
        return [row.new["a"] for row in self.capture.rows if row.new]

    @property
    def end(self) -> Resume:
        """Each place is asked for as it is written."""
        return [self.logged.with_gtids(resume) for resume in self.capture.resumes][-1]

    def start(self, last: Resume | None = None) -> Resume:
        return self.capture.start(last)

    def catch_up(self) -> None:
        self.capture.catch_up()

    def close(self) -> SourceId:
        self.capture.reader.close()
        return self.capture.reader.identify()


@contextmanager
def promoted(
    pair: Pair, meanwhile: Callable[[Log], None], *, lost: bool = False
) -> Iterator[tuple[Log, Log, Resume]]:
    """A log of the old primary, one of the new that has not begun, and where the former ends."""
    old = Log(pair.primary)
    old.start()
    meanwhile(old)
    end, source = old.end, old.close()
    pair.promote(lost=lost)
    new = Log(pair.replica, source)
    try:
        yield old, new, end
    finally:
        new.capture.reader.close()


@KINDS
def test_the_log_continues_behind_the_same_transaction(kind: Family) -> None:
    """The old server's files have greater numbers than the new one's."""
    with pair_of(kind) as pair:
        for number in range(6):
            pair.insert(number)
            pair.primary.execute("FLUSH BINARY LOGS")

        def meanwhile(old: Log) -> None:
            pair.insert(*range(10, 20))
            old.catch_up()
            pair.insert(*range(20, 25))  # the event log does not hold these yet

        with promoted(pair, meanwhile) as (old, new, end):
            assert old.ids == list(range(10, 20))
            pair.insert(*range(25, 30), on=pair.replica)
            begin = new.start(end)
            assert begin.acknowledge > end.acknowledge, "positions grow"
            new.catch_up()
            assert new.ids == list(range(20, 30))
            assert min(new.capture.places) > max(old.capture.places)
            assert new.capture.reader.identify().system == old.capture.reader.identify().system
            # The same server again, by its positions.
            source, end = new.capture.reader.identify(), new.end
            new.capture.reader.close()
            pair.insert(30, on=pair.replica)
            again = Log(pair.replica, source)
            assert again.start(end) == end
            again.catch_up()
            assert again.ids == [30]
            end, source = again.end, again.close()
            # And back, as the old one has become a replica of the new one.
            pair.primary.start()
            pair.primary.primary = pair.replica
            pair.primary._follow(pair.replica)
            pair.insert(31, on=pair.replica)
            pair.primary.caught_up()
            pair.replica.kill()
            back = Log(pair.primary, source)
            assert back.start(end).acknowledge > end.acknowledge
            back.catch_up()
            assert back.ids == [31]
            assert back.close().member == old.capture.reader.identify().system


@KINDS
def test_a_transaction_that_is_durable_in_part_is_resumed_within_it(kind: Family) -> None:
    with pair_of(kind) as pair:

        def meanwhile(old: Log) -> None:
            pair.insert(1)
            old.catch_up()
            with pair.primary.connect("d") as session, session.cursor() as sql:
                sql.execute("BEGIN")
                for number in range(2, 102):
                    sql.execute(f"INSERT INTO t VALUES ({number}, '{'x' * 1000}')")
                sql.execute("COMMIT")
            old.capture.until(lambda: len(old.ids) > 30)

        with promoted(pair, meanwhile) as (old, new, end):
            assert 30 < len(old.ids) < 90, "nothing was in part"
            assert end.begun
            pair.insert(102, on=pair.replica)
            begin = new.start(end)
            assert begin.ordinal == end.ordinal
            new.catch_up()
            assert old.ids + new.ids == list(range(1, 103))


@KINDS
def test_a_prepared_transaction_is_decided_on_the_new_server(kind: Family) -> None:
    with pair_of(kind) as pair:

        def meanwhile(old: Log) -> None:
            with pair.primary.connect("d") as session, session.cursor() as sql:
                sql.execute("XA START 'x'")
                sql.execute("INSERT INTO t VALUES (1, 'prepared')")
                sql.execute("XA END 'x'")
                sql.execute("XA PREPARE 'x'")
            pair.insert(2, 3)
            old.capture.until(lambda: 3 in old.ids)

        with promoted(pair, meanwhile) as (old, new, end):
            assert old.ids == [2, 3]
            pair.insert(4, on=pair.replica)
            pair.replica.execute("XA COMMIT 'x'")
            pair.insert(5, on=pair.replica)
            new.start(end)
            new.catch_up()
            assert new.ids == [4, 1, 5]


@KINDS
def test_what_the_new_server_lacks_is_reported(kind: Family) -> None:
    with pair_of(kind) as pair:

        def meanwhile(old: Log) -> None:
            pair.insert(1)
            pair.replica.caught_up()
            pair.replica.execute("STOP SLAVE IO_THREAD")
            pair.insert(2, 3)
            old.catch_up()

        with promoted(pair, meanwhile, lost=True) as (old, new, end):
            pair.insert(4, 5, 6, 7, on=pair.replica)
            lost = end.executed.rpartition("-")[2]
            with pytest.raises(SourceChangedError, match=f"lacks transactions.*{lost}"):
                new.start(end)
            assert old.ids == [1, 2, 3]


@KINDS
def test_a_replica_that_is_behind_is_waited_for(kind: Family) -> None:
    """An address may move before the replica has applied all."""
    with pair_of(kind) as pair:
        old = Log(pair.primary)
        old.start()
        pair.insert(1)
        pair.replica.caught_up()
        pair.replica.execute("STOP SLAVE SQL_THREAD")
        pair.insert(2, 3)
        old.catch_up()
        end, source = old.end, old.close()
        new = Log(pair.replica, source)
        with pytest.raises(ConnectionLostError, match="once it has received them"):
            new.start(end)
        pair.replica.execute("START SLAVE SQL_THREAD")
        pair.promote()
        pair.insert(4, on=pair.replica)
        new.start(end)
        new.catch_up()
        assert new.ids == [4]
        new.close()


@KINDS
@pytest.mark.parametrize("rows", [1, 2000])
def test_errant_transactions_are_reported(kind: Family, rows: int) -> None:
    """A large one fills what is received at once, so that what follows comes by itself."""
    with pair_of(kind) as pair:

        def meanwhile(old: Log) -> None:
            pair.insert(1)
            pair.replica.caught_up()
            errant = ", ".join(f"({100 + number}, '{'x' * 1500}')" for number in range(rows))
            pair.replica.execute(f"INSERT INTO d.t VALUES {errant}")
            pair.insert(2)
            old.catch_up()

        with promoted(pair, meanwhile) as (_, new, end):
            pair.insert(3, on=pair.replica)
            with pytest.raises(GapError, match=r"errant transactions.*snapshot: when_needed"):
                new.start(end)


@KINDS
def test_what_was_purged_is_a_gap(kind: Family) -> None:
    with pair_of(kind) as pair:

        def meanwhile(old: Log) -> None:
            pair.insert(1)
            old.catch_up()
            pair.insert(2)

        with promoted(pair, meanwhile) as (_, new, end):
            pair.insert(3, on=pair.replica)
            pair.replica.execute("FLUSH BINARY LOGS")
            name, _ = pair.replica.binlog_end()
            while (
                pair.replica.execute("SHOW BINARY LOGS")[0][0] != name
            ):  # it is in use for a while
                pair.replica.execute(f"PURGE BINARY LOGS TO '{name}'")
            with pytest.raises(GapError, match="has purged transactions that were not captured"):
                new.start(end)


@KINDS
def test_a_server_that_is_no_replica_is_refused(kind: Family) -> None:
    with pair_of(kind) as pair, kind() as other:
        other.create_database("d")
        other.execute("CREATE TABLE d.t (a int PRIMARY KEY)")
        old = Log(pair.primary)
        old.start()
        pair.insert(1)
        old.catch_up()
        end, source = old.end, old.close()
        for last, told in ((end, "is not a replica"), (Resume(*end.to_json()), "no GTIDs")):
            wrong = Log(other, source)
            with pytest.raises(SourceChangedError, match=told):
                wrong.start(last)
            wrong.close()


def test_without_gtids_another_server_is_refused() -> None:
    off = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    with MySqlServer(settings=off) as server, MySqlServer(settings=off) as other:
        for each in (server, other):
            each.create_database("d")
            each.execute("CREATE TABLE d.t (a int PRIMARY KEY, b text)")
        old = Log(server)
        old.start()
        server.execute("INSERT INTO d.t VALUES (1, '')")
        old.catch_up()
        end, source = old.end, old.close()
        assert not end.executed
        new = Log(other, source)
        with pytest.raises(SourceChangedError, match="gtid_mode is not ON"):
            new.start(end)
        new.close()


# ---------------------------------------------------------------- processes


class Captured:
    """`tidelog capture` of what an address leads to."""

    def __init__(self, address: PathProxy, pair: Pair, directory: Path) -> None:
        self.directory = directory
        self.captures: list[CaptureProcess] = []
        self._address, self._pair = address, pair
        url = pair.primary.url.replace(f":{pair.primary.port}", f":{address.port}")
        self._source = {"kind": pair.primary.flavor, "url": url, "tables": ["d.*"]}
        self.file = directory / "tidelog.yaml"
        self.configure()

    def configure(self, **more: str) -> None:
        text = json.dumps({**self._source, **more})
        self.file.write_text(
            f"source: {text}\nlog: {{path: log, rollup_bytes: 0}}\n"
            f"state: {{url: 'sqlite:///{self.directory}/state.db'}}\ncapture: {{flush_ms: 10}}\n"
        )

    @property
    def config(self) -> Config:
        return load_config(self.file, {})

    def start(self) -> CaptureProcess:
        log_file = self.directory / f"capture-{len(self.captures)}.log"
        self.captures.append(CaptureProcess(self.file, log_file))
        return self.captures[-1]

    def promote(self) -> None:
        """The address leads to the replica from now on."""
        self._address.refuse()
        self._pair.promote()
        self._address.heal()
        self._address.lead_to(self._pair.replica.port)

    def wait_for(self, what: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not what():
            said = [one.log_file.read_text()[-3000:] for one in self.captures]
            assert time.monotonic() < deadline, said
            assert not self.captures[-1].died, said
            time.sleep(0.05)

    def dumps(self) -> list[str]:
        return [dump["status"] for dump in app.status(self.config).document.get("dumps", ())]

    def ids(self, kind: str = "I") -> list[int]:
        """Of the event log's records of a kind, in its order."""
        if not EventLog.exists(event_log_path(self.config)):
            return []
        log = EventLog.open(event_log_path(self.config))
        records = read_event_log(log, log.head_offset, log.latest_offset())
        return [int(one.new["a"] or 0) for one in records if one.op == kind and one.new]


@contextmanager
def captured_of(pair: Pair, directory: Path) -> Iterator[Captured]:
    """A capture of the primary, whose first dump is done."""
    with PathProxy(pair.primary.port) as address:
        captured = Captured(address, pair, directory)
        captured.start()
        try:
            captured.wait_for(lambda: captured.dumps() == ["completed"])
            yield captured
        finally:
            for capture in captured.captures:
                capture.kill()


@KINDS
def test_capture_continues_on_a_promoted_replica(kind: Family, tmp_path: Path) -> None:
    with ExitStack() as opened:
        pair = opened.enter_context(pair_of(kind))
        captured = opened.enter_context(captured_of(pair, tmp_path))
        (capture,) = captured.captures
        pair.insert(*range(1, 51))
        captured.wait_for(lambda: len(captured.ids()) == 50)
        pair.replica.caught_up()
        captured.promote()
        pair.insert(*range(51, 101), on=pair.replica)
        captured.wait_for(lambda: len(captured.ids()) == 100)
        app.send_command(captured.config, StartDump(dump_id="again"), timeout_s=30)
        captured.wait_for(lambda: captured.dumps().count("completed") == 2)
        assert captured.ids() == list(range(1, 101))
        assert capture.stop() == 0
        again = captured.start()
        pair.insert(101, on=pair.replica)
        captured.wait_for(lambda: captured.ids() == list(range(1, 102)))
        assert again.stop() == 0
        assert "is another server" not in again.log_file.read_text()


@KINDS
def test_with_consent_all_is_dumped_again(kind: Family, tmp_path: Path) -> None:
    with ExitStack() as opened:
        pair = opened.enter_context(pair_of(kind))
        captured = opened.enter_context(captured_of(pair, tmp_path))
        (capture,) = captured.captures
        pair.insert(100, on=pair.replica)
        pair.insert(1, 2)
        captured.wait_for(lambda: captured.ids() == [1, 2])
        captured.promote()
        assert capture.wait(60) == 1
        assert "errant transactions" in capture.log_file.read_text()
        captured.configure(snapshot="when_needed")
        again = captured.start()
        captured.wait_for(lambda: captured.dumps().count("completed") == 2)
        pair.insert(3, on=pair.replica)
        captured.wait_for(lambda: captured.ids() == [1, 2, 3])
        assert sorted(captured.ids("r")) == [1, 2, 100]
        assert again.stop() == 0
