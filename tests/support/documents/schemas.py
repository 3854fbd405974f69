"""The published schemas of Kubernetes that its recipes are held against; a field that is in none of them is refused.

They are in the package kubernetes-validate, made from the published API. Kinds that Kubernetes does not know (JobSet,
the Trainer's, PyTorchJob, RayJob, PodMonitor) are held against it where they hold pods; tests/kubernetes holds all but
PyTorchJob and RayJob against models made from their definitions.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# The oldest with all that the recipes use (a Job's successPolicy), and a newer one.
VERSIONS = ("1.33", "1.37")
Schema = dict[str, Any]
_URI = "https://kubernetes.io/api/_definitions.json"
_POD: Schema = {"$ref": f"{_URI}#/$defs/io.k8s.api.core.v1.PodTemplateSpec"}


def complaints(document: dict[str, Any], version: str) -> list[str]:
    """What schemas have to say against an object, deepest first. `version`: Kubernetes'."""
    from jsonschema import Draft202012Validator  # a tenth of a second, and for these tests alone

    own = _read_schema(document, version)
    checked = [(document, own)] if own else [(template, _POD) for template in find_templates(document)]
    return [
        f"{'.'.join(map(str, _deepest(error).path))}: {_deepest(error).message}"
        for part, schema in checked
        for error in Draft202012Validator(schema, registry=_registry(version)).iter_errors(part)
    ]


def find_templates(part: Any) -> Iterator[dict[str, Any]]:
    """The templates of pods in an object: whatever has a specification with containers."""
    if isinstance(part, dict) and "containers" in part.get("spec", ()):
        yield part
        return
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from find_templates(inner)


def _deepest(error: Any) -> Any:
    return max([error, *(each for each in error.context or ())], key=lambda each: len(each.absolute_path))


def _read_schema(document: dict[str, Any], version: str) -> Schema | None:
    """The schema of its kind; None for one that is not Kubernetes' own."""
    group, _, number = document["apiVersion"].rpartition("/")
    name = f"{document['kind'].lower()}-{group.partition('.')[0]}{'-' if group else ''}{number}.json"
    file = _folder(version) / name
    schema: Schema | None = json.loads(file.read_text()) if file.exists() else None
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
