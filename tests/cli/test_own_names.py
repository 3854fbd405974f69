"""Projects with files of our names: `launcher`, `rendezvous`, or the name of a package that we need.

The installed commands find ours, whatever PYTHONPATH holds, and a script finds its own, however it is started.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.cli.running import run

ROOT = Path(__file__).parents[2]
NAMES = ("launcher", "rendezvous", "msgspec", "click", "psutil", "numpy")
SCRIPT = f"""
import sys
before = [name for name in sys.modules if name.partition(".")[0] in {NAMES}]
import {", ".join(NAMES)}
whose = {{module.whose for module in ({", ".join(NAMES)})}}
print(f"of {{', '.join(whose)}}, {{before}}\\n", end="")
"""
_, _, SCRIPTS = (ROOT / "pyproject.toml").read_text().partition("\n[project.scripts]\n")
COMMANDS = dict(re.findall(r'^([\w-]+) = "(\w+:\w+)"$', SCRIPTS.partition("\n[")[0], re.MULTILINE))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a script, and with a module of each name."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("whose = 'the project'\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def install(folder: Path, name: str) -> str:
    """Write a command as pip does."""
    module, function = COMMANDS[name].split(":")
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    return str(program)


@pytest.mark.parametrize("kind", ["a file", "a package", "a program"])
@pytest.mark.parametrize(
    ("command", "words", "shown"),
    [
        ("meshrun", ["--version"], "meshrun "),
        ("meshctl", ["plan", "--help"], "Usage"),
        ("meshrun-ray", ["--help"], "meshrun-ray"),
    ],
)
def test_a_command_finds_our_packages_behind_those_of_the_project(
    project: Path, kind: str, command: str, words: list[str], shown: str
) -> None:
    if kind != "a file":
        for name in NAMES:
            (project / name).mkdir()
            (project / f"{name}.py").rename(project / name / "__init__.py")
        (project / "launcher" / "__main__.py").write_text("raise SystemExit('theirs')" if kind == "a program" else "")
    outcome = run("python", install(project, command), *words, cwd=project, environ={"PYTHONPATH": str(project)})
    assert (outcome.code, outcome.err) == (0, "")
    assert shown.lower() in outcome.out.lower()


@pytest.mark.parametrize("words", [("-m", "meshrun"), ("bin/meshrun",)], ids=["python -m", "command"])
@pytest.mark.parametrize(
    "options",
    [
        ("train.py",),
        ("-m", "train"),
        ("--run-path", "train.py"),
        ("--preload", "launcher,msgspec", "train.py"),
        ("--framework", "jax", "train.py"),
        ("--no-python", sys.executable, "train.py"),
    ],
    ids=lambda options: options[0],
)
def test_a_script_imports_its_own(project: Path, words: tuple[str, ...], options: tuple[str, ...]) -> None:
    install(project, "meshrun")
    environ = {"PYTHONPATH": str(project), "LAUNCHER_HANG_EVIDENCE": "1"}
    outcome = run("python", *words, "--standalone", "--nproc-per-node=2", *options, cwd=project, environ=environ)
    preloaded = options[1].split(",") if options[0] == "--preload" else []
    assert (outcome.code, outcome.out) == (0, 2 * f"of the project, {preloaded}\n")


def test_a_script_may_use_the_worker_api_beside_a_rendezvous_of_its_own(project: Path) -> None:
    (project / "launcher.py").unlink()
    (project / "train.py").write_text(
        "from launcher.worker import heartbeat, progress\nimport rendezvous, msgspec\n"
        "print(heartbeat(), progress(1), rendezvous.whose, msgspec.whose)\n"
    )
    outcome = run("python", "-m", "meshrun", "train.py", cwd=project, environ={"PYTHONPATH": str(ROOT)})
    assert (outcome.code, outcome.out) == (0, "True True the project the project\n")


@pytest.mark.parametrize("name", ["rendezvous", "msgspec"])
def test_launch_names_the_file_that_hides_what_it_needs(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").touch()
    (tmp_path / "main.py").write_text("from launcher import launch\n")
    outcome = run("python", "main.py", cwd=tmp_path, environ={"PYTHONPATH": str(ROOT)})
    sentence = f"ImportError: {tmp_path}/{name}.py hides the package {name}, which meshrun needs: rename it\n"
    assert outcome.err.endswith(sentence)
    assert "the above exception" not in outcome.err.lower()


def test_a_launcher_that_python_has_imported_at_its_start_is_named(project: Path) -> None:
    (project / "sitecustomize.py").write_text("import launcher\n")
    outcome = run("python", install(project, "meshrun"), cwd=project, environ={"PYTHONPATH": str(project)})
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines() == [
        f"meshrun: error: {project}/launcher.py has been imported, and hides meshrun's own package launcher",
        "hint: rename it, or do not import it as Python starts",
    ]


@pytest.mark.parametrize(
    ("files", "script", "hint"),
    [
        (["launcher.py"], "from launcher import launch", "rename {}/launcher.py: it hides meshrun's own "),
        (["launcher/__init__.py"], "import launcher.worker", "rename {}/launcher: it hides meshrun's own package "),
        (["launcher/util.py"], "import launcher.util", "create {}/launcher/__init__.py: without it Python prefers "
         "meshrun's own package launcher"),
        (["torch.py"], "import torch.nn", "rename {}/torch.py: it hides "),
        (["tools/__init__.py"], "import tools.data", "check {}/tools: it has no module data"),
    ],
)  # fmt: skip
def test_the_report_names_the_file_that_hides_another(tmp_path: Path, files: list[str], script: str, hint: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "train.py").write_text(script)
    outcome = run("python", "-m", "meshrun", "train.py", cwd=tmp_path, environ={"PYTHONPATH": str(ROOT)})
    said = " ".join(outcome.err.partition("hint: ")[2].split())
    assert said.startswith(hint.format(tmp_path))


def test_only_what_no_file_can_replace_is_imported_before_our_packages() -> None:
    program = "import sys; before = set(sys.modules); import meshrun; print(*set(sys.modules) - before)"
    outcome = run("python", "-I", "-c", f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r}); {program}")
    assert set(outcome.out.split()) <= {"meshrun", "__future__"}
