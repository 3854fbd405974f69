"""Why a program cannot run: real files, and the real answer of the kernel."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.extensions.hints.start_failure import (
    explain_failure,
    explain_missing_module,
    explain_start,
    explain_words,
)

FILES = {
    "plain": (b"#!/bin/sh\n", 0o644),
    "windows": (b"#!/bin/sh\r\n", 0o755),
    "dead": (b"#!/opt/none/python -u\n", 0o755),
    "closed": (b"#!plain\n", 0o755),
    "text": (b"echo hi\n", 0o755),
    "empty": (b"", 0o755),
    "marked": (b"\xef\xbb\xbf#!/bin/sh\n", 0o755),
    "elf": (b"\x7fELFgarbage", 0o755),
    "image": (b"MZ\0\0", 0o755),
    "train.py": (b"", 0o644),
    "tool": (b"#!/bin/sh\n", 0o755),
}


@pytest.mark.parametrize(
    ("program", "sentence", "hint"),
    [
        ("./plain", "./plain is not executable", "run chmod +x ./plain"),
        ("./windows", "the first line of ./windows ends with a carriage return",
         "convert it to Unix line ends: sed -i 's/\\r$//' ./windows"),
        ("./dead", "./dead needs /opt/none/python, which does not exist", "correct its first line, or install it"),
        ("./closed", "./closed needs plain, which is not executable", "correct its first line"),
        ("./text", "./text names no interpreter", "add a first line such as #!/bin/bash"),
        ("./empty", "./empty is empty", "copy it again"),
        ("./marked", "./marked begins with a byte order mark", "save it as UTF-8 without one"),
        ("./elf", "./elf is damaged, or built for another kind of machine",
         f"use a build for this machine, {os.uname().machine}"),
        ("./image", "./image is not a program for Linux", "use a build for this machine"),
        ("./link", "./link is a link to a file that does not exist", "correct the link"),
        (".", ". is a directory", "name a program in it"),
        ("tool/x", "tool/x does not exist", "install it on this node, or correct its name"),
        ("./none", "./none does not exist", "install it on this node, or correct its name"),
        ("none", "none is in no directory of PATH", "install it on this node, or correct its name"),
        ("train.py", "train.py is in no directory of PATH", "leave out --no-python: train.py is a Python script"),
        ("tool", "tool is in no directory of PATH", "write ./tool: the current directory is not in PATH"),
        ("bash tool", "bash tool is in no directory of PATH",
         "write the program and its arguments as separate words, without quotes around all of them"),
    ],
)  # fmt: skip
def test_a_program_that_cannot_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, sentence: str, hint: str
) -> None:
    for name, (content, mode) in FILES.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    with pytest.raises(OSError, match=r"\[Errno ") as caught:
        subprocess.run([program], check=False)
    assert caught.value.errno is not None
    assert explain_start(program, caught.value.errno, False) == (sentence, hint)


def test_a_python_that_is_missing_is_that_of_its_variable() -> None:
    assert explain_start("/opt/none/python", 2, True) == (
        "/opt/none/python does not exist", "set PYTHON_EXEC to a Python of this node, or unset it",
    )  # fmt: skip


def test_a_program_in_a_directory_that_may_not_be_searched_is_not_said_to_be_missing() -> None:
    assert explain_start("/closed/tool", errno.EACCES, False) == (
        "this user may not run /closed/tool",
        "check its directories with ls -ld, and whether its disk is mounted noexec",
    )
    assert explain_start("/closed/tool", errno.ENOENT, False)[0] == "/closed/tool does not exist"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("email.linalg.a", "check the version of email: it has no module linalg.a"),
        ("numpyy.linalg", f"check whether numpyy is installed for {sys.executable}, and its version"),
    ],
)
def test_a_module_that_is_missing_in_a_package_of_the_agents_own_python(name: str, hint: str) -> None:
    exception = f"ModuleNotFoundError: No module named '{name}'"
    assert explain_failure(sys.executable, True, exception, 0, exception, True) == ("", hint)


def test_a_program_that_runs_is_not_blamed() -> None:
    assert explain_start(sys.executable, 2, True) == ("", "")


@pytest.mark.parametrize(
    ("exception", "variables", "hint"),
    [
        ("ModuleNotFoundError: No module named 'numpyy'", {},
         "install numpyy for /venv/bin/python, which runs the workers"),
        ("ModuleNotFoundError: No module named 'numpy.linalgg'", {"CONDA_PREFIX": "/opt/conda/envs/a"},
         "check whether numpy is installed for /venv/bin/python, and its version"),
        ("ModuleNotFoundError: No module named 'mine'", {},
         "add the directory of mine to PYTHONPATH: Python searches the script's directory, not the current one"),
        ("ModuleNotFoundError: No module named 'datasets'", {},
         "install datasets for /venv/bin/python, which runs the workers"),
        ("ModuleNotFoundError: No module named 'helpers'", {},
         "add the directory of helpers.py to PYTHONPATH: Python searches the script's directory, not the current one"),
        ("ModuleNotFoundError: No module named 'x'", {"CONDA_PREFIX": "/opt/conda/envs/a"},
         "use the meshrun of /opt/conda/envs/a (CONDA_PREFIX), or set PYTHON_EXEC: workers run /venv/bin/python"),
        ("ModuleNotFoundError: No module named 'x'", {"VIRTUAL_ENV": "/venv"},
         "install x for /venv/bin/python, which runs the workers"),
        ("ImportError: No module named 'x'", {}, ""),
    ],
)  # fmt: skip
def test_a_module_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, exception: str, variables: dict[str, str], hint: str
) -> None:
    (tmp_path / "helpers.py").write_text("")
    for folder, name in (("mine", "__init__.py"), ("datasets", "images.bin")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    monkeypatch.chdir(tmp_path)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert explain_missing_module(exception, "/venv/bin/python") == hint


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("pipx_metadata.json", "pipx/venvs/meshrun"), ("uv-receipt.toml", "tools/meshrun"),
        ("pyvenv.cfg", "uv/archive-v0/x1"),
    ],
)  # fmt: skip
def test_the_environment_of_a_tool_has_no_framework(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, folder: str
) -> None:
    python = tmp_path / folder / "bin/python"
    python.parent.mkdir(parents=True)
    (tmp_path / folder / file).touch()
    monkeypatch.setenv("VIRTUAL_ENV", "/project/.venv")
    monkeypatch.chdir(tmp_path)
    for module in ("torch", "jax"):
        assert explain_missing_module(f"ModuleNotFoundError: No module named '{module}'", str(python)) == (
            f"set PYTHON_EXEC to the Python that has {module}: workers run {python}, meshrun's own"
        )
    (tmp_path / folder).rename(tmp_path / "venv")
    (tmp_path / "venv" / file).unlink()
    plain = str(tmp_path / "venv/bin/python")
    hint = explain_missing_module("ModuleNotFoundError: No module named 'torch'", plain)
    assert hint.startswith("use the meshrun of /project/.venv")


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ("t.py: error: the following arguments are required: --data, --local_rank", "add --legacy-local-rank"),
        ("t.py: error: unrecognized arguments: --local-rank=0", "leave out --legacy-local-rank"),
        (
            "RuntimeError: unable to write to file </torch_77_1>: No space left on device (28)",
            "check the space in /dev/shm",
        ),
        ("OSError: [Errno 28] No space left on device: '/data/ckpt'", ""),
        ("t.py: error: unrecognized arguments: --rank", ""),
    ],
)
def test_words_of_libraries_that_mean_one_thing(words: str, start: str) -> None:
    assert explain_words(words).startswith(start)
    assert bool(explain_words(words)) == bool(start)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
def test_a_pipe_in_the_place_of_a_program_is_not_read(tmp_path: Path, number: int) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o755)
    writer = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, b"#!/opt/none/python\n".ljust(8192))
        assert "needs" not in explain_start(str(pipe), number, False).sentence
    finally:
        os.close(writer)
