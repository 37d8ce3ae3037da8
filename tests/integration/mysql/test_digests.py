"""Digests of rows, also on servers from 9.6 on, which have no MD5 (`make test-mysql`)."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pymysql
import pytest

from tidelog.demo.servers.mysql import MySqlFamilyServer
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, Digest
from tidelog.sources.mysql.catalogue.tables import MySqlCatalogue
from tidelog.sources.mysql.chunks.digests import MySqlDigests

pytestmark = pytest.mark.integration


def test_a_digest_is_the_sum_of_the_rows_hashes(
    sql: pymysql.Connection[Any], mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    with sql.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(9))")
        cursor.execute("INSERT INTO t VALUES (1, 'é'), (2, NULL)")
    table, url = TableName(mysql_family_database, "t"), mysql_family.dsn(mysql_family_database)
    catalogue, digests = MySqlCatalogue(url), MySqlDigests(url)
    try:
        shape = catalogue.shape(table)
        assert shape is not None
        found = digests.digest(ChunkRequest(table), shape.schema, ["id", "v"])
    finally:
        catalogue.close()
        digests.close()
    texts = ("1,2:é,", "2,~,")
    hashes = [int(sha256(text.encode()).hexdigest()[:15], 16) for text in texts]
    assert found == Digest(2, sum(hashes))
