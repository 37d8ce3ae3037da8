"""`tidelog capture` on a server whose disk is put back to an earlier state, as in a restored VM."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
from tests.faults.capture_fixture import Source

from tidelog.testing.postgres import PostgresServer


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
