"""Digests of rows, also on servers from 9.6 on, which have no MD5 (`make test-mysql`)."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pymysql
import pytest
from tests.support.mysql import MySqlFamilyServer

from tidelog.codecs.columns import times
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, Digest
from tidelog.sources.mysql.catalogue.tables import MySqlCatalogue
from tidelog.sources.mysql.chunks.digests import MySqlDigests

pytestmark = pytest.mark.integration


def test_a_digest_is_the_sum_of_the_rows_hashes(
    sql: pymysql.Connection[Any], mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    run(sql, "CREATE TABLE t (id int PRIMARY KEY, v varchar(9))")
    run(sql, "INSERT INTO t VALUES (1, 'é'), (2, NULL)")
    digest = digest_of(mysql_family, mysql_family_database, "id", "v")
    assert digest == sum_of("1,2:é,", "2,~,")


def test_dates_of_keys_may_be_before_1970_or_zero(
    sql: pymysql.Connection[Any], mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    run(sql, "SET sql_mode = ''")
    run(sql, "CREATE TABLE t (d date, at datetime(6), PRIMARY KEY (d, at))")
    run(sql, "INSERT INTO t VALUES ('0000-00-00', '0000-00-00 00:00:01')")
    run(sql, "INSERT INTO t VALUES ('1960-01-01', '1960-01-01 00:00:00.5')")
    zero, early, day = times.FIRST_INVALID_DATE, -3653, 86_400_000_000
    digest = digest_of(mysql_family, mysql_family_database, "d", "at")
    texts = f"{zero},{zero * day + 1_000_000},", f"{early},{early * day + 500_000},"
    assert digest == sum_of(*texts)


def run(sql: pymysql.Connection[Any], statement: str) -> None:
    with sql.cursor() as cursor:
        cursor.execute(statement)


def digest_of(server: MySqlFamilyServer, database: str, *columns: str) -> Digest:
    table, url = TableName(database, "t"), server.dsn(database)
    catalogue, digests = MySqlCatalogue(url), MySqlDigests(url)
    try:
        shape = catalogue.shape(table)
        assert shape is not None
        return digests.digest(ChunkRequest(table), shape.schema, columns)
    finally:
        catalogue.close()
        digests.close()


def sum_of(*texts: str) -> Digest:
    hashes = [int(sha256(text.encode()).hexdigest()[:15], 16) for text in texts]
    return Digest(len(texts), sum(hashes))
