"""Jars that both Kafka's broker and those who read from it need, pinned once."""

from __future__ import annotations

from tidelog.system.maven import Jar

KAFKA_CLIENT_JARS = (
    Jar(
        "com.fasterxml.jackson.core",
        "jackson-annotations",
        "2.19.0",
        "ead60e9cac0e42b57092b9e2d087ff43536e9477d4486ba393037a8cc156cda7",
    ),
    Jar(
        "com.fasterxml.jackson.core",
        "jackson-core",
        "2.19.0",
        "da8e859bac94874528116a25f20c68560e4287acbf27628711b8a4f96b028430",
    ),
    Jar(
        "com.fasterxml.jackson.core",
        "jackson-databind",
        "2.19.0",
        "ceda311f476c3b18e1d2b240c94e2dcb9c8d44e70f8afa9facab88bac4ddc03a",
    ),
    Jar(
        "com.fasterxml.jackson.datatype",
        "jackson-datatype-jdk8",
        "2.19.0",
        "04f1a3f9da8155995dd00098d6847cdb9b7af67f4a3028c94031eff017c8e3e5",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-clients",
        "4.1.0",
        "eb74709dc3be35e06208827860c87a94872e8a4b00f466880670785c85a20627",
    ),
    Jar(
        "org.slf4j",
        "slf4j-api",
        "1.7.36",
        "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    ),
)
