"""What a worker runs, and what of the command line it sees."""

from __future__ import annotations

import io
import os
import sys
import zipfile

from tests.compat.looks import arguments, console, exit_code, is_refused, succeeds, variable, yes
from tests.compat.runs import DUMP, Case, Seen


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__main__.py", "import helper\n" + DUMP)
        archive.writestr("helper.py", "NAME = 'beside it'\n")
    return buffer.getvalue()


def _folder(seen: Seen) -> str:
    path = seen.worker()["path"]
    return "the directory of the script" if path == str(seen.directory / "scripts") else path or "''"


_SHELL = '#!/bin/sh\necho "$0 $LOCAL_RANK $@"\n'
_PYTHON = f'#!/bin/sh\nSAW="$0 $1" exec {sys.executable} "$@"\n'
_MANY = tuple(f"--learning-rate-{number}=0.{number}" for number in range(30_000))  # 0.9 MB
_ODD = ("", "a b", "line\nline", "é", os.fsdecode(b"\xff\xfe"), "'", '"', "*", "~")


def _got(seen: Seen, words: tuple[str, ...]) -> bool:
    return tuple(seen.worker()["argv"][1:]) == words


CASES: tuple[Case, ...] = (
    Case(
        name="a script",
        target="./scripts/work.py --lr 1 --nproc-per-node 8 -m -- -- x",
        files={"scripts/work.py": DUMP},
        looks={
            "a script: its name in sys.argv": (lambda seen: seen.worker()["argv"][0], "./scripts/work.py"),
            "a script: __name__": (lambda seen: seen.worker()["name"], "__main__"),
            "a script: sys.path begins with": (_folder, "the directory of the script"),
            "a script: its working directory is the launcher's": (
                yes(lambda seen: seen.worker()["cwd"] == str(seen.directory)),
                "yes",
            ),
            "a script: Python runs with -u": (yes(lambda seen: seen.worker()["unbuffered"]), "yes"),
            "a script: arguments that look like flags": (arguments(), "--lr 1 --nproc-per-node 8 -m -- -- x"),
            "a worker is the leader of a session": (
                yes(lambda seen: seen.worker()["session"] == seen.worker()["pid"]),
                "yes",
            ),
        },
    ),
    Case(
        name="dashes before the script",
        options="--",
        target="train.py -- a",
        looks={"-- before the script, and one behind it": (arguments(), "-- a")},
    ),
    Case(
        name="dashes behind the script",
        target="train.py -- a -- b",
        looks={"-- directly behind the script": (arguments(), "a -- b")},
    ),
    Case(
        name="dollars",
        options="--nproc-per-node 2",
        target=("train.py", "${local_rank}", "$local_rank", "a$$b", "$HOME", "${rank}", "$", "$${local_rank}"),
        looks={
            "${local_rank} and $$ in the script's arguments": (arguments(1), "1 1 a$b $HOME ${rank} $ ${local_rank}")
        },
    ),
    Case(
        name="odd arguments",
        target=("train.py", *_ODD),
        looks={"empty, quoted, many-lined and non-UTF-8 arguments arrive": (yes(lambda seen: _got(seen, _ODD)), "yes")},
    ),
    Case(
        name="many arguments",
        target=("train.py", *_MANY),
        looks={"30,000 arguments arrive": (yes(lambda seen: _got(seen, _MANY)), "yes")},
    ),
    Case(
        name="a module",
        options="--module",
        target="package.work --lr 1",
        files={"package/__init__.py": "", "package/work.py": DUMP},
        looks={
            "a module: its file in sys.argv": (
                yes(lambda seen: seen.worker()["argv"][0] == str(seen.directory / "package/work.py")),
                "yes",
            ),
            "a module: its arguments": (arguments(), "--lr 1"),
        },
    ),
    Case(
        name="a program",
        options="--no-python --nproc-per-node 2",
        target="./work.sh -x ${local_rank}",
        files={"work.sh": _SHELL},
        act=None,
        looks={"--no-python: a program and its arguments": (console("work.sh"), "./work.sh 0 -x 0; ./work.sh 1 -x 1")},
    ),
    Case(
        name="run-path",
        options="--run-path --no-python",
        target="train.py -x",
        looks={
            "--run-path wins over --no-python": (succeeds, "runs"),
            "--run-path: __name__": (lambda seen: seen.worker()["name"], "__main__"),
            "--run-path: sys.argv": (lambda seen: " ".join(seen.worker()["argv"]), "train.py -x"),
            "--run-path: Python runs with -u": (yes(lambda seen: seen.worker()["unbuffered"]), "no"),
        },
    ),
    Case(
        name="run-path and exit 0",
        options="--run-path",
        script=DUMP + "sys.exit(0)\n",
        looks={"--run-path: sys.exit(0) is success": (exit_code(), "0")},
    ),
    Case(
        name="a directory",
        target="project a",
        files={"project/__main__.py": "import helper\n" + DUMP, "project/helper.py": ""},
        looks={"a directory with __main__.py": (arguments(), "a")},
    ),
    Case(
        name="a zip file",
        target="project.zip a",
        files={"project.zip": _zip()},
        looks={"a zip file with __main__.py": (arguments(), "a")},
    ),
    Case(
        name="another interpreter",
        environ={"PYTHON_EXEC": "./python"},
        files={"python": _PYTHON},
        looks={"PYTHON_EXEC names the interpreter, called with": (lambda seen: seen.environ("SAW"), "./python -u")},
    ),
    Case(
        name="no script",
        target="missing.py",
        looks={"a script that is not there": (is_refused, "refused, exit code 1")},
    ),
    Case(
        name="a script on stdin",
        target="-",
        stdin=DUMP.encode(),
        looks={"a script on stdin (-)": (is_refused, "accepted")},
    ),
    Case(
        name="stdin",
        script=DUMP.replace("dump()\n", "dump(stdin=sys.stdin.read())\n"),
        stdin=b"from the terminal",
        looks={"what a worker reads on stdin": (lambda seen: seen.worker()["stdin"], "from the terminal")},
    ),
    Case(
        name="the command before torchrun",
        options="--nproc_per_node 2",
        target="train.py --lr 1",
        environ={"LAUNCHER_LEGACY_LOCAL_RANK": "1"},
        modules={"torchrun": "torch.distributed.launch"},
        looks={
            "torch.distributed.launch, --legacy-local-rank: arguments": (arguments(1), "--local-rank=1 --lr 1"),
            "torch.distributed.launch, --legacy-local-rank: LOCAL_RANK": (variable("LOCAL_RANK", 1), "1"),
        },
    ),
    Case(
        name="the command before torchrun with --use-env",
        options="--use-env",
        target="train.py --lr 1",
        modules={"torchrun": "torch.distributed.launch"},
        looks={"torch.distributed.launch --use-env: arguments": (arguments(), "--lr 1")},
    ),
    Case(
        name="a bare environment",
        is_bare=True,
        looks={"an environment with nothing in it": (succeeds, "runs")},
    ),
)
