"""A process of its own that waits for a server while its other thread says that it lives.

``python -m tests.faults.stalled_client <what> <dsn> <how long an answer's end may take>``
"""

from __future__ import annotations

import sys
import threading
import time

from tidelog.sources.postgres import answers
from tidelog.sources.postgres.chunks.copy_out import CopyReader
from tidelog.sources.postgres.connect import connect
from tidelog.sources.postgres.stream.replication import ReplicationStream

FAILS = "COPY (SELECT 1 / (5 - i) FROM generate_series(1, 9) AS i) TO STDOUT"
ENDS = "COPY (SELECT 1) TO STDOUT"
LARGE = "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 20000)) TO STDOUT"


def copy(dsn: str, query: str, limit: int = 0) -> None:
    connection = connect(dsn, purpose="chunks")
    reader = CopyReader()
    reader.read(connection.pgconn, "COPY (SELECT 1) TO STDOUT")  # compiles
    print("ready", flush=True)
    sys.stdin.readline()
    reader.read(connection.pgconn, query, limit_bytes=limit)


def identify(dsn: str) -> None:
    stream = ReplicationStream(dsn)
    print("ready", flush=True)
    sys.stdin.readline()
    stream.identify()


WORK = {
    "copy that fails": lambda dsn: copy(dsn, FAILS),
    "copy that ends": lambda dsn: copy(dsn, ENDS),
    "copy that is cut": lambda dsn: copy(dsn, LARGE, limit=1 << 20),
    "identify": identify,
}


def main() -> None:
    what, dsn = sys.argv[1:3]
    answers.ANSWER_S = answers.END_S = float(sys.argv[3])

    def work() -> None:
        try:
            WORK[what](dsn)
            print("done", flush=True)
        except BaseException as error:  # noqa: BLE001 - the test reads it
            print("ended", type(error).__name__, error, flush=True)

    threading.Thread(target=work, daemon=True).start()
    while True:
        print("tick", flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
