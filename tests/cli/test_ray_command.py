"""`meshrun-ray` where there is no Ray: its help, and errors that need none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from launcher.extensions.ray.options import OPTIONS


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-m", "launcher.extensions.ray", *words],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_help_fits_a_screen_and_has_every_option() -> None:
    done = run("-h")
    assert done.returncode == 0
    assert all(option.flag in done.stdout for option in OPTIONS)
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_the_help_of_a_group_is_that_of_meshrun() -> None:
    assert "--max-restarts" in run("-h", "restarts").stdout


@pytest.mark.parametrize(
    ("words", "sentence", "hint"),
    [
        ([], "no script given", ""),
        (["--bundel=GPU=1", "t.py"], "unknown option --bundel", "hint: did you mean --bundle?"),
        (["--nnodes=0", "t.py"], "--nnodes 0: at least 1 node is needed", ""),
        (["--address=ray://h:1", "t.py"], "through Ray Client the driver", "hint: start it inside: ray job submit"),
    ],
)
def test_a_mistake_is_said_before_ray_is_looked_for(words: list[str], sentence: str, hint: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert "meshrun-ray: error: " in done.stderr
    assert sentence in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def run_with(ray: str) -> subprocess.CompletedProcess[str]:
    """The command in a Python where `ray`, an expression, is in the place of Ray, be it installed or not."""
    script = f"import sys, types; sys.modules['ray'] = {ray}; "
    script += "from launcher.extensions.ray.main import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", script, "t.py"], capture_output=True, text=True, timeout=60)


def test_without_ray_its_extra_is_named() -> None:
    done = run_with("None")
    assert done.returncode == 2
    assert "Ray cannot be imported: " in done.stderr
    assert "hint: run pip install 'meshrun[ray]'" in done.stderr


@pytest.mark.parametrize("version", ["2.50.1", "1.13.0", ""])
def test_an_old_ray_is_refused_in_a_sentence(version: str) -> None:
    done = run_with(f"types.SimpleNamespace(__version__={version!r})")
    assert done.returncode == 2
    assert f"needs Ray 2.51 or newer, but {version or 'an unknown version'} is installed" in done.stderr


def test_the_agent_imports_nothing_of_hosts() -> None:
    script = "import sys, launcher.cli, launcher.agent.command, launcher.agent.build, launcher.calls.launch;"
    script += "assert not [name for name in sys.modules if name.startswith(('launcher.extensions.ray', 'ray'))]"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True)
