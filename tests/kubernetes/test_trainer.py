"""The runtime for Kubeflow Trainer as kustomize and Helm make it, against models made from the definitions.

kubeflow-trainer-api is made from the definitions of Trainer, JobSet and Kubernetes, cloudcoil's package from those of
Prometheus' operator. Their models drop what they do not know, so an object has to come back whole.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cloudcoil.models.prometheus_operator import v1 as prometheus
from kubeflow_trainer_api import models
from pydantic import ValidationError

from tests.kubernetes.conftest import CHART, run
from tests.support.documents.pages import ROOT
from tests.support.documents.recipe_rules import complaints_about
from tests.support.documents.recipes import Document, documents, manifests, pods

MODELS: dict[str, Any] = {
    "ClusterTrainingRuntime": models.TrainerV1alpha1ClusterTrainingRuntime,
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "JobSet": models.JobsetV1alpha2JobSet,
    "PodMonitor": prometheus.PodMonitor,
    "PrometheusRule": prometheus.PrometheusRule,
    "Job": models.IoK8sApiBatchV1Job,
}


def complain(document: Document) -> str:
    """What the model of its kind has against an object; "" for a kind that has no model here."""
    model = MODELS.get(document["kind"])
    if model is None:
        return ""
    try:
        found = model.from_dict(document) if hasattr(model, "from_dict") else model.model_validate(document)
    except (ValidationError, ValueError) as error:
        return str(error)
    lost = subtract(document, found.model_dump(by_alias=True, exclude_none=True, mode="json"))
    return f"not known: {lost}" if lost else ""


def subtract(given: Any, kept: Any, at: str = "") -> list[str]:
    """Where `kept` lacks something of `given`."""
    if isinstance(given, dict):
        kept = kept if isinstance(kept, dict) else {}
        return [lost for key, value in given.items() for lost in subtract(value, kept.get(key), f"{at}.{key}")]
    if isinstance(given, list):
        kept = kept if isinstance(kept, list) else []
        pairs = zip(given, [*kept, *[None] * (len(given) - len(kept))], strict=False)
        return [lost for index, (one, other) in enumerate(pairs) for lost in subtract(one, other, f"{at}[{index}]")]
    return [] if given is not None and kept is not None else [at]


def test_kustomize_and_helm_make_the_same_objects(kustomized: dict[Any, Document], template: Any) -> None:
    assert {kind for kind, _ in kustomized} == {
        "ClusterRole", "ClusterRoleBinding", "ClusterTrainingRuntime", "PodDisruptionBudget", "PodMonitor", "Service",
        "ServiceAccount", "StatefulSet",
    }  # fmt: skip
    assert template() == kustomized
    spread = {kind for (kind, _), one in kustomized.items() if one["metadata"].get("namespace") != "training"}
    assert spread == {"ClusterRole", "ClusterRoleBinding", "ClusterTrainingRuntime"}, "these are in no namespace"


def test_every_object_is_whole_in_the_model_of_its_kind(kustomized: dict[Any, Document], template: Any) -> None:
    variant = template("etcd.enabled=false", "nodeLabels.enabled=false", "progress=false", "nodes.max=16")
    found = [*kustomized.values(), *variant.values(), *(one for path in manifests() for one in documents(path))]
    assert {one["kind"] for one in found} >= {"ClusterTrainingRuntime", "TrainJob", "JobSet", "PodMonitor"}
    assert [text for one in found if (text := complain(one))] == []


def test_the_alerts_become_a_rule_by_the_lines_of_the_guide(tmp_path: Path) -> None:
    guide = (ROOT / "docs/operate/metrics.md").read_text()
    [script] = re.findall(r"^```bash\n(\{\n.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, check=True, timeout=60)
    rule = yaml.safe_load((tmp_path / "prometheus-rule.yaml").read_text())
    assert (rule["kind"], complain(rule)) == ("PrometheusRule", "")
    assert rule["spec"] == yaml.safe_load((ROOT / "examples/monitoring/alerts.yml").read_text())


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("ClusterTrainingRuntime", lambda one: one["spec"]["mlPolicy"].update(nodes=4)),
        ("ClusterTrainingRuntime", lambda one: one["spec"]["mlPolicy"].update(numNodes="four")),
        ("ClusterTrainingRuntime", lambda one: one["spec"]["template"]["spec"]["failurePolicy"].update(restarts=1)),
        ("PodMonitor", lambda one: one["spec"]["podMetricsEndpoints"][0].update(honourLabels=True)),
        ("PodMonitor", lambda one: one["spec"].pop("selector")),
    ],
)
def test_a_mistake_is_found(kind: str, change: Any, template: Any) -> None:
    one = next(one for (found, _), one in template().items() if found == kind)
    change(one)
    assert complain(one)


def test_two_releases_share_no_object(template: Any) -> None:
    first, second = (
        {(kind, name, one["metadata"].get("namespace")) for (kind, name), one in found.items()}
        for found in (template(), template("name=own", namespace="other"))
    )
    assert first & second == set()


def test_values_reach_what_they_name(template: Any) -> None:
    found = template(
        "name=own", "image=r/i:2", "nodes.min=3", "nodes.max=9", "podMonitor.enabled=false", namespace="other"
    )
    assert ("PodMonitor", "meshrun") not in found
    assert found["StatefulSet", "etcd"]["metadata"]["namespace"] == "other"
    binding = found["ClusterRoleBinding", "own-node-labels"]
    assert binding["subjects"][0]["namespace"] == "other"
    assert ("ClusterRole", binding["roleRef"]["name"]) in found
    spec = found["ClusterTrainingRuntime", "own"]["spec"]
    container = find_container(spec)
    assert (spec["mlPolicy"]["numNodes"], container["image"]) == (9, "r/i:2")
    job = spec["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["backoffLimit"], job["backoffLimitPerIndex"]) == (90, 90)
    assert {"name": "LAUNCHER_NNODES", "value": "3:9"} in container["env"]


@pytest.mark.parametrize("settings", [(), ("etcd.enabled=false",), ("progress=false", "nodeLabels.enabled=false")])
def test_a_job_on_any_form_of_the_runtime_keeps_the_rules(settings: tuple[str, ...], template: Any) -> None:
    runtime = template(*settings)["ClusterTrainingRuntime", "meshrun"]
    job = next(one for one in documents(CHART.parent / "job.yaml") if one["kind"] == "TrainJob")
    found = pods([runtime, job])
    assert {complaint for pod in found for complaint in complaints_about(pod)} == set()
    assert len(found) == 4
    assert {pod.config.rendezvous.network.backend for pod in found if pod.config.rendezvous.network} == (
        {"served"} if "etcd.enabled=false" in settings else {"etcd"}
    )


def find_container(spec: Document) -> Document:
    job = spec["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    return job["template"]["spec"]["containers"][0]  # type: ignore[no-any-return]


def test_the_chart_has_nothing_that_helm_complains_of(tools: Path) -> None:
    assert "0 chart(s) failed" in run(tools / "helm", "lint", "--strict", CHART)
