"""Scripts that are not there, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.extensions.hints.scripts import explain_content, explain_missing_script


@pytest.mark.parametrize(
    ("script", "mesh", "hint"),
    [
        ("trian.py", "", "did you mean train.py?"),
        ("$SCRIPT", "", "let a shell replace $SCRIPT"),
        ("train.py\r", "", "give the file that it comes from Unix line ends"),
        ("\u2014nnodes=2", "", "write --nnodes=2 in ASCII"),
        ("tp=2", "dp=2", "separate axes with commas: --mesh dp=2,tp=2"),
        ("tp=2", "", "separate the parts of an option's value with commas"),
        ("train.py --lr 1", "", "write the script and its arguments as separate words"),
        ("~/train.py", "", "write the path of the home directory"),
        ("/var/spool/slurmd/job7/train.py", "", "use $SLURM_SUBMIT_DIR/train.py"),
        ("none/other.py", "", "check the path: no such directory: none"),
        ("none/train.py", "", "did you mean train.py?"),
        ("train.py:main", "", "did you mean train.py?"),
        ("NCCL_DEBUG=INFO", "", "put NCCL_DEBUG=INFO before meshrun: it sets a variable"),
        ("other.xyz", "", "check the current directory"),
        ("torchrun", "", "leave out torchrun"),
    ],
)
def test_a_script_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, mesh: str, hint: str
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_SUBMIT_DIR", "/home/ada")
    assert explain_missing_script(script, mesh).startswith(hint)


@pytest.mark.parametrize(
    ("script", "start", "is_executable", "hint"),
    [
        ("run.sh", b"echo hi", False, "write --no-python bash run.sh"),
        ("run.sh", b"#!/bin/bash\n", True, "write --no-python ./run.sh"),
        ("bin/run", b"#!/usr/bin/env bash\n", True, "write --no-python bin/run"),
        ("run", b"#!/bin/sh\n'''exec' python3 \"$0\"\n'''\n", True, None),
        ("run", b"#!/usr/bin/env python3\n", True, None),
        ("train.ipynb", b"{}", False, "convert it first: jupyter nbconvert --to script train.ipynb"),
    ],
)
def test_a_file_that_is_no_script_of_python(script: str, start: bytes, is_executable: bool, hint: str | None) -> None:
    found = explain_content(script, start, is_executable)
    assert (found and found[1]) == hint
    if hint is not None and hint.startswith("write"):
        found = explain_content(script, start, is_executable, is_path=True)
        assert found is not None
        assert found[1] == f"leave out --run-path, and {hint}"
