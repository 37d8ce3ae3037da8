"""A small shop and a random workload of transactions, for the demo and the benchmarks.

The SQL of each database is in `tidelog.demo.shop_postgres` and `tidelog.demo.shop_mysql`.
"""

from __future__ import annotations

import random
import threading
import time

from tidelog.demo.shop import Conflict, Shop, Sizes


def open_shop(url: str) -> Shop:
    """Open a connection to the shop in the database of ``url``."""
    if url.startswith(("mysql://", "mariadb://")):
        from tidelog.demo.shop_mysql import MySqlShop

        return MySqlShop(url)
    from tidelog.demo.shop_postgres import PostgresShop

    return PostgresShop(url)


def create_shop(url: str, sizes: Sizes) -> str:
    """Create and fill the four tables in the database of ``url``; return their namespace."""
    with open_shop(url) as shop:
        shop.create(sizes)
        return shop.namespace


class Workload:
    """Writers that commit random transactions until they are stopped.

    Args:
        url: the URL of the shop's database.
        sizes: the sizes given to `create_shop`.
        writers: the number of threads, each with a connection.
        per_second: the transactions a second of all writers.
        seed: the seed of the random choices.
    """

    def __init__(
        self, url: str, sizes: Sizes, *, writers: int = 2, per_second: float = 200, seed: int = 1
    ) -> None:
        self._url = url
        self._sizes = sizes
        self._pause_s = writers / per_second
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self.transactions = 0
        self.rolled_back = 0
        self._threads = [
            threading.Thread(target=self._run, args=(seed + i,), name=f"workload-{i}", daemon=True)
            for i in range(writers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the open transactions. Raises the error of a writer, if one failed."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        if self._failure is not None:
            raise self._failure

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
        try:
            with open_shop(self._url) as shop:
                due = time.monotonic()
                while not self._stop.is_set():
                    self._transaction(shop, rng)
                    due = max(due + self._pause_s, time.monotonic() - 1)
                    self._stop.wait(max(0.0, due - time.monotonic()))
        except Exception as failure:  # noqa: BLE001 - raised by stop
            self._failure = failure

    def _transaction(self, shop: Shop, rng: random.Random) -> None:
        choice = rng.random()
        try:
            with shop.transaction(commit=choice < 0.97):
                if choice < 0.35 or choice >= 0.97:
                    self._place_order(shop, rng)
                elif choice < 0.65:
                    orders = {self._order(rng) for _ in range(rng.randint(1, 3))}
                    shop.advance_orders(sorted(orders))
                elif choice < 0.80:
                    every = min(50, self._sizes.products)
                    shop.sell(rng.randint(1, self._sizes.products // every) * every)
                elif choice < 0.90:
                    self._change_customer(shop, rng)
                else:
                    shop.delete_order(self._order(rng))
            self.transactions += 1
        except Conflict:
            self.rolled_back += 1

    def _order(self, rng: random.Random) -> int:
        return rng.randint(1, self._sizes.orders)

    def _place_order(self, shop: Shop, rng: random.Random) -> None:
        lines = rng.randint(1, 4)
        customer = rng.randint(1, self._sizes.customers)
        total = rng.randint(100, 9000) / 100
        shop.place_order(customer, total, lines, self._sizes.products)

    def _change_customer(self, shop: Shop, rng: random.Random) -> None:
        customer = rng.randint(1, self._sizes.customers)
        if rng.random() < 0.2:
            shop.renumber(customer)
        else:
            shop.pay(customer, rng.randint(-500, 500) / 100)
