"""Schemas that the recipes for Kubernetes are held against; a field that is in none of them is refused.

What Kubernetes itself knows is in the package kubernetes-validate, made from its published API. What the recipes may
use of Training Operator v1 and KubeRay v1 (ray-operator/config/crd/bases) stands here, written from their API
references; the templates of pods inside them are Kubernetes' own. Kinds of JobSet, the Trainer and Prometheus' operator
are held against models made from their definitions, by tests/kubernetes.
"""

from __future__ import annotations

import functools
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# The oldest with all that the recipes use (a Job's successPolicy), and a newer one.
VERSIONS = ("1.33", "1.37")
# What tests/kubernetes has models for.
MODELLED = ("JobSet", "ClusterTrainingRuntime", "TrainJob", "PodMonitor")
Schema = dict[str, Any]
_URI = "https://kubernetes.io/api/_definitions.json"


def _core(name: str) -> Schema:
    return {"$ref": f"{_URI}#/$defs/io.k8s.{name}"}


def _object(*required: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _one_of(*words: str) -> Schema:
    return {"enum": list(words)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


TEXT: Schema = {"type": "string", "minLength": 1}
# A label: what becomes the name of a pod or a Service.
NAME: Schema = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 50}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
METADATA = _core("apimachinery.pkg.apis.meta.v1.ObjectMeta")
POD = _core("api.core.v1.PodTemplateSpec")


def _kind(api_version: str, kind: str, spec: Schema) -> Schema:
    metadata = {"allOf": [METADATA, {"required": ["name"], "properties": {"name": NAME}}]}
    return _object(
        "apiVersion", "kind", "metadata", "spec",
        apiVersion={"const": api_version}, kind={"const": kind}, metadata=metadata, spec=spec,
    )  # fmt: skip


_PYTORCH_REPLICA = _object(
    "replicas", "template",
    replicas={"type": "integer", "minimum": 1},
    restartPolicy=_one_of("Always", "OnFailure", "Never", "ExitCode"),
    template=POD,
)  # fmt: skip
PYTORCH_JOB = _object(
    "pytorchReplicaSpecs",
    nprocPerNode=TEXT,
    runPolicy=_object(
        cleanPodPolicy=_one_of("All", "Running", "None"),
        ttlSecondsAfterFinished=COUNT,
        activeDeadlineSeconds=COUNT,
        backoffLimit=COUNT,
        suspend=FLAG,
        schedulingPolicy=_object(minAvailable=COUNT, queue=TEXT, priorityClass=TEXT, scheduleTimeoutSeconds=COUNT),
    ),
    elasticPolicy=_object(
        minReplicas=COUNT,
        maxReplicas=COUNT,
        maxRestarts=COUNT,
        rdzvBackend=_one_of("c10d", "etcd", "etcd-v2"),
        rdzvHost=TEXT,
        rdzvPort=COUNT,
        rdzvId=TEXT,
        rdzvConf=_list(_object("key", "value", key=TEXT, value=TEXT)),
        standalone=FLAG,
    ),
    pytorchReplicaSpecs=_object(Master=_PYTORCH_REPLICA, Worker=_PYTORCH_REPLICA),
)
_RAY_PARAMETERS: Schema = {"type": "object", "additionalProperties": TEXT}  # of `ray start`, all of them texts
_RAY_LABELS: Schema = {"type": "object", "additionalProperties": TEXT}
RAY_JOB = _object(
    "entrypoint", "rayClusterSpec",
    entrypoint=TEXT,
    jobId=TEXT,
    backoffLimit=COUNT,
    activeDeadlineSeconds={"type": "integer", "minimum": 1},
    shutdownAfterJobFinishes=FLAG,
    ttlSecondsAfterFinished=COUNT,
    submissionMode=_one_of("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    suspend=FLAG,
    runtimeEnvYAML=TEXT,
    entrypointNumCpus={"type": "number"},
    submitterPodTemplate=POD,
    rayClusterSpec=_object(
        "headGroupSpec", "workerGroupSpecs",
        rayVersion=TEXT,
        enableInTreeAutoscaling=FLAG,
        headGroupSpec=_object("template", rayStartParams=_RAY_PARAMETERS, template=POD, labels=_RAY_LABELS),
        workerGroupSpecs=_list(
            _object(
                "groupName", "minReplicas", "maxReplicas", "template",
                groupName=NAME, replicas=COUNT, minReplicas=COUNT, maxReplicas=COUNT, numOfHosts=COUNT,
                rayStartParams=_RAY_PARAMETERS, template=POD, labels=_RAY_LABELS,
            )
        ),
    ),
)  # fmt: skip
CUSTOM = {
    ("kubeflow.org/v1", "PyTorchJob"): PYTORCH_JOB,
    ("ray.io/v1", "RayJob"): RAY_JOB,
}


def complaints(document: dict[str, Any], version: str) -> list[str]:
    """What the schema of its kind has to say against an object, deepest first. `version`: Kubernetes'."""
    if document["kind"] in MODELLED:
        return []
    from jsonschema import Draft202012Validator  # a tenth of a second, and for these tests alone

    validator = Draft202012Validator(_schema(document, version), registry=_registry(version))
    return [
        f"{'.'.join(map(str, _deepest(error).path))}: {_deepest(error).message}"
        for error in validator.iter_errors(document)
    ]


def _deepest(error: Any) -> Any:
    return max([error, *(each for each in error.context or ())], key=lambda each: len(each.absolute_path))


def _schema(document: dict[str, Any], version: str) -> Schema:
    api_version, kind = document["apiVersion"], document["kind"]
    if (api_version, kind) in CUSTOM:
        return _kind(api_version, kind, CUSTOM[api_version, kind])
    group, _, number = api_version.rpartition("/")
    name = f"{kind.lower()}-{group.partition('.')[0]}{'-' if group else ''}{number}.json"
    schema: Schema = json.loads((_folder(version) / name).read_text())
    return schema


@functools.cache
def _registry(version: str) -> Any:
    from referencing import Registry, Resource

    definitions = json.loads((_folder(version) / "_definitions.json").read_text())
    return Registry().with_resource(_URI, Resource.from_contents(definitions))


def _folder(version: str) -> Path:
    """Where the package has the schemas; it need not be imported for them."""
    package = find_spec("kubernetes_validate")
    assert package is not None, "the package kubernetes-validate is not installed"
    assert package.origin is not None
    return Path(package.origin).parent / "kubernetes-json-schema" / f"v{version}.0-local-strict"
