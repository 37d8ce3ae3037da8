"""Documents that several tables contribute to, whatever the order they come in."""

from __future__ import annotations

import functools
import itertools
import operator
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs.destinations import Context
from tests.behaviours.outputs.search_index import SETTINGS, ask, found, node
from tests.integration.opensearch.front import before_the_node
from tests.integration.opensearch.test_opensearch_output import bring, forget_progress, kept_soon
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.opensearch.client import Cluster, ClusterOptions
from tidelog.outputs.opensearch.documents import JOINED_MAPPING, JoinedPart
from tidelog.outputs.opensearch.indices import Indices
from tidelog.outputs.opensearch.output import JoinedIndex
from tidelog.outputs.opensearch.writer import Index

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ITEM_KEY = ("order_id", "line")


class Shop:
    """Orders, a payment of each, and its items."""

    def __init__(self, context: Context, alias: str) -> None:
        self.context, self.alias = context, alias
        self.built = context.built
        self.orders = self.built.table("shop.orders", {"id": "int64", "v": "text", "n": "int64"})
        self.payments = self.built.table(
            "pay.payments", {"order_id": "int64", "paid": "bool"}, ("order_id",), relation_id=2
        )
        items = {"order_id": "int64", "line": "int64", "sku": "text", "n": "int64"}
        self.items = self.built.table("shop.items", items, ITEM_KEY, relation_id=3)
        tables: dict[str, tuple[str, tuple[str, ...]]] = {
            "shop.orders": ("", ()),
            "pay.payments": ("payment", ("order_id",)),
            "shop.items": ("items", ("order_id",)),
        }
        self.joined = (JoinedIndex(alias, tables),)

    def bring(self, **options: Any) -> str:
        """Why tables are left out."""
        self.built.flush()
        return bring(self.context, "other-{name}", joined=self.joined, **options)

    def found(self) -> dict[str, Any]:
        rows = found(self.alias)
        for row in rows.values():
            items = row.get("items", [])
            row["items"] = {each.pop("_key"): each for each in items}
            assert len(row["items"]) == len(items)
        return rows


@pytest.fixture
def shop(context: Context, name: str) -> Shop:
    return Shop(context, name)


def item(order: int, line: int, sku: str, n: int) -> dict[str, Any]:
    return {"order_id": order, "line": line, "sku": sku, "n": n}


def test_tables_contribute_in_any_order(shop: Shop) -> None:
    built = shop.built
    built.insert(shop.items, "1", "1", "apple", "1")
    built.insert(shop.payments, "1", "f")
    shop.bring()
    assert shop.found() == {}  # there is no order yet
    built.insert(shop.orders, "1", "a", "0")
    built.insert(shop.items, "1", "2", "pear", "2")
    shop.bring()
    assert shop.found() == {
        "1": {
            "id": 1, "v": "a", "n": 0,
            "payment": {"order_id": 1, "paid": False},
            "items": {"1|1": item(1, 1, "apple", 1), "1|2": item(1, 2, "pear", 2)},
        }
    }  # fmt: skip
    built.update(shop.orders, "1", UNCHANGED, "5")
    built.update(shop.items, "1", "1", UNCHANGED, "7")
    built.delete(shop.items, "1", "2")
    built.update(shop.payments, "1", "t")
    shop.bring()
    assert shop.found()["1"] == {
        "id": 1, "v": "a", "n": 5,
        "payment": {"order_id": 1, "paid": True},
        "items": {"1|1": item(1, 1, "apple", 7)},
    }  # fmt: skip
    query = {"nested": {"path": "items", "query": {"term": {"items.sku.keyword": "apple"}}}}
    hits = ask("POST", f"/{shop.alias}/_search", {"query": query})["hits"]["hits"]
    assert [each["_id"] for each in hits] == ["1"]
    forget_progress(shop.context)
    shop.bring()  # the whole log again
    assert shop.found()["1"]["items"] == {"1|1": item(1, 1, "apple", 7)}


def test_a_document_put_in_by_hand_gives_way(shop: Shop) -> None:
    """Whatever it has where rows of other tables belong."""
    built = shop.built
    built.insert(shop.orders, "1", "a", "0")
    shop.bring()
    for key in "12":
        ask("PUT", f"/{shop.alias}/_doc/{key}", {"id": 7, "items": "none", "payment": [1], "x": 1})
    built.insert(shop.items, "2", "1", "apple", "1")
    built.insert(shop.payments, "2", "t")
    built.insert(shop.orders, "2", "b", "0")
    built.update(shop.orders, "1", "c", "1")
    shop.bring()
    assert shop.found() == {
        "1": {"id": 1, "v": "c", "n": 1, "items": {}},
        "2": {
            "id": 2, "v": "b", "n": 0,
            "payment": {"order_id": 2, "paid": True},
            "items": {"2|1": item(2, 1, "apple", 1)},
        },
    }  # fmt: skip
    ask("PUT", f"/{shop.alias}/_doc/3", {"x": 1})
    built.truncate(shop.items)
    shop.bring()
    ask("DELETE", f"/{shop.alias}/_doc/3")
    assert {key: row["items"] for key, row in shop.found().items()} == {"1": {}, "2": {}}


def test_an_element_moves_to_another_document_with_its_key(shop: Shop) -> None:
    built = shop.built
    for order in "12":
        built.insert(shop.orders, order, "a", "0")
    built.insert(shop.items, "1", "1", "apple", "1")
    shop.bring()
    built.update(shop.items, "2", "1", "apple", "1", key=["1", "1"])
    shop.bring()
    assert {key: list(row["items"]) for key, row in shop.found().items()} == {"1": [], "2": ["2|1"]}


def test_a_deleted_root_hides_the_document_and_comes_back_with_its_parts(shop: Shop) -> None:
    built = shop.built
    built.insert(shop.orders, "1", "a", "0")
    built.insert(shop.items, "1", "1", "apple", "1")
    shop.bring()
    built.delete(shop.orders, "1")
    shop.bring(tombstone_retention_s=-60.0)
    assert shop.found() == {}
    built.insert(shop.orders, "1", "b", "1")
    shop.bring()
    assert list(shop.found()["1"]["items"]) == ["1|1"]
    built.delete(shop.orders, "1")
    built.delete(shop.items, "1", "1")
    shop.bring(tombstone_retention_s=-60.0)
    assert kept_soon(f"{shop.alias}-000001", 0)


def test_truncates_remove_what_their_table_contributed(shop: Shop) -> None:
    built = shop.built
    for order in "12":
        built.insert(shop.orders, order, "a", "0")
        built.insert(shop.items, order, "1", "apple", "1")
        built.insert(shop.payments, order, "t")
    shop.bring()
    built.truncate(shop.items)
    built.insert(shop.items, "1", "2", "pear", "1")
    built.truncate(shop.payments)
    shop.bring()
    rows = shop.found()
    assert {key: list(row["items"]) for key, row in rows.items()} == {"1": ["1|2"], "2": []}
    assert not any("payment" in row for row in rows.values())
    built.truncate(shop.orders)
    built.insert(shop.orders, "1", "b", "0")
    shop.bring()
    assert {key: list(row["items"]) for key, row in shop.found().items()} == {"1": ["1|2"]}


def test_random_histories_end_as_the_tables_do(shop: Shop) -> None:
    """In batches that several tasks write at once, each of them once more after a replay."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    orders: dict[int, dict[str, Any]] = {}
    items: dict[tuple[int, int], dict[str, Any]] = {}
    for number in range(240):
        order, line = random_.randrange(6), random_.randrange(3)
        if random_.random() < 0.4:
            row = {"id": order, "v": f"v{number}", "n": number}
            if order in orders and random_.random() < 0.4:
                shop.built.delete(shop.orders, str(order))
                del orders[order]
            else:
                write = shop.built.update if order in orders else shop.built.insert
                write(shop.orders, *(str(value) for value in row.values()))
                orders[order] = row
        elif (order, line) in items and random_.random() < 0.4:
            shop.built.delete(shop.items, str(order), str(line))
            del items[order, line]
        else:
            row = item(order, line, f"s{number}", number)
            write = shop.built.update if (order, line) in items else shop.built.insert
            write(shop.items, *(str(value) for value in row.values()))
            items[order, line] = row
        if number % 60 == 59:
            shop.bring()
            if number % 120 == 119:
                forget_progress(shop.context)
                shop.bring()
            expected = {
                str(key): row
                | {"items": {f"{o}|{ln}": each for (o, ln), each in items.items() if o == key}}
                for key, row in orders.items()
            }
            assert shop.found() == expected, f"seed {seed}"


def test_two_databases_contribute_to_one_document(shop: Shop, tmp_path: Path) -> None:
    other = BuiltLog(tmp_path / "second" / "log", start_offset=10_000)
    (tmp_path / "second").mkdir(exist_ok=True)
    stock = other.table("stock.levels", {"order_id": "int64", "left": "int64"}, ("order_id",))
    tables = dict(shop.joined[0].tables) | {"stock.levels": ("stock", ("order_id",))}
    shop.joined = (JoinedIndex(shop.alias, tables),)
    second = Context(shop.context.spark, other, tmp_path / "second")

    def bring_second() -> None:
        other.flush()
        bring(second, "other-{name}", joined=shop.joined, delivery=Delivery("second"))

    other.insert(stock, "1", "7")
    bring_second()
    shop.built.insert(shop.orders, "1", "a", "0")
    shop.bring()
    other.update(stock, "1", "6")
    bring_second()
    shop.built.update(shop.orders, "1", "b", "0")
    shop.bring()
    row = shop.found()["1"]
    assert (row["v"], row["stock"]) == ("b", {"order_id": 1, "left": 6})
    shop.built.delete(shop.orders, "1")
    shop.bring(tombstone_retention_s=-60.0)
    assert shop.found() == {}
    other.delete(stock, "1")
    bring_second()
    shop.built.insert(shop.orders, "2", "a", "0")
    shop.bring(tombstone_retention_s=-60.0)
    assert kept_soon(f"{shop.alias}-000001", 2)  # a version of one log says nothing in the other


def test_a_part_whose_deletes_don_t_tell_the_root_is_refused(shop: Shop) -> None:
    tables = dict(shop.joined[0].tables) | {"shop.items": ("items", ("sku",))}
    shop.joined = (JoinedIndex(shop.alias, tables),)
    shop.built.insert(shop.items, "1", "1", "apple", "1")
    assert "sku are not of the key" in shop.bring()


def test_what_several_outputs_note_of_an_index_at_once_is_all_kept(name: str) -> None:
    """Several processes, which begin with the same documents in the same moment."""
    root = Index(name, part=JoinedPart("", ("id",), False))
    options = ClusterOptions((node().url,))
    start = threading.Barrier(4)

    def note(number: int) -> None:
        indices = Indices(Cluster(options), f"output{number}")
        start.wait()
        for _ in range(3):
            if not indices.find(name):
                indices.create(root, SETTINGS, {"_tidelog": JOINED_MAPPING})
        for n in range(20):
            indices.note(name, functools.partial(operator.or_, {f"{number}-{n}": n}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(note, range(4)))
    indices = Indices(Cluster(options), "last")
    assert indices.find(name)
    assert indices.notes(name) == {f"{number}-{n}": n for number in range(4) for n in range(20)}
    assert found(name) == {}  # of what is noted searches see nothing


@pytest.mark.parametrize("fault", ["slow", "timed out", "lost", "conflict"])
def test_removing_parts_is_done_when_the_cluster_says_so(shop: Shop, fault: str) -> None:
    shop.built.insert(shop.orders, "1", "a", "0")
    shop.built.insert(shop.items, "1", "1", "apple", "1")
    shop.bring()
    shop.built.truncate(shop.items)
    answers = itertools.count(1)

    def change(method: str, path: str, status: int, answer: Any) -> tuple[int, Any]:
        if "_update_by_query" in path and "wait_for_completion=false" not in path:
            time.sleep(3)  # longer than the client waits
        if "/_tasks/" not in path or next(answers) > 2:
            return status, answer
        if fault == "slow":
            return 200, {"completed": False, "task": {"status": {"updated": 0}}}
        if fault == "lost":
            return 404, {"error": {"type": "resource_not_found_exception"}}
        done = {"timed_out": fault == "timed out", "version_conflicts": int(fault == "conflict")}
        return 200, {"completed": True, "response": {"failures": [], **done}}

    with before_the_node(change) as front:
        shop.bring(cluster=ClusterOptions((front.url,), timeout_s=2.0))
        assert front.asked("_update_by_query") == (1 if fault == "slow" else 3)
        assert front.asked("/_tasks/") >= 3
    assert shop.found()["1"]["items"] == {}
