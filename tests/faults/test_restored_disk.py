"""`tidelog capture` on a server whose disk is put back to an earlier state, as in a restored VM."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import psycopg
from tests.faults.capture_fixture import Source
from tests.support.postgres import PostgresServer


def test_a_restored_disk_ends_capture_with_what_to_do(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with PostgresServer() as server:
        source = Source(server.create_database("restored"), tmp_path)
        source.start()
        source.wait_led()
        source.write(1, 10)
        source.wait_for(lambda: source.inserted() == list(range(1, 11)))
        assert source.captures[-1].stop() == 0
        server.stop()
        subprocess.run(["cp", "-a", str(server.data_dir), str(saved)], check=True)
        server.restart()
        source.start()
        source.sql = psycopg.connect(source.dsn, autocommit=True)
        source.write(11, 20)
        source.wait_for(lambda: source.inserted() == list(range(1, 21)))
        assert source.captures[-1].stop() == 0
        server.stop()
        subprocess.run(["rm", "-rf", str(server.data_dir)], check=True)
        subprocess.run(["mv", str(saved), str(server.data_dir)], check=True)
        server.restart()
        source.sql = psycopg.connect(source.dsn, autocommit=True)
        source.write(31, 40)
        source.sql.execute("CREATE TABLE aside AS SELECT generate_series(1, 100000)")
        again = source.start()
        assert again.wait(120) == 1
        said = again.log_file.read_text()
        assert "the event log holds transaction" in said, said
        assert source.inserted() == list(range(1, 21)), "nothing was appended"
        source.close()


def test_a_timeline_that_holds_all_is_followed_for_good(tmp_path: Path) -> None:
    """A promotion, or a recovery to the end of the log: capture goes on, and so it does when it is
    started again on the new timeline.
    """
    with PostgresServer(settings={"restore_command": "/bin/false"}) as server:
        source = Source(server.create_database("promoted"), tmp_path)
        source.start()
        source.wait_led()
        source.write(1, 10)
        source.wait_for(lambda: source.inserted() == list(range(1, 11)))
        assert source.captures[-1].stop() == 0
        server.stop()
        (server.data_dir / "recovery.signal").touch()
        server.restart()
        while server.execute("SELECT pg_is_in_recovery()") == [(True,)]:
            time.sleep(0.1)
        assert server.execute("SELECT timeline_id FROM pg_control_checkpoint()") == [(2,)]
        source.sql = psycopg.connect(source.dsn, autocommit=True)
        for begin in (11, 21, 31):
            source.write(begin, begin + 9)
            again = source.start()
            source.wait_for(
                lambda end=begin + 9, capture=again: (
                    capture.died or source.inserted() == list(range(1, end + 1))
                )
            )
            assert not again.died, again.log_file.read_text()
            assert again.stop() == 0
        source.close()
