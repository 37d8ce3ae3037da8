"""The targets, by the kind of output."""

from __future__ import annotations

from tests.faults.outputs.brokers import Kafka, KafkaTransactions
from tests.faults.outputs.databases import MariaDb, MySql, Postgres
from tests.faults.outputs.disks import Delta, Files, Iceberg
from tests.faults.outputs.http_servers import Api, OpenSearch, S3Delta, S3Files, S3Iceberg
from tests.faults.outputs.target import Target

TARGETS: dict[str, type[Target]] = {
    "postgres": Postgres,
    "mysql": MySql,
    "mariadb": MariaDb,
    "opensearch": OpenSearch,
    "kafka": Kafka,
    "kafka_transactions": KafkaTransactions,
    "http": Api,
    "files": Files,
    "files_s3": S3Files,
    "delta": Delta,
    "delta_s3": S3Delta,
    "iceberg": Iceberg,
    "iceberg_s3": S3Iceberg,
}
