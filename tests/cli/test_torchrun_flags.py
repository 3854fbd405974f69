"""Every flag of torchrun 2.13, read from torch's own parser, is known here and read the same way."""

from __future__ import annotations

import argparse

import pytest

from launcher.config.options import command_line, table
from launcher.model.errors import UsageError

run = pytest.importorskip("torch.distributed.run", reason="torch is not installed")


def torchruns_options() -> list[argparse.Action]:
    return [action for action in run.get_args_parser()._actions if action.option_strings]


@pytest.mark.parametrize("action", torchruns_options(), ids=lambda action: action.dest)
def test_torchruns_flag_is_in_the_table(action: argparse.Action) -> None:
    long = [spelling for spelling in action.option_strings if spelling.startswith("--")]
    option = command_line.find_option(long[0])
    assert option.source != "ours"
    assert set(action.option_strings) == set(option.spellings)
    assert option.takes_value == (action.nargs != 0)
    reads_variable = type(action).__name__ in ("env", "check_env")
    assert (f"PET_{action.dest.upper()}" in option.variables) == reads_variable


def test_no_other_flag_passes_as_torchruns() -> None:
    theirs = {action.option_strings[-1].lstrip("-").replace("_", "-") for action in torchruns_options()}
    assert {option.name for option in table.list_options() if option.source != "ours"} == theirs


# Where argparse refuses, torchrun exits 2 as we do; the words of the script are apart because argparse reads
# prefixes in them too (`train.py --r` is "ambiguous" there).
@pytest.mark.parametrize(
    "line",
    [
        "train.py",
        "--nproc_per_node 4 train.py --nproc_per_node 8",
        "--nproc-per-node=4 --standalone train.py a b",
        "--redirect=3 train.py",
        "-r3 train.py",
        "-r 3 -t=1 train.py",
        "-mt3 pkg.train --lr=1",
        "-r=0:1,1:2 train.py",
        "--max-r 2 train.py",
        "--sta train.py",
        "--stand train.py",
        "--max-restarts -1 train.py",
        "--role -1 train.py",
        "--role -x train.py",
        "--role= train.py",
        "--standalone=1 train.py",
        "--log-dir --standalone train.py",
        "-- train.py -- a",
        "train.py -- a",
        "train.py -- -- a",
        "train.py a -- b",
        "train.py --",
        "-m -- pkg a --b",
        "--rdzv-conf=a=1,b=2 train.py",
        "--role a --role b train.py",
        "--no-such train.py",
        "-x train.py",
        "-r",
        "--tee",
        "-",
    ],
)
def test_a_command_line_is_taken_apart_as_by_torchrun(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = line.split(" ")
    try:
        theirs = run.get_args_parser().parse_args(words)
    except SystemExit:
        with pytest.raises(UsageError):
            command_line.parse(words)
        return
    ours = command_line.parse(words)
    given = {name.replace("-", "_"): text for name, text in ours.values.items()}
    defaults = {action.dest: action.default for action in torchruns_options()}
    changed = {
        name: "1" if value is True else str(value)
        for name, value in vars(theirs).items()
        if name in defaults and (value != defaults[name] or name in given)
    }
    assert given == changed
    assert (ours.script, list(ours.script_args)) == (theirs.training_script, theirs.training_script_args)
