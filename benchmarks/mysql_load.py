"""Single-row updates at a fixed rate, as pgbench makes them: exponential gaps, 8 connections.

    python -m benchmarks.mysql_load PORT [--rate 2000] [--rows 100000]

Runs until SIGTERM, then writes one JSON line: transactions, and percentiles of the milliseconds
from a statement's sending to its answer. PyMySQL connects; the packets are written and read raw,
so that the load takes little of a small machine.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import signal
import struct
import sys
import time

import numpy as np
import pymysql

STATEMENT = "UPDATE orders SET amount = amount + 1, updated = NOW(6) WHERE id = %d"
COM_QUERY = b"\x03"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    running = [True]
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    connections = [
        pymysql.connect(
            host="127.0.0.1", port=options.port, user="root", database="bench",
            autocommit=True, ssl_disabled=True,
        )
        for _ in range(options.clients)
    ]  # fmt: skip
    sockets = {each._sock.fileno(): each._sock for each in connections}  # type: ignore[attr-defined]
    poller = select.poll()
    for number in sockets:
        poller.register(number, select.POLLIN)
    free, sent = list(sockets), dict.fromkeys(sockets, 0.0)
    took: list[float] = []
    due = time.perf_counter()
    while running:
        now = time.perf_counter()
        while free and due <= now:
            number = free.pop()
            text = (STATEMENT % random.randint(1, options.rows)).encode()
            sockets[number].sendall(struct.pack("<I", len(text) + 1) + COM_QUERY + text)
            sent[number] = now
            due += random.expovariate(options.rate)
        wait_ms = max(0.0, due - time.perf_counter()) * 1000 if free else 100.0
        for number, _ in poller.poll(wait_ms):
            answer = sockets[number].recv(65_536)
            if len(answer) < 5 or answer[4] != 0:
                raise RuntimeError("the server refused an update")
            took.append(time.perf_counter() - sent[number])
            free.append(number)
    p50, p99 = np.percentile(took, [50, 99]) * 1000 if took else (0.0, 0.0)
    sys.stdout.write(json.dumps({"count": len(took), "p50": p50, "p99": p99}) + "\n")


if __name__ == "__main__":
    main()
