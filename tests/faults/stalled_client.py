"""A process of its own that waits for a server while its other thread says that it lives.

``python -m tests.faults.stalled_client <what> <dsn> <how long an answer's end may take>``
"""

from __future__ import annotations

import sys
import threading
import time

from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.chunks.rows import CopyReader
from tidelog.sources.postgres.connect import connect
from tidelog.sources.postgres.stream.replication import ReplicationStream

FAILS = "COPY (SELECT 1 / (5 - i) FROM generate_series(1, 9) AS i) TO STDOUT"
ENDS = "COPY (SELECT 1) TO STDOUT"
LARGE = "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 20000)) TO STDOUT"
SMALL = "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 8)) TO STDOUT"


def say(line: str) -> None:
    """Whole, whatever the other thread says."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def copy(
    dsn: str, query: str, limit: int = 0, *, timeout_ms: int = 0, plainly: bool = False
) -> None:
    connection = connect(dsn, purpose="chunks", settings={"statement_timeout": str(timeout_ms)})
    reader = CopyReader()
    if plainly:
        reader._functions = None
    reader.read(connection, "COPY (SELECT 1) TO STDOUT")  # compiles
    say("ready")
    sys.stdin.readline()
    reader.read(connection, query, limit_bytes=limit)


def statement(dsn: str) -> None:
    connection = connect(dsn, purpose="chunks", settings={"statement_timeout": "500"})
    say("ready")
    sys.stdin.readline()
    connection.execute(b"SELECT 1")


def identify(dsn: str) -> None:
    stream = ReplicationStream(dsn)
    say("ready")
    sys.stdin.readline()
    stream.identify()


WORK = {
    "copy that fails": lambda dsn: copy(dsn, FAILS),
    "copy that ends": lambda dsn: copy(dsn, ENDS),
    "copy that is cut": lambda dsn: copy(dsn, LARGE, limit=1 << 20),
    "copy within a time": lambda dsn: copy(dsn, LARGE, timeout_ms=500),
    "copy within a time, plainly": lambda dsn: copy(dsn, LARGE, timeout_ms=500, plainly=True),
    "small copy within a time": lambda dsn: copy(dsn, SMALL, timeout_ms=500),
    "statement within a time": statement,
    "identify": identify,
}


def main() -> None:
    what, dsn = sys.argv[1:3]
    async_results.ANSWER_S = async_results.END_S = float(sys.argv[3])

    def work() -> None:
        try:
            WORK[what](dsn)
            say("done")
        except BaseException as error:  # noqa: BLE001 - the test reads it
            say(f"ended {type(error).__name__} {error}")

    threading.Thread(target=work, daemon=True).start()
    while True:
        say("tick")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
