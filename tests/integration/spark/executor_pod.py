"""A program: has Spark make the pod of an executor from settings, as JSON in the first argument,
runs its container's command as the executor of a driver that has no other, and prints both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import tidelog


def pod_of_executor(spark: SparkSession) -> dict[str, Any]:
    """The pod that Spark would ask Kubernetes for; its only container is ``container``."""
    context: Any = spark.sparkContext
    jvm, driver = context._jvm, context._jsc.sc()
    conf = driver.conf()
    none = jvm.scala.Option.empty()
    k8s = jvm.org.apache.spark.deploy.k8s.KubernetesExecutorConf(
        conf, context.applicationId, "1", none, 0
    )
    client = jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    profile = driver.resourceProfileManager().defaultResourceProfile()
    security = driver.env().securityManager()
    builder = jvm.org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
    made = builder.buildFromFeatures(k8s, security, client, profile).pod()
    text = jvm.io.fabric8.kubernetes.client.utils.Serialization.asJson
    return {**json.loads(text(made.pod())), "container": json.loads(text(made.container()))}


def main(settings: dict[str, str]) -> None:
    """Print the pod, and what a task of Python found in the executor."""
    builder = SparkSession.builder.master("local-cluster[0,1,1024]").appName("tidelog shop")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    pod = pod_of_executor(spark)
    container = pod["container"]
    given = {each["name"]: each.get("value", "127.0.0.1") for each in container["env"]}
    given = {name: value for name, value in given.items() if name != "SPARK_LOCAL_DIRS"}
    command = [*container["command"], *container["args"]]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as in the image
    executor = subprocess.Popen(command, env=os.environ | given | {"PATH": path}, stdout=2)
    try:
        rows = spark.sparkContext.parallelize(range(2), 2)
        found = rows.map(lambda _: (os.environ["SPARK_EXECUTOR_ID"], tidelog.__version__)).collect()
        spark.stop()
        ended = executor.wait(60)
    finally:
        executor.kill()
    print(json.dumps({"pod": pod, "found": found, "ended": ended}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
