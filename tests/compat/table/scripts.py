"""What a worker runs, and what of the command line it sees."""

from __future__ import annotations

import io
import os
import sys
import zipfile

from tests.compat.looks import arguments, console, exit_code, holds, is_refused, succeeds, variable, yes
from tests.compat.runs import DUMP, Case, Seen, case


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
    case(
        "a script",
        "",
        ("a script: its name in sys.argv", lambda seen: seen.worker()["argv"][0], "./scripts/work.py"),
        ("a script: __name__", lambda seen: seen.worker()["name"], "__main__"),
        ("a script: sys.path begins with", _folder, "the directory of the script"),
        holds(
            "a script: its working directory is the launcher's",
            lambda seen: seen.worker()["cwd"] == str(seen.directory),
        ),
        holds("a script: Python runs with -u", lambda seen: seen.worker()["unbuffered"]),
        ("a script: arguments that look like flags", arguments(), "--lr 1 --nproc-per-node 8 -m -- -- x"),
        holds("a worker is the leader of a session", lambda seen: seen.worker()["session"] == seen.worker()["pid"]),
        target="./scripts/work.py --lr 1 --nproc-per-node 8 -m -- -- x",
        files={"scripts/work.py": DUMP},
    ),
    case(
        "dashes before the script",
        "--",
        ("-- before the script, and one behind it", arguments(), "-- a"),
        target="train.py -- a",
    ),
    case(
        "dashes behind the script",
        "",
        ("-- directly behind the script", arguments(), "a -- b"),
        target="train.py -- a -- b",
    ),
    case(
        "dollars",
        "--nproc-per-node 2",
        ("${local_rank} and $$ in the script's arguments", arguments(1), "1 1 a$b $HOME ${rank} $ ${local_rank}"),
        target=("train.py", "${local_rank}", "$local_rank", "a$$b", "$HOME", "${rank}", "$", "$${local_rank}"),
    ),
    case(
        "odd arguments",
        "",
        holds("empty, quoted, many-lined and non-UTF-8 arguments arrive", lambda seen: _got(seen, _ODD)),
        target=("train.py", *_ODD),
    ),
    case(
        "many arguments",
        "",
        holds("30,000 arguments arrive", lambda seen: _got(seen, _MANY)),
        target=("train.py", *_MANY),
    ),
    case(
        "a module",
        "--module",
        holds(
            "a module: its file in sys.argv",
            lambda seen: seen.worker()["argv"][0] == str(seen.directory / "package/work.py"),
        ),
        ("a module: its arguments", arguments(), "--lr 1"),
        target="package.work --lr 1",
        files={"package/__init__.py": "", "package/work.py": DUMP},
    ),
    case(
        "a program",
        "--no-python --nproc-per-node 2",
        ("--no-python: a program and its arguments", console("work.sh"), "./work.sh 0 -x 0; ./work.sh 1 -x 1"),
        target="./work.sh -x ${local_rank}",
        files={"work.sh": _SHELL},
    ),
    case(
        "run-path",
        "--run-path --no-python",
        ("--run-path wins over --no-python", succeeds, "runs"),
        ("--run-path: __name__", lambda seen: seen.worker()["name"], "__main__"),
        ("--run-path: sys.argv", lambda seen: " ".join(seen.worker()["argv"]), "train.py -x"),
        ("--run-path: Python runs with -u", yes(lambda seen: seen.worker()["unbuffered"]), "no"),
        target="train.py -x",
    ),
    case(
        "run-path and exit 0",
        "--run-path",
        ("--run-path: sys.exit(0) is success", exit_code(), "0"),
        script=DUMP + "sys.exit(0)\n",
    ),
    case(
        "a directory",
        "",
        ("a directory with __main__.py", arguments(), "a"),
        target="project a",
        files={"project/__main__.py": "import helper\n" + DUMP, "project/helper.py": ""},
    ),
    case(
        "a zip file",
        "",
        ("a zip file with __main__.py", arguments(), "a"),
        target="project.zip a",
        files={"project.zip": _zip()},
    ),
    case(
        "another interpreter",
        "",
        ("PYTHON_EXEC names the interpreter, called with", lambda seen: seen.environ("SAW"), "./python -u"),
        environ={"PYTHON_EXEC": "./python"},
        files={"python": _PYTHON},
    ),
    case("no script", "", ("a script that does not exist", is_refused, "refused, exit code 1"), target="missing.py"),
    case("a script on stdin", "", ("a script on stdin (-)", is_refused, "accepted"), target="-", stdin=DUMP.encode()),
    case(
        "stdin",
        "",
        ("what a worker reads on stdin", lambda seen: seen.worker()["stdin"], "from the terminal"),
        script=DUMP.replace("dump()\n", "dump(stdin=sys.stdin.read())\n"),
        stdin=b"from the terminal",
    ),
    case(
        "the command before torchrun",
        "--nproc_per_node 2",
        ("torch.distributed.launch, --legacy-local-rank: arguments", arguments(1), "--local-rank=1 --lr 1"),
        ("torch.distributed.launch, --legacy-local-rank: LOCAL_RANK", variable("LOCAL_RANK", 1), "1"),
        target="train.py --lr 1",
        environ={"LAUNCHER_LEGACY_LOCAL_RANK": "1"},
        modules={"torchrun": "torch.distributed.launch"},
    ),
    case(
        "the command before torchrun with --use-env",
        "--use-env",
        ("torch.distributed.launch --use-env: arguments", arguments(), "--lr 1"),
        target="train.py --lr 1",
        modules={"torchrun": "torch.distributed.launch"},
    ),
    case("a bare environment", "", ("an environment with nothing in it", succeeds, "runs"), is_bare=True),
)
