"""The shop of the demo and the benchmarks; each database has its own SQL module."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

TABLES = ("customers", "products", "orders", "order_items")


class Conflict(Exception):  # noqa: N818 - no error: it happens to transactions
    """Raised when a transaction was rolled back because of another one."""


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


class Shop(Protocol):
    """One connection to a shop. Used by one thread. ``namespace``: that of its tables. All but
    `create` runs inside `transaction`.
    """

    @property
    def namespace(self) -> str: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def create(self, sizes: Sizes) -> None:
        """Create and fill the four tables."""
        ...

    def transaction(self, *, commit: bool) -> AbstractContextManager[None]:
        """Run one transaction, rolled back unless ``commit``. Raises Conflict."""
        ...

    def place_order(self, customer: int, total: float, lines: int, products: int) -> None: ...

    def advance_orders(self, orders: Sequence[int]) -> None: ...

    def sell(self, product: int) -> None:
        """Change a product but not its long text, which a log may then lack (unchanged TOAST)."""
        ...

    def renumber(self, customer: int) -> None:
        """Change a key."""
        ...

    def pay(self, customer: int, amount: float) -> None: ...

    def delete_order(self, order: int) -> None: ...

    def count(self, table: str) -> int:
        """Return the rows of one of `TABLES`."""
        ...
