"""The shop that the demo and the benchmarks work on; each database spells it in its own module."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

TABLES = ("customers", "products", "orders", "order_items")


class Conflict(Exception):  # noqa: N818 - it is no error: what happens to transactions
    """Another transaction was in the way; this one was rolled back."""


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
    """One connection to a shop. Used by one thread.

    ``namespace``: where its tables are. All but `create` runs inside `transaction`.
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
        """One transaction, rolled back unless ``commit``. Raises Conflict."""
        ...

    def place_order(self, customer: int, total: float, lines: int, products: int) -> None: ...

    def move_orders_on(self, orders: Sequence[int]) -> None: ...

    def sell(self, product: int) -> None:
        """Leaves the long description as it is: a log may then lack it (unchanged TOAST)."""
        ...

    def renumber(self, customer: int) -> None:
        """A change of a key."""
        ...

    def pay(self, customer: int, amount: float) -> None: ...

    def delete_order(self, order: int) -> None: ...

    def count(self, table: str) -> int:
        """Rows of one of `TABLES`."""
        ...
