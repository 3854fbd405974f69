"""`meshrun-ray` where there is no Ray: its help, and what is said without it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from launcher.extensions.ray.options import OPTIONS
from tests.cli.running import Call, run


def test_the_help_fits_a_screen_and_has_every_option() -> None:
    done = run("python", "-m", "launcher.extensions.ray", "-h")
    assert (done.code, done.err) == (0, "")
    assert all(option.flag in done.out for option in OPTIONS)
    lines = done.out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_the_help_of_a_group_is_that_of_meshrun(call: Call) -> None:
    assert "--max-restarts" in call("meshrun-ray", "-h", "restarts").out


@pytest.mark.parametrize(
    ("ray", "sentence"),
    [
        (None, "Ray cannot be imported: "),
        (SimpleNamespace(__version__="2.50.1"), "needs Ray 2.51 or newer, but 2.50.1 is installed"),
        (SimpleNamespace(__version__="1.13.0"), "needs Ray 2.51 or newer, but 1.13.0 is installed"),
        (SimpleNamespace(__version__=""), "needs Ray 2.51 or newer, but an unknown version is installed"),
    ],
)
def test_without_ray_and_with_an_old_one_the_extra_is_named(
    call: Call, monkeypatch: pytest.MonkeyPatch, ray: object, sentence: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray)
    outcome = call("meshrun-ray", "t.py")
    assert outcome.code == 2
    assert sentence in outcome.err
    assert "hint: run pip install 'ray[default]>=2.51'" in outcome.err


def test_the_agent_imports_nothing_of_hosts() -> None:
    script = "import sys, launcher.cli, launcher.agent.command, launcher.agent.build, launcher.calls.launch;"
    script += "assert not [name for name in sys.modules if name.startswith(('launcher.extensions.ray', 'ray'))]"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True)
