"""The demo's shop in PostgreSQL's SQL; see `tidelog.demo.shop`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import psycopg

from tidelog.demo.shop import Conflict, Sizes

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


class PostgresShop:
    """One connection to the shop, in the database's schema ``public``."""

    namespace = "public"

    def __init__(self, dsn: str) -> None:
        self._connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(dsn)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def create(self, sizes: Sizes) -> None:
        with self._connection.transaction():
            self._connection.execute(SHOP.encode())
            self._connection.execute(
                FILL.format(
                    customers=sizes.customers,
                    products=sizes.products,
                    orders=sizes.orders,
                    items=sizes.items,
                ).encode()
            )

    @contextmanager
    def transaction(self, *, commit: bool) -> Iterator[None]:
        try:
            with self._connection.transaction(force_rollback=not commit):
                yield
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation) as error:
            raise Conflict from error

    def place_order(self, customer: int, total: float, lines: int, products: int) -> None:
        self._connection.execute(
            """WITH placed AS (
                   INSERT INTO orders SELECT nextval('new_order_id'), %s, 'new', %s, now(), NULL
                   RETURNING id)
               INSERT INTO order_items
                   SELECT id, line, 'SKU-' || (1 + (id * 7 + line) %% %s), line, 9.90
                   FROM placed, generate_series(1, %s) line""",
            (customer, total, products, lines),
        )

    def advance_orders(self, orders: Sequence[int]) -> None:
        self._connection.execute(
            """UPDATE orders SET status = CASE status WHEN 'new' THEN 'paid' WHEN 'paid' THEN 'sent'
                   ELSE 'returned' END::order_status, note = 'moved on'
               WHERE id = ANY(%s)""",
            (list(orders),),
        )

    def sell(self, product: int) -> None:
        self._connection.execute(
            "UPDATE products SET stock = stock - 1, price = price + 0.01 WHERE sku = %s",
            (f"SKU-{product}",),
        )

    def renumber(self, customer: int) -> None:
        self._connection.execute(
            "UPDATE customers SET id = nextval('new_customer_id') WHERE id = %s", (customer,)
        )

    def pay(self, customer: int, amount: float) -> None:
        self._connection.execute(
            "UPDATE customers SET balance = balance + %s WHERE id = %s", (amount, customer)
        )

    def delete_order(self, order: int) -> None:
        self._connection.execute("DELETE FROM order_items WHERE order_id = %s", (order,))
        self._connection.execute("DELETE FROM orders WHERE id = %s", (order,))

    def count(self, table: str) -> int:
        counted = self._connection.execute(f"SELECT count(*) FROM {table}".encode())  # noqa: S608
        row = counted.fetchone()
        assert row is not None
        return int(row[0])
