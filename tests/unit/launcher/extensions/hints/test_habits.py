"""What other launchers call it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.config.options.table import list_options
from launcher.extensions.hints import habits
from launcher.extensions.hints.habits import explain_command, explain_option


@pytest.mark.parametrize(
    ("spelling", "named"),
    [
        ("--num_gpus", "--nproc-per-node"), ("-np", "--nproc-per-node"), ("-n", "--nproc-per-node"),
        ("--num_processes", "not on all nodes"), ("-N", "--nnodes"), ("--num_machines", "--nnodes"),
        ("--min-np", "--nnodes MIN:MAX"), ("--machine_rank", "--node-rank"), ("--main_process_ip", "--rdzv-endpoint"),
        ("--hostfile", "on every node"), ("-H", "on every node"), ("--gpu-ids", "CUDA_VISIBLE_DEVICES"),
        ("--include", "CUDA_VISIBLE_DEVICES"), ("-x", "export"), ("--bind-to", "--numa-binding"),
        ("--config_file", "LAUNCHER_"), ("--mixed_precision", "after the name of the script"),
        ("-j", "--nnodes 2 --nproc-per-node 8"), ("--allow-run-as-root", "leave it out"), ("--verbose", "meshctl"),
        ("--qqqq", ""), ("-", ""), ("--", ""),
    ],
)  # fmt: skip
def test_an_option_of_others_has_a_next_step(spelling: str, named: str) -> None:
    assert named in explain_option(spelling)
    assert bool(named) == bool(explain_option(spelling))


def test_no_option_of_ours_is_called_one_of_others() -> None:
    assert not habits._OPTIONS.keys() & {option.name for option in list_options()}


def test_the_options_that_are_named_exist() -> None:
    flags = {option.flag for option in list_options()}
    assert {flag for step in habits._OPTIONS.values() for flag in re.findall("--[a-z-]+", step)} <= flags


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("python", "leave out python: meshrun starts it (or add --no-python)"),
        ("/usr/bin/python3.11", "leave out /usr/bin/python3.11: meshrun starts it (or add --no-python)"),
        ("torchrun", "leave out torchrun: meshrun replaces it, and has the options of torchrun"),
        ("accelerate", "leave out accelerate launch: meshrun replaces it, and has the options of torchrun"),
        ("srun", "put srun in front of meshrun, not after it"),
        ("status", "run meshctl status"),
        ("help", "run meshrun -h"),
        ("launch", "leave out launch: the script comes first"),
        ("tool", "add --no-python to run the program tool"),
        ("trian.py", ""),
    ],
)
def test_a_word_where_a_script_belongs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str, hint: str) -> None:
    (tmp_path / "tool").write_text("")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert explain_command(word) == hint
