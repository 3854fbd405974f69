"""The recipes for Kubernetes as tests see them: every pod that one of them makes, with its command and environment.

What a controller adds is added here too, as each of them is documented and written: the variables that it sets, the
names under which its pods find each other, what becomes of a template. So the words and variables of a container can be
read by the launcher's own rules, as the agent in that pod would.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.agent import command
from launcher.config.config import Config
from tests.support.documents.pages import ROOT

EXAMPLES = ROOT / "examples"
KUBERNETES = EXAMPLES / "kubernetes"
Document = dict[str, Any]
# The containers that the controllers look for.
_MAIN = {"PyTorchJob": "pytorch", "TrainJob": "node"}


@dataclass(frozen=True)
class Pod:
    """`job`: the Job spec that makes it, empty under a PyTorchJob. `names`: those under which pods of this recipe are
    found before they are ready. `count`: how many pods there are.
    """

    kind: str
    document: Document
    job: Document
    template: Document
    container: Document
    hostname: str
    index: int
    count: int
    names: frozenset[str]
    environ: Mapping[str, str]

    @property
    def spec(self) -> Document:
        return self.template["spec"]

    @property
    def words(self) -> list[str]:
        return [*self.container.get("command", []), *self.container.get("args", [])]

    @functools.cached_property
    def config(self) -> Config:
        """What the agent in this pod makes of its command and variables. Raises UsageError."""
        words = self.words
        return command.parse(words[1:] if words[0] == "meshrun" else words[3:], self.environ)


def documents(path: Path) -> list[Document]:
    """The objects of one file, to be changed at will."""
    return copy.deepcopy(_read(path))


@functools.cache
def _read(path: Path) -> list[Document]:
    # A job on the runtime of trainer/ is read with it; kustomization.yaml and chart/ say so in their own languages.
    beside = sorted((path.parent / "chart" / "files").glob("*.yaml")) if path.parent.name == "trainer" else []
    texts = [each.read_text() for each in (path, *(each for each in beside if not each.is_symlink()))]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def manifests() -> list[Path]:
    found = (path for folder in (".", "base", "trainer") for path in (KUBERNETES / folder).glob("*.yaml"))
    return sorted(path for path in found if path.name != "kustomization.yaml")


def pods(found: list[Document]) -> list[Pod]:
    """The pods of these objects that run meshrun."""
    return [pod for document in found for pod in _pods(document, found) if _runs_meshrun(pod)]


def _runs_meshrun(pod: Pod) -> bool:
    return any("meshrun" in word or word == "launcher" for word in pod.words)


def _pods(document: Document, found: list[Document]) -> Iterator[Pod]:
    spec = document.get("spec", {})
    if document["kind"] == "PyTorchJob":
        yield from _pytorch_job(document, spec)
    elif document["kind"] == "TrainJob":
        yield from _train_job(document, found)
    elif document["kind"] == "JobSet":
        yield from _job_set(document, document["metadata"]["name"], spec)
    elif document["kind"] == "Job":
        name, template = document["metadata"]["name"], spec["template"]
        service = _headless(found, template["spec"].get("subdomain"), {"job-name": name})
        yield from _indexed(document, name, spec, service)


def _pytorch_job(document: Document, spec: Document) -> Iterator[Pod]:
    """Version 1: a headless Service for each pod, under the pod's name."""
    name, elastic, replicas = document["metadata"]["name"], spec.get("elasticPolicy"), spec["pytorchReplicaSpecs"]
    count = sum(each["replicas"] for each in replicas.values())
    names = frozenset(
        f"{name}-{role.lower()}-{index}" for role in replicas for index in range(replicas[role]["replicas"])
    )
    base = {"PYTHONUNBUFFERED": "1", "PET_NNODES": str(count)}
    if "nprocPerNode" in spec:
        base["PET_NPROC_PER_NODE"] = spec["nprocPerNode"]
    if elastic:
        base["PET_NNODES"] = f"{elastic['minReplicas']}:{elastic['maxReplicas']}"
        base["PET_RDZV_BACKEND"] = elastic.get("rdzvBackend", "c10d")
        host = elastic.get("rdzvHost", f"{name}-worker-0")
        base["PET_RDZV_ENDPOINT"] = f"{host}:{elastic.get('rdzvPort') or _port(replicas['Worker'])}"
        base["PET_RDZV_CONF"] = ",".join(f"{each['key']}={each['value']}" for each in elastic.get("rdzvConf", []))
        base |= {"PET_RDZV_ID": elastic["rdzvId"]} if "rdzvId" in elastic else {}
        base |= {"PET_MAX_RESTARTS": str(elastic["maxRestarts"])} if "maxRestarts" in elastic else {}
    for role, replica in replicas.items():
        for at in range(replica["replicas"]):
            environ, rank = dict(base), at + (role == "Worker" and "Master" in replicas)
            if "Master" in replicas:
                place = {"MASTER_ADDR": f"{name}-master-0", "MASTER_PORT": str(_port(replicas["Master"]))}
                environ |= {**place, **{f"PET_{key}": value for key, value in place.items()}}
                world_size = count * int(spec.get("nprocPerNode", "1"))
                environ |= {"RANK": str(rank), "PET_NODE_RANK": str(rank), "WORLD_SIZE": str(world_size)}
            hostname = f"{name}-{role.lower()}-{at}"
            yield _pod(document, {}, replica["template"], hostname, rank, count, names, environ)


def _port(replica: Document) -> int:
    ports = next(each for each in replica["template"]["spec"]["containers"] if each["name"] == "pytorch")["ports"]
    return int(next(port["containerPort"] for port in ports if port["name"] == "pytorchjob-port"))


def _train_job(document: Document, found: list[Document]) -> Iterator[Pod]:
    """Trainer v2: its runtime's JobSet under the job's name, with the job's command, variables and number of nodes."""
    name, trainer = document["metadata"]["name"], document["spec"]["trainer"]
    runtime = next(
        each
        for each in found
        if each["kind"] == "ClusterTrainingRuntime"
        and each["metadata"]["name"] == document["spec"]["runtimeRef"]["name"]
    )
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    count = trainer.get("numNodes", runtime["spec"]["mlPolicy"].get("numNodes", 1))
    for replicated in spec["replicatedJobs"]:
        job = replicated["template"]["spec"]
        job |= {"completionMode": "Indexed", "completions": count, "parallelism": count}
        if replicated["template"]["metadata"]["labels"].get("trainer.kubeflow.org/trainjob-ancestor-step") != "trainer":
            continue
        container = next(each for each in job["template"]["spec"]["containers"] if each["name"] == _MAIN["TrainJob"])
        container |= {key: trainer[key] for key in ("command", "args", "image") if key in trainer}
        reserved = {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
        assert reserved.isdisjoint(each["name"] for each in trainer.get("env", [])), "the Trainer refuses these"
        container["env"] = [*container.get("env", []), *trainer.get("env", [])]
        container["env"] += [
            {"name": "PET_NNODES", "value": str(count)},
            {"name": "PET_NPROC_PER_NODE", "value": str(trainer.get("numProcPerNode", "auto"))},
            {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
            {"name": "PET_MASTER_PORT", "value": "29500"},
            {
                "name": "PET_NODE_RANK",
                "valueFrom": {
                    "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
                },
            },
        ]
    yield from _job_set({**document, "jobset": spec}, name, spec)


def _job_set(document: Document, name: str, spec: Document) -> Iterator[Pod]:
    network = spec.get("network", {})
    service = network.get("subdomain", name) if network.get("publishNotReadyAddresses", True) else None
    for replicated in spec["replicatedJobs"]:
        for at in range(replicated.get("replicas", 1)):
            yield from _indexed(document, f"{name}-{replicated['name']}-{at}", replicated["template"]["spec"], service)


def _headless(found: list[Document], name: str | None, labels: Mapping[str, str]) -> str | None:
    """The Service of this name, if it gives names to pods with these labels before they are ready."""
    for document in found:
        if document["kind"] == "Service" and document["metadata"]["name"] == name:
            spec = document["spec"]
            is_headless = spec.get("clusterIP") == "None" and spec.get("publishNotReadyAddresses") is True
            if is_headless and spec.get("selector", {}).items() <= labels.items():
                return name
    return None


def _indexed(document: Document, name: str, job: Document, service: str | None) -> Iterator[Pod]:
    """Pods NAME-0, NAME-1, ...; a Job that is not Indexed has one without a number."""
    is_indexed = job.get("completionMode") == "Indexed"
    count = job.get("completions", 1)
    names = frozenset(f"{name}-{index}.{service}" for index in range(count) if service)
    for index in range(count):
        environ = {"JOB_COMPLETION_INDEX": str(index)} if is_indexed else {}
        yield _pod(document, job, job["template"], f"{name}-{index}", index, count, names, environ)


def _pod(
    document: Document,
    job: Document,
    template: Document,
    hostname: str,
    index: int,
    count: int,
    names: frozenset[str],
    environ: dict[str, str],
) -> Pod:
    kind, containers = document["kind"], template["spec"]["containers"]
    container = next((each for each in containers if each["name"] == _MAIN.get(kind)), containers[0])
    fields = {
        "spec.nodeName": f"machine-{index}",
        "metadata.name": hostname,
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
        "metadata.labels['jobset.sigs.k8s.io/jobset-name']": document["metadata"]["name"],
        "metadata.labels['jobset.sigs.k8s.io/jobset-uid']": "0f4ab3c2-6a1e-4e4c-9c65-0d8ec2a3a1f5",
        "metadata.annotations['jobset.sigs.k8s.io/execution-attempt']": "",  # as without JobSet's feature gate
        "metadata.annotations['jobset.sigs.k8s.io/jobset-name']": document["metadata"]["name"],
    }
    own: dict[str, str] = {}
    for each in container.get("env", []):
        value = each.get("value") if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        own[each["name"]] = expand(value, own)
    environ = {"HOSTNAME": hostname, **environ, **own, **_google(container, index, names)}
    return Pod(kind, document, job, template, container, hostname, index, count, names, environ)


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Kubernetes' own: $(NAME) for variables that stand before, others stay as they are."""
    return re.sub(r"\$\((\w+)\)", lambda match: environ.get(match[1], match[0]), text)


def _google(container: Document, index: int, names: frozenset[str]) -> dict[str, str]:
    """What GKE tells a pod with TPU chips, of a slice of v6e-16."""
    if "google.com/tpu" not in container.get("resources", {}).get("limits", {}):
        return {}
    return {
        "TPU_ACCELERATOR_TYPE": "v6e-16",
        "TPU_TOPOLOGY": "4x4",
        "TPU_WORKER_ID": str(index),
        "TPU_WORKER_HOSTNAMES": ",".join(sorted(names)),
        "TPU_SKIP_MDS_QUERY": "true",
    }
