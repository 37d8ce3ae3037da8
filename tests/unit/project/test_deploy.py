"""What deploy/ has: valid configurations, valid units for systemd, a chart that renders."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from tests.support.chart import EXECUTOR, RELEASE, executor_settings, values

from tidelog import __version__
from tidelog.config import Config, parse_config
from tidelog.errors import ConfigError

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "chart"
COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text(encoding="utf-8"))
SECRETS = {
    "PGPASSWORD": "p", "TIDELOG_TOKEN": "t" * 8, "TIDELOG_METRICS_TOKEN": "m" * 8,
    "POD_IP": "10.0.0.7", "POD_NAME": "shop-pipeline-1", "HOSTNAME": "host",
}  # fmt: skip
MOST_EXPOSED = 2.0
"""Of `systemd-analyze security`: 10 is worst."""


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str | Path) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def configurations() -> dict[str, str]:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return {
        "chart": yaml.safe_dump(values["config"]),
        "compose": (DEPLOY / "compose/tidelog.yaml").read_text(encoding="utf-8"),
    }


@pytest.mark.parametrize("name", ["chart", "compose"])
def test_configurations_can_be_read_and_need_their_variables(name: str, tmp_path: Path) -> None:
    text = configurations()[name]
    assert isinstance(parse_config(text, name, tmp_path, SECRETS), Config)
    for variable in set(re.findall(r"\$\{(\w+)\}", text)):
        others = {key: value for key, value in SECRETS.items() if key != variable}
        with pytest.raises(ConfigError, match=f"{variable} is not set"):
            parse_config(text, name, tmp_path, others)


def test_compose_gives_each_service_what_its_configuration_needs() -> None:
    needed = set(re.findall(r"\$\{(\w+)\}", configurations()["compose"]))
    for name in ("capture", "pipeline"):
        service = COMPOSE["services"][name]
        assert needed <= set(service["environment"])
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        for mount in service["volumes"]:
            source = mount.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / "compose" / source).is_file()
    text = (DEPLOY / "compose/compose.yaml").read_text(encoding="utf-8")
    outside = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    assert outside
    assert all(rest.startswith(":?") for _, rest in outside), "a forgotten variable is an error"


def test_all_parts_name_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    images = {COMPOSE["services"][name]["image"] for name in ("capture", "pipeline")}
    images |= {values["image"]["capture"], values["image"]["pipeline"]}
    containerfile = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    assert {chart["version"], chart["appVersion"]} == {__version__}
    assert images == {f"tidelog:{__version__}-capture", f"tidelog:{__version__}"}
    assert set(re.findall(r"tidelog-(\d[\d.]*\d)-py3", containerfile)) == {__version__}


@pytest.mark.parametrize("image", ["capture", "spark"])
def test_locks_of_the_images_are_of_the_projects_lock(image: str) -> None:
    """The same versions, each with its hashes, and all that the extras of the image name."""

    def pins(path: Path) -> dict[str, set[str]]:
        text, found = path.read_text(encoding="utf-8"), dict[str, set[str]]()
        for pin, hashes in re.findall(r"^([\w.-]+==\S+).*((?:\n +--hash=\S+)+)", text, re.M):
            found[pin] = set(hashes.split())
        return found

    known, locked = pins(ROOT / "requirements.lock"), pins(DEPLOY / f"{image}.lock")
    assert {pin: known.get(pin) for pin in locked} == {
        pin: {*hashes, *(known.get(pin) or ())} for pin, hashes in locked.items()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {re.split(r"[\[<>=]", each)[0] for each in project["dependencies"]}
    assert wanted <= {pin.partition("==")[0] for pin in locked}
    assert image == "capture" or any(pin.startswith("pyspark==") for pin in locked)


def test_units_are_valid_and_little_exposed(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    unit = tmp_path / "tidelog@.service"
    text = (DEPLOY / "systemd/tidelog@.service").read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/tidelog/bin/tidelog", "/bin/true"))

    done = subprocess.run(
        [analyze, "verify", unit], capture_output=True, text=True, timeout=60, check=False
    )
    assert [line for line in done.stderr.splitlines() if "tidelog" in line] == []
    assert "Main" not in done.stderr
    exposed = run(analyze, "security", "--offline=true", unit)
    match = re.search(r"exposure level for \S+: ([\d.]+)", exposed)
    assert match is not None, exposed
    assert float(match[1]) <= MOST_EXPOSED


def rendered(*options: str) -> list[dict[str, Any]]:
    text = run(
        program("helm"), "template", "shop", CHART, "--set", "secretName=shop-secrets", *options
    )
    return [document for document in yaml.safe_load_all(text) if document]


def test_chart_renders(tmp_path: Path) -> None:
    """By Helm, if it is there. The pods get their configuration, and secrets by reference only."""
    run(program("helm"), "lint", CHART, "--set", "secretName=s")
    documents = rendered("--set", "monitoring.enabled=true")
    kinds = {document["kind"] for document in documents}
    assert kinds == {
        "ConfigMap", "Deployment", "PodDisruptionBudget", "PrometheusRule", "Service",
        "ServiceAccount", "ServiceMonitor",
    }  # fmt: skip
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    text = by_name["ConfigMap", "shop"]["data"]["tidelog.yaml"]
    assert parse_config(text, "chart", tmp_path, SECRETS).pipeline.master is None
    pods = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment"]
    for pod in pods:
        (container,) = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert container["envFrom"] == [{"secretRef": {"name": "shop-secrets"}}]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    labels = by_name["Deployment", "shop-capture"]["spec"]["template"]["metadata"]["labels"]
    for selecting in ("Service", "PodDisruptionBudget"):
        (found,) = [each for each in documents if each["kind"] == selecting]
        selector = found["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items()
    rules = by_name["PrometheusRule", "shop"]["spec"]
    alerts = ROOT / "docs/how-to/tidelog-alerts.yaml"
    assert rules == yaml.safe_load(alerts.read_text(encoding="utf-8"))


def test_chart_renders_executors_in_pods(tmp_path: Path) -> None:
    """By Helm, if it is there: the pipeline's pod may ask for pods, and Spark knows how."""
    options = [
        "--namespace",
        RELEASE["Namespace"],
        "--set",
        "pipeline.executors=3,env.AWS_REGION=eu",
    ]
    theirs = tmp_path / "values.yaml"
    theirs.write_text("config: {pipeline: {conf: {spark.executor.cores: 5, spark.cores.max: 9}}}")
    documents = rendered(*options, "-f", str(theirs))

    by_name = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    data = by_name["ConfigMap", "shop"]["data"]
    assert yaml.safe_load(data["executor.yaml"]) == yaml.safe_load(EXECUTOR.read_text("utf-8"))
    pipeline = parse_config(data["tidelog.yaml"], "chart", tmp_path, SECRETS).pipeline
    assert pipeline.master == "k8s://https://kubernetes.default.svc"
    assert pipeline.name == "shop"
    given = executor_settings() | {
        "spark.executor.instances": "3",
        "spark.executor.cores": "5",
        "spark.cores.max": "9",
        "spark.executorEnv.AWS_REGION": "eu",
        "spark.driver.host": SECRETS["POD_IP"],
        "spark.kubernetes.driver.pod.name": SECRETS["POD_NAME"],
    }
    assert {name: str(value) for name, value in pipeline.conf.items()} == given
    asks = {
        name: by_name["Deployment", f"shop-{name}"]["spec"]["template"]["spec"]
        for name in ("capture", "pipeline")
    }
    tokens = {name: pod["automountServiceAccountToken"] for name, pod in asks.items()}
    assert tokens == {"capture": False, "pipeline": True}
    [subject] = by_name["RoleBinding", "shop-pipeline"]["subjects"]
    assert (subject["name"], subject["namespace"]) == ("shop", RELEASE["Namespace"])
    assert "pods" in by_name["Role", "shop-pipeline"]["rules"][0]["resources"]


def test_spark_knows_the_chart_s_settings_and_the_page_the_chart_s_values() -> None:
    """Needs no Helm. Spark ignores a setting that it does not know."""
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as opened:
        known = b"".join(opened.read(name) for name in opened.namelist() if "/k8s/Config" in name)
    asked = [name for name in executor_settings() if name.startswith("spark.kubernetes.")]
    assert len(asked) > 5
    for name in asked:
        parts = [name]
        if name.startswith("spark.kubernetes.authenticate."):  # Spark joins these at run time
            parts = ["spark.kubernetes.authenticate.executor", "serviceAccountName"]
        assert all(part.encode() in known for part in parts), name
    page = (ROOT / "docs/how-to/deploy.md").read_text(encoding="utf-8")
    for name in ("executors", "executor"):
        assert name in values()["pipeline"]
        assert f"pipeline.{name}" in page


def test_dag_compiles() -> None:
    """Airflow is not installed here: it wants other versions of our packages."""
    source = (DEPLOY / "airflow/tidelog_pipeline.py").read_text(encoding="utf-8")
    compile(source, "tidelog_pipeline.py", "exec")
    assert "pipeline {CONFIG} --once" in source


def test_container_runs_as_a_user_and_checks_its_health() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    for stage in re.split(r"^FROM ", text, flags=re.M)[1:]:
        assert re.findall(r"^USER (\S+)", stage, re.M)[-1] == "10001:10001"
    assert '"tidelog", "status", "/etc/tidelog/tidelog.yaml", "--fail-on"' in text
