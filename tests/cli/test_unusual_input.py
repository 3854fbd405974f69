"""Words and environments that few people use and some schedulers do: none, very long, not UTF-8, looking like flags."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

MESHRUN = os.path.join(os.path.dirname(sys.executable), "meshrun").encode()
NO_GPU = {b"CUDA_VISIBLE_DEVICES": b""}
# What a worker was given, byte by byte.
ECHO = """
import json, os, sys
words = [os.fsencode(word).hex() for word in sys.argv[1:]]
print(json.dumps([words, {os.fsencode(name).hex(): os.fsencode(os.environ[name]).hex() for name in os.environ}]))
"""
STAMP = re.compile(rb"^[-\d]{10}T[:.\d]{12}Z \S+ ", re.MULTILINE)


class Outcome(NamedTuple):
    code: int
    out: bytes
    err: bytes


def run(place: Path, words: Sequence[bytes], environ: Mapping[bytes, bytes]) -> Outcome:
    """The command with just this environment; its lines without their times."""
    done = subprocess.run(
        [MESHRUN, *words], cwd=place, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    return Outcome(done.returncode, done.stdout, STAMP.sub(b"", done.stderr))


def given(outcome: Outcome) -> tuple[list[bytes], dict[bytes, bytes]]:
    """What ECHO found: arguments, environment."""
    assert outcome.code == 0, outcome.err
    words, environ = json.loads(outcome.out)
    names = {bytes.fromhex(name): bytes.fromhex(text) for name, text in environ.items()}
    return [bytes.fromhex(word) for word in words], names


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "echo.py").write_text(ECHO)
    return tmp_path


@pytest.fixture
def usual_stack() -> Iterator[None]:
    """The kernel allows a quarter of the stack's limit for arguments and environment."""
    before = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_STACK, before)


def test_an_empty_environment_is_enough(place: Path) -> None:
    words, environ = given(run(place, [b"echo.py", b"a"], {}))
    assert words == [b"a"]
    assert environ[b"RANK"] == b"0"
    assert b"PATH" not in environ


def test_words_behind_the_script_reach_it_whatever_they_look_like(place: Path) -> None:
    odd = [
        b"--nnodes",
        b"-h",
        b"--",
        b"--nproc-per-node=7",
        b"",
        b" ",
        b"-",
        b"caf\xe9\xff",
        b"a\nb",
        b"$HOME $$",
        b"%s",
    ]
    assert given(run(place, [b"echo.py", *odd], NO_GPU))[0] == [*odd[:9], b"$HOME $", b"%s"]
    assert given(run(place, [b"--", b"echo.py", b"--", b"--x"], NO_GPU))[0] == [b"--", b"--x"]
    assert given(run(place, [b"echo.py", b"--", b"--x"], NO_GPU))[0] == [b"--x"]


def test_an_environment_that_is_not_utf_8_reaches_the_worker_as_it_is(place: Path) -> None:
    environ = {b"caf\xe9": b"\xff\xfe", b"LANG": b"C", b"LC_ALL": b"POSIX", b"LINES_OF": b"a\nb"}
    assert given(run(place, [b"echo.py"], environ))[1].items() >= environ.items()


def test_a_script_whose_name_is_not_utf_8_runs(place: Path) -> None:
    name = b"caf\xe9 \n.py"
    (place / os.fsdecode(name)).write_text(ECHO)
    assert given(run(place, [name, b"a"], NO_GPU))[0] == [b"a"]


@pytest.mark.usefixtures("usual_stack")
def test_thousands_of_long_arguments_reach_every_worker(place: Path) -> None:
    words = [b"x" * 1000] * 1900
    outcome = run(place, [b"--nproc-per-node=1", b"echo.py", *words], {})
    assert given(outcome)[0] == words


@pytest.mark.usefixtures("usual_stack")
def test_arguments_that_leave_no_room_for_variables_are_named_as_reason(place: Path) -> None:
    least, most = 1900 * 1000, 2200 * 1000  # bytes: this much may be given to the agent, and this much not
    outcome = None
    while most - least > 512:
        size = (least + most) // 2
        try:
            found = run(place, [b"echo.py", *[b"x" * 1000] * (size // 1000), b"x" * (size % 1000 + 1)], {})
        except OSError:
            most = size
            continue
        least = size
        if found.code:
            outcome = found
            break
    assert outcome is not None
    assert outcome.code == 1
    assert b"Argument list too long (shorten the arguments and the environment, or raise ulimit -s" in outcome.err
    assert b"Traceback" not in outcome.err


@pytest.mark.parametrize("name", [b"/dev/stdin", b"/dev/fd/0"])
def test_a_script_on_stdin_is_refused(place: Path, name: bytes) -> None:
    done = subprocess.run([MESHRUN, name], cwd=place, input=b"print(1)", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == (
        b"meshrun: error: the script cannot be read from stdin: every worker reads it\nhint: name a file\n"
    )


def test_rubbish_that_may_be_meant_is_taken(place: Path) -> None:
    words = [
        b"--role", "zürich-節点".encode(), b"--rdzv-id", "🙂".encode(), b"--node-name", b"%s{0}",
        b"--log-dir", b"a\nb\xe9\x1b", b"--tee=3", b"--preemption-file", b"\x01\n\xff", b"--max-restarts=" + b"9" * 30,
        b"--attempt=" + b"9" * 30, b"--signals-to-handle", b"\xff,SIGTERM,a\nb",
    ]  # fmt: skip
    outcome = run(place, [*words, b"echo.py"], NO_GPU)
    assert outcome.code == 0, outcome.err
    assert b"Traceback" not in outcome.err
    assert all(line.startswith(b"meshrun: ") for line in outcome.err.splitlines())
