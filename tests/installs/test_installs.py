"""The sdist and the wheel of `make dist` in clean environments, as pip, uv and pipx make them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
LIMIT_S = 600.0


def call(*words: str | Path, cwd: Path, **variables: str) -> str:
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "LAUNCHER_", "PET_"))}
    done = subprocess.run(
        words, cwd=cwd, env={**environ, **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def install_by_pip(package: Path, place: Path) -> Path:
    call(sys.executable, "-m", "venv", place / "env", cwd=place)
    call(place / "env/bin/python", "-m", "pip", "install", "--quiet", package, cwd=place)
    call(place / "env/bin/python", "-m", "pip", "check", cwd=place)
    return place / "env/bin"


def install_by_uv(package: Path, place: Path) -> Path:
    call(BIN / "uv", "venv", "--quiet", "--python", sys.executable, place / "env", cwd=place)
    call(BIN / "uv", "pip", "install", "--quiet", "--python", place / "env/bin/python", package, cwd=place)
    return place / "env/bin"


def install_as_uv_tool(package: Path, place: Path) -> Path:
    variables = {"UV_TOOL_DIR": str(place / "tools"), "UV_TOOL_BIN_DIR": str(place / "bin")}
    call(BIN / "uv", "tool", "install", "--quiet", "--python", sys.executable, package, cwd=place, **variables)
    return place / "bin"


def install_by_pipx(package: Path, place: Path) -> Path:
    variables = {"PIPX_HOME": str(place / "tools"), "PIPX_BIN_DIR": str(place / "bin")}
    call(BIN / "pipx", "install", "--quiet", "--python", sys.executable, package, cwd=place, **variables)
    return place / "bin"


@pytest.mark.parametrize("pattern", ["*.tar.gz", "*.whl"], ids=["sdist", "wheel"])
@pytest.mark.parametrize("install", [install_by_pip, install_by_uv, install_as_uv_tool, install_by_pipx])
def test_the_commands_of_an_installed_package_work(
    pattern: str, install: Callable[[Path, Path], Path], tmp_path: Path
) -> None:
    (package,) = (ROOT / "dist").glob(pattern)
    commands = install(package, tmp_path)
    script = tmp_path / "train.py"
    text = "'rank {RANK} of {WORLD_SIZE}: {}\\n'.format('json' in sys.modules, **os.environ).encode()"
    script.write_text(f"import os, sys\nos.write(1, {text})\n")
    assert "(commit " in call(commands / "meshrun", "--version", cwd=tmp_path)
    told = call(commands / "meshrun", "--nproc-per-node", "2", "--preload", "json", script, cwd=tmp_path)
    assert sorted(told.splitlines()) == ["rank 0 of 2: True", "rank 1 of 2: True"]
    found = json.loads(call(commands / "meshctl", "doctor", "--json", "--", "--nproc-per-node", "2", cwd=tmp_path))
    assert found["verdict"]["would_start"]
    assert "h3" in call(commands / "meshctl", "plan", "dgx:1x4x8", "--mesh", "dp=*,tp=8", cwd=tmp_path)
    assert "Usage: meshrun-ray" in call(commands / "meshrun-ray", "-h", cwd=tmp_path)


def test_a_tool_starts_workers_with_the_python_that_is_named(tmp_path: Path) -> None:
    (wheel,) = (ROOT / "dist").glob("*.whl")
    commands = install_as_uv_tool(wheel, tmp_path)
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint(sys.executable)\n")
    assert str(tmp_path / "tools") in call(commands / "meshrun", script, cwd=tmp_path)
    assert call(commands / "meshrun", script, cwd=tmp_path, PYTHON_EXEC=sys.executable) == f"{sys.executable}\n"


def test_wheels_from_a_directory_are_enough(tmp_path: Path) -> None:
    (wheel,) = (ROOT / "dist").glob("*.whl")
    call(sys.executable, "-m", "pip", "download", "--quiet", "-d", tmp_path / "wheels", wheel, cwd=tmp_path)
    call(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    words = ("install", "--quiet", "--no-index", "--find-links", tmp_path / "wheels", "meshrun")
    call(tmp_path / "env/bin/python", "-m", "pip", *words, cwd=tmp_path)
    assert "(commit " in call(tmp_path / "env/bin/meshctl", "--version", cwd=tmp_path)


def test_the_layer_of_an_image_has_no_findings() -> None:
    call(BIN / "hadolint", ROOT / "examples/kubernetes/Dockerfile", cwd=ROOT)


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/[bf]*.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("dependabot", "dependabot.yml"),
    ],
)
def test_the_workflows_and_forms_fit_their_published_schemas(schema: str, pattern: str) -> None:
    files = sorted((ROOT / ".github").glob(pattern))
    call(BIN / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files, cwd=ROOT)
