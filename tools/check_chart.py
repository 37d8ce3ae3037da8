"""Render deploy/chart by Helm in several ways, and validate each document against the schemas of Kubernetes.

Needs `helm`, and the package kubernetes-validate, which has the schemas: `make test-chart` makes it an environment.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import kubernetes_validate
import yaml

CHART = Path(__file__).parents[1] / "deploy/chart"
VERSIONS = ("1.33", "1.37")
"""Of Kubernetes: the oldest and the newest one that is tried."""
WAYS: tuple[Sequence[str], ...] = (
    (),
    ("monitoring.enabled=true",),
    ("pipeline.replicas=2", "pipeline.executors=3", "env.AWS_REGION=eu"),
)
"""Of rendering: values that are set besides."""
OF_AN_OPERATOR = "monitoring.coreos.com/"
"""The API of the Prometheus operator, whose kinds are none of Kubernetes."""


def rendered(values: Sequence[str]) -> list[dict[str, object]]:
    """Return the documents that Helm makes of the chart, and Spark's template of a pod."""
    given = [each for value in ("secretName=secrets", *values) for each in ("--set", value)]
    command = [shutil.which("helm") or "helm", "template", "shop", str(CHART), *given]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603
    documents = [each for each in yaml.safe_load_all(text) if each]
    for each in documents:
        if template := each.get("data", {}).get("executor.yaml"):
            documents.append(yaml.safe_load(template) | {"metadata": {"name": "executor"}})
    return documents


def main() -> None:
    """Print what was validated; end with the first fault of each document."""
    if not shutil.which("helm"):
        sys.exit(
            "helm is not there: `go install helm.sh/helm/v3/cmd/helm@v3.22.0`, or a package of it"
        )
    faults, valid, left_out = [], Counter[str](), Counter[str]()
    for values in WAYS:
        for document in rendered(values):
            kind = str(document["kind"])
            if str(document["apiVersion"]).startswith(OF_AN_OPERATOR):
                left_out[kind] += 1
                continue
            for version in VERSIONS:
                try:
                    kubernetes_validate.validate(document, version, strict=True)
                    valid[kind] += 1
                except kubernetes_validate.ValidationError as error:
                    where = ".".join(map(str, error.path))
                    faults.append(
                        f"{kind} ({version}, {', '.join(values)}): {where}: {error.message}"
                    )
    print("valid:", ", ".join(f"{count} {kind}" for kind, count in sorted(valid.items())))
    print("without a schema:", ", ".join(sorted(left_out)))
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
