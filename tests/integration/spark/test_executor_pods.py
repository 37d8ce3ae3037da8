"""Executors in pods, as the chart sets them up: there is no Kubernetes here, so Spark makes the pod
that it would ask for, and the command of its container is run on this machine.
"""

from __future__ import annotations

import json

import pytest
from tests.executors import told_by
from tests.support.chart import EXECUTOR, RELEASE, executor_settings, values

from tidelog import __version__


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_an_executor_s_pod_runs_as_the_chart_s_do_and_its_command_runs_tasks() -> None:
    chart = values()
    settings = executor_settings() | {
        "spark.driver.host": "127.0.0.1",
        "spark.kubernetes.executor.podTemplateFile": str(EXECUTOR),
        "spark.executorEnv.AWS_REGION": "eu-central-1",
        "spark.kubernetes.container.image.pullSecrets": "registry",
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
    }
    told = told_by("tests.integration.spark.executor_pod", json.dumps(settings), timeout_s=180)

    pod, container = told["pod"], told["pod"]["container"]
    assert container["image"] == chart["image"]["pipeline"]
    assert container["imagePullPolicy"] == chart["image"]["pullPolicy"]
    assert pod["spec"]["serviceAccountName"] == RELEASE["Name"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    security = container["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["capabilities"]) == (
        True,
        {"drop": ["ALL"]},
    )
    assert {"/tmp", "/var/lib/tidelog"} <= {each["mountPath"] for each in container["volumeMounts"]}
    assert container["resources"]["requests"]["cpu"] == str(chart["pipeline"]["executor"]["cores"])
    assert {"name": "AWS_REGION", "value": "eu-central-1"} in container["env"]
    assert not [each for each in container["env"] if "secretKeyRef" in each.get("valueFrom", {})]
    assert told["found"] == [["1", __version__]] * 2
    assert told["ended"] == 0
