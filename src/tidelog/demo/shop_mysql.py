"""The demo's shop in the SQL of MySQL and MariaDB; see `tidelog.demo.shop`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self

import pymysql
from pymysql.constants import ER

from tidelog.demo.shop import Conflict, Sizes
from tidelog.sources.mysql.connect import connect

SHOP = (
    """CREATE TABLE customers (
        id bigint PRIMARY KEY, email varchar(255) NOT NULL, name varchar(255) NOT NULL,
        country char(2), balance decimal(12,2) NOT NULL DEFAULT 0,
        active boolean NOT NULL DEFAULT true,
        created timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))""",
    """CREATE TABLE products (
        sku varchar(64) PRIMARY KEY, title varchar(255) NOT NULL, price decimal(10,2) NOT NULL,
        stock int NOT NULL, attributes json, description text)""",
    """CREATE TABLE orders (
        id bigint PRIMARY KEY, customer_id bigint NOT NULL,
        status enum('new', 'paid', 'sent', 'returned') NOT NULL,
        total decimal(12,2) NOT NULL, placed datetime(6) NOT NULL, note text)""",
    """CREATE TABLE order_items (
        order_id bigint NOT NULL, line int NOT NULL, sku varchar(64) NOT NULL,
        quantity int unsigned NOT NULL, price decimal(10,2) NOT NULL,
        PRIMARY KEY (order_id, line))""",
)

# ``i`` counts as generate_series does in the shop of PostgreSQL.
FILL = (
    """INSERT INTO customers
        SELECT i, CONCAT('c', i, '@example.org'), CONCAT('Customer ', i),
            ELT(1 + i % 5, 'DE', 'FR', 'NL', 'PL', 'ES'), (i * 37 % 100000) / 100, i % 11 > 0,
            TIMESTAMP '2024-01-01 00:00:00' + INTERVAL i * 7 MINUTE
        FROM ({series}) AS series WHERE i BETWEEN 1 AND {customers}""",
    """INSERT INTO products
        SELECT CONCAT('SKU-', i), CONCAT('Product ', i), 1 + (i * 53 % 50000) / 100, i * 7 % 500,
            JSON_OBJECT('colour', ELT(1 + i % 3, 'red', 'green', 'blue'), 'weight', i % 90),
            IF(i % 50, CONCAT('A plain description of product ', i),
                REPEAT(LEFT(SHA2(i, 256), 32), 300))
        FROM ({series}) AS series WHERE i BETWEEN 1 AND {products}""",
    """INSERT INTO orders
        SELECT i, 1 + i % {customers}, ELT(1 + i % 4, 'new', 'paid', 'sent', 'returned'),
            (i * 91 % 90000) / 100, TIMESTAMP '2025-01-01 00:00:00' + INTERVAL i * 3 MINUTE,
            IF(i % 7 = 0, 'please ring twice', NULL)
        FROM ({series}) AS series WHERE i BETWEEN 1 AND {orders}""",
    """INSERT INTO order_items
        SELECT 1 + i DIV 2, 1 + i % 2, CONCAT('SKU-', 1 + i % {products}), 1 + i % 4,
            (i * 29 % 9000) / 100
        FROM ({series}) AS series WHERE i < {items}""",
    "ANALYZE TABLE customers, products, orders, order_items",
)
_CONFLICTS = (ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.DUP_ENTRY)


class MySqlShop:
    """One connection to the shop, in the URL's database."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url, purpose="workload", autocommit=False)
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT DATABASE()")
            row = cursor.fetchone()
        self.namespace = str(row[0]) if row else ""
        # There are no sequences; a server numbers its connections upward.
        self._numbers = count(10**9 + self._connection.connection_id * 10**6)

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
        for statement in SHOP:
            self._run(statement)
        series = _series(max(sizes.customers, sizes.products, sizes.orders, sizes.items) + 1)
        for statement in FILL:
            self._run(
                statement.format(
                    series=series,
                    customers=sizes.customers,
                    products=sizes.products,
                    orders=sizes.orders,
                    items=sizes.items,
                )
            )
            self._connection.commit()

    @contextmanager
    def transaction(self, *, commit: bool) -> Iterator[None]:
        try:
            yield
            if commit:
                self._connection.commit()
        except pymysql.MySQLError as error:
            if error.args[0] in _CONFLICTS:
                raise Conflict from error
            raise
        finally:
            if self._connection.open:
                self._connection.rollback()

    def place_order(self, customer: int, total: float, lines: int, products: int) -> None:
        order = next(self._numbers)
        self._run(
            "INSERT INTO orders VALUES (%s, %s, 'new', %s, NOW(6), NULL)",
            (order, customer, f"{total:.2f}"),
        )
        items = ", ".join(
            f"({order}, {line}, 'SKU-{1 + (order * 7 + line) % products}', {line}, 9.90)"
            for line in range(1, lines + 1)
        )
        self._run(f"INSERT INTO order_items VALUES {items}")  # noqa: S608 - numbers

    def advance_orders(self, orders: Sequence[int]) -> None:
        self._run(
            """UPDATE orders SET status = CASE status WHEN 'new' THEN 'paid' WHEN 'paid' THEN 'sent'
                   ELSE 'returned' END, note = 'moved on'
               WHERE id IN %s""",
            (tuple(orders),),
        )

    def sell(self, product: int) -> None:
        self._run(
            "UPDATE products SET stock = stock - 1, price = price + 0.01 WHERE sku = %s",
            (f"SKU-{product}",),
        )

    def renumber(self, customer: int) -> None:
        number = next(self._numbers)
        self._run("UPDATE customers SET id = %s WHERE id = %s", (number, customer))

    def pay(self, customer: int, amount: float) -> None:
        self._run(
            "UPDATE customers SET balance = balance + %s WHERE id = %s",
            (f"{amount:.2f}", customer),
        )

    def delete_order(self, order: int) -> None:
        self._run("DELETE FROM order_items WHERE order_id = %s", (order,))
        self._run("DELETE FROM orders WHERE id = %s", (order,))

    def count(self, table: str) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - one of ours
            row = cursor.fetchone()
        assert row is not None
        return int(row[0])

    def _run(self, statement: str, arguments: Sequence[Any] | None = None) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, arguments)


def _series(length: int) -> str:
    """Return a SELECT of the numbers ``i`` from 0, at least ``length`` of them."""
    digit = " UNION ALL ".join(f"SELECT {d} AS d" for d in range(10))
    places = len(str(length - 1))
    total = " + ".join(f"{10**place} * p{place}.d" for place in range(places))
    tables = " CROSS JOIN ".join(f"({digit}) AS p{place}" for place in range(places))
    return f"SELECT {total} AS i FROM {tables}"  # noqa: S608 - digits
