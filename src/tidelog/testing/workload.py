"""A small shop and a random workload of transactions on it, for the demo and the benchmarks."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

import psycopg

TABLES = ("customers", "products", "orders", "order_items")

SHOP = """
CREATE TYPE order_status AS ENUM ('new', 'paid', 'sent', 'returned');
CREATE TABLE customers (
    id bigint PRIMARY KEY, email text NOT NULL, name text NOT NULL, country char(2),
    balance numeric(12,2) NOT NULL DEFAULT 0, active boolean NOT NULL DEFAULT true,
    created timestamptz NOT NULL DEFAULT now());
CREATE TABLE products (
    sku text PRIMARY KEY, title text NOT NULL, price numeric(10,2) NOT NULL, stock int NOT NULL,
    attributes jsonb, description text);
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id bigint NOT NULL, status order_status NOT NULL,
    total numeric(12,2) NOT NULL, placed timestamptz NOT NULL, note text);
CREATE TABLE order_items (
    order_id bigint NOT NULL, line int NOT NULL, sku text NOT NULL, quantity int NOT NULL,
    price numeric(10,2) NOT NULL, PRIMARY KEY (order_id, line));
CREATE SEQUENCE new_order_id;
CREATE SEQUENCE new_customer_id;
"""

FILL = """
INSERT INTO customers
    SELECT i, 'c' || i || '@example.org', 'Customer ' || i,
           (ARRAY['DE','FR','NL','PL','ES'])[1 + i % 5], (i * 37 % 100000) / 100.0, i % 11 > 0,
           timestamptz '2024-01-01' + i * interval '7 minutes'
    FROM generate_series(1, {customers}) i;
INSERT INTO products
    SELECT 'SKU-' || i, 'Product ' || i, 1 + (i * 53 % 50000) / 100.0, i * 7 % 500,
           jsonb_build_object('colour', (ARRAY['red','green','blue'])[1 + i % 3], 'weight', i % 90),
           CASE WHEN i % 50 = 0 THEN
               (SELECT string_agg(md5(i::text || n), '') FROM generate_series(1, 300) n)
           ELSE 'A plain description of product ' || i END
    FROM generate_series(1, {products}) i;
INSERT INTO orders
    SELECT i, 1 + i % {customers}, (ARRAY['new','paid','sent','returned'])[1 + i % 4]::order_status,
           (i * 91 % 90000) / 100.0, timestamptz '2025-01-01' + i * interval '3 minutes',
           CASE WHEN i % 7 = 0 THEN 'please ring twice' END
    FROM generate_series(1, {orders}) i;
INSERT INTO order_items
    SELECT 1 + i / 2, 1 + i % 2, 'SKU-' || (1 + i % {products}), 1 + i % 4, (i * 29 % 9000) / 100.0
    FROM generate_series(0, {items} - 1) i;
SELECT setval('new_order_id', {orders} + 1), setval('new_customer_id', {customers} + 1);
ANALYZE;
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows of each table at the start: 300,000 in all by default."""

    customers: int = 50_000
    products: int = 10_000
    orders: int = 100_000
    items: int = 140_000

    @property
    def rows(self) -> int:
        return self.customers + self.products + self.orders + self.items


def create_shop(dsn: str, sizes: Sizes) -> None:
    """Create and fill the four tables in the database's schema ``public``."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SHOP)
        connection.execute(
            FILL.format(
                customers=sizes.customers,
                products=sizes.products,
                orders=sizes.orders,
                items=sizes.items,
            )
        )


class Workload:
    """Writers that commit random transactions until stopped.

    Args:
        dsn: of the shop's database.
        sizes: as given to `create_shop`.
        writers: threads, each with a connection.
        per_second: transactions a second over all writers.
        seed: of the random choices.
    """

    def __init__(
        self, dsn: str, sizes: Sizes, *, writers: int = 2, per_second: float = 200, seed: int = 1
    ) -> None:
        self._dsn = dsn
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
        """Let the open transactions end. Raises what made a writer fail, if one did."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        if self._failure is not None:
            raise self._failure

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
        try:
            with psycopg.connect(self._dsn) as connection:
                due = time.monotonic()
                while not self._stop.is_set():
                    self._transaction(connection, rng)
                    due = max(due + self._pause_s, time.monotonic() - 1)
                    self._stop.wait(max(0.0, due - time.monotonic()))
        except Exception as failure:  # noqa: BLE001 - raised by stop
            self._failure = failure

    def _transaction(self, connection: psycopg.Connection, rng: random.Random) -> None:
        choice = rng.random()
        try:
            with connection.transaction():
                if choice < 0.35:
                    self._place_order(connection, rng)
                elif choice < 0.65:
                    self._move_orders_on(connection, rng)
                elif choice < 0.80:
                    self._change_product(connection, rng)
                elif choice < 0.90:
                    self._change_customer(connection, rng)
                elif choice < 0.97:
                    self._delete_order(connection, rng)
                else:
                    self._place_order(connection, rng)
                    raise psycopg.Rollback
            self.transactions += 1
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            self.rolled_back += 1

    def _order(self, rng: random.Random) -> int:
        return rng.randint(1, self._sizes.orders)

    def _place_order(self, connection: psycopg.Connection, rng: random.Random) -> None:
        lines = rng.randint(1, 4)
        connection.execute(
            """WITH placed AS (
                   INSERT INTO orders SELECT nextval('new_order_id'), %s, 'new', %s, now(), NULL
                   RETURNING id)
               INSERT INTO order_items
                   SELECT id, line, 'SKU-' || (1 + (id * 7 + line) %% %s), line, 9.90
                   FROM placed, generate_series(1, %s) line""",
            (
                rng.randint(1, self._sizes.customers),
                rng.randint(100, 9000) / 100,
                self._sizes.products,
                lines,
            ),
        )

    def _move_orders_on(self, connection: psycopg.Connection, rng: random.Random) -> None:
        connection.execute(
            """UPDATE orders SET status = CASE status WHEN 'new' THEN 'paid' WHEN 'paid' THEN 'sent'
                   ELSE 'returned' END::order_status, note = 'moved on'
               WHERE id = ANY(%s)""",
            (sorted(self._order(rng) for _ in range(rng.randint(1, 3))),),
        )

    def _change_product(self, connection: psycopg.Connection, rng: random.Random) -> None:
        # leaves the long description as it is: the log then lacks it (unchanged TOAST)
        connection.execute(
            "UPDATE products SET stock = stock - 1, price = price + 0.01 WHERE sku = %s",
            (f"SKU-{rng.randint(1, self._sizes.products // 50) * 50}",),
        )

    def _change_customer(self, connection: psycopg.Connection, rng: random.Random) -> None:
        customer = rng.randint(1, self._sizes.customers)
        if rng.random() < 0.2:  # a key change
            connection.execute(
                "UPDATE customers SET id = nextval('new_customer_id') WHERE id = %s", (customer,)
            )
        else:
            connection.execute(
                "UPDATE customers SET balance = balance + %s WHERE id = %s",
                (rng.randint(-500, 500) / 100, customer),
            )

    def _delete_order(self, connection: psycopg.Connection, rng: random.Random) -> None:
        order = self._order(rng)
        connection.execute("DELETE FROM order_items WHERE order_id = %s", (order,))
        connection.execute("DELETE FROM orders WHERE id = %s", (order,))
