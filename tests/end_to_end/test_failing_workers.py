"""What follows from a worker's failure in real jobs: its class, what it says of itself, rounds without progress."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import PRELUDE, Command, Job, run
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer

N1, N2, N3 = loopback_hosts(3)
ONE_EACH = ("--nproc-per-node=1", "--max-restarts=3", "--lease-ttl=15", "--join-grace=0.5")
BLAMES_THEN_GIVES_UP = """
from launcher.worker import blame_node, give_up
if ROUND == 1 and os.path.basename(os.getcwd()) == "n2":
    wait_for("../told")
    blame_node("GPU 0 is wrong")
if ROUND == 2 and RANK == 1:
    wait_for("../told again")
    give_up("the loss is not a number")
beat_until("never")
"""


def test_a_node_that_is_blamed_is_not_used_and_who_gives_up_ends_the_job_on_all(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    with Cluster(tmp_path, "--nnodes=2", *ONE_EACH, etcd=etcd, script=BLAMES_THEN_GIVES_UP) as cluster:
        cluster.begin(N1, N2, workers=2)
        cluster.start(N3)
        cluster.wait_for_members("n1", "n2", "n3")
        (tmp_path / "told").touch()
        assert sorted(cluster.wait_for_round(2, 2)) == ["n1", "n3"]
        (tmp_path / "told again").touch()
        for ended in cluster.wait(exit_code=76):
            assert "a restart would not help: the loss is not a number" in " ".join(ended.stderr.split())
            assert "gave up: the loss is not a number" in ended.stderr
        assert not cluster.ranks(3)


def test_a_program_that_has_gone_is_not_started_again(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nrm "$0"\nexit 3\n')
    program.chmod(0o755)
    with Job(tmp_path, "--nproc-per-node=1", "--max-restarts=9", "--no-python", "./program") as job:
        assert job.wait().exit_code == 127
    assert "a restart would not help: the program cannot be run" in " ".join(job.stderr.split())
    assert "could not be started: ./program does not exist" in job.stderr
    assert "hint: install it on this node, or correct its name" in job.stderr
    assert "round 3 starts" not in job.stderr


READ = f'train.py", line {PRELUDE.count(chr(10)) + 3}, in read'
CRASH = "import ctypes, threading\ndef read():\n    ctypes.string_at(0)\n"


@pytest.mark.parametrize("call", ["read()", "t = threading.Thread(target=read)\nt.start()\nt.join()"])
@pytest.mark.parametrize("options", [(), ("--log-dir", "logs")])
def test_a_crash_in_native_code_shows_where_python_was(tmp_path: Path, call: str, options: tuple[str, ...]) -> None:
    job = run(tmp_path, "--nproc-per-node=1", *options, script=CRASH + call, exit_code=139)
    assert READ in job.stderr
    assert "PYTHONFAULTHANDLER" not in job.stderr
    path = job.stderr.partition("  stacks    : ")[2].partition("\n")[0]
    assert "Fatal Python error: Segmentation fault" in Path(path).read_text()


def test_a_crash_is_told_on_stderr_where_the_user_has_asked_for_that(tmp_path: Path) -> None:
    env = {"PYTHONFAULTHANDLER": "1"}
    job = run(tmp_path, "--nproc-per-node=1", "--tee=2", script=CRASH + "read()", exit_code=139, env=env)
    assert job.stderr.count("Fatal Python error: Segmentation fault") == 1
    assert "  stacks    :" not in job.stderr
    assert READ in job.stderr.partition("Root Cause")[2]


@pytest.mark.parametrize(
    ("end", "exit_code", "said"),
    [
        ("sys.exit('no data')", 1, "  SystemExit: no data\n    File"),
        ("raise SystemExit(3)", 3, "  SystemExit: 3\n    File"),
        ("os._exit(3)", 3, "  failed with exit code 3, without an exception or sys.exit()\n"),
        ("import atexit; atexit.register(os._exit, 3)", 3, "  failed with exit code 3, without an exception"),
        ("print('the last word', flush=True); os._exit(3)", 3, "  last lines of its stdout:\n    the last word\n"),
    ],
)
def test_the_end_of_a_script_is_told(tmp_path: Path, end: str, exit_code: int, said: str) -> None:
    job = run(tmp_path, "--nproc-per-node=1", "--redirects=3", script=end, exit_code=exit_code)
    assert said in job.stderr.partition("Root Cause")[2]


@pytest.mark.parametrize("options", [(), ("--redirects=3",), ("--preload=json",), ("--framework=jax",)])
@pytest.mark.parametrize(
    ("module", "said", "hint"),
    [
        ("nosuch", ": No module named nosuch", "check the name after -m: nosuch is neither in "),
        ("nosuch.mod", "specification for 'nosuch.mod'", "check the name after -m: nosuch is neither in "),
        ("package", "'package' is a package", "give the name of a module in it, or create package/__main__.py"),
        ("package.trian", ": No module named package.trian", "did you mean package.train?"),
    ],
)
def test_a_module_that_is_not_there_is_named_and_no_traceback_is_looked_for(
    tmp_path: Path, options: tuple[str, ...], module: str, said: str, hint: str
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").touch()
    words = ("--nproc-per-node=1", "--max-restarts=3", *options, "--module", module)
    with Command(tmp_path, [sys.executable, "-m", "launcher", *words], dict(os.environ)) as job:
        assert job.wait().exit_code == 1
    report = " ".join(job.stderr.partition("Root Cause")[2].split())
    assert said in report
    assert f"hint: {hint}" in report
    assert "traceback" not in job.stderr
    assert "(configuration: Python has found nothing to run)" in job.stderr
    assert "for the second time on" in report


def test_a_script_that_is_gone_in_the_next_round_is_named(tmp_path: Path) -> None:
    script = "os.remove(sys.argv[0]); sys.exit(3)"
    with Job(tmp_path, "--nproc-per-node=1", "--max-restarts=1", script=script) as job:
        assert job.wait().exit_code == 2
    report = " ".join(job.stderr.partition("Root Cause")[2].split())
    assert "can't open file" in report
    assert "hint: check the path of the script: the current directory is" in report


def test_a_script_closes_what_it_has_not_opened(tmp_path: Path) -> None:
    script = "os.closerange(3, 65536)\nassert len(os.listdir('/proc/self/fd')) == 4\nos.abort()"
    assert "was killed by SIGABRT" in run(tmp_path, "--nproc-per-node=1", script=script, exit_code=134).stderr


@pytest.mark.parametrize(
    ("script", "starts", "said"),
    [
        ("import absent", 2, "would not help: ModuleNotFoundError: No module named 'absent', for the second time on "),
        ("exec(f'import absent_{ROUND}')", 4, "3 of 3 restarts used"),
        ("sys.exit(2)", 4, "3 of 3 restarts used"),
    ],
)
def test_an_error_of_the_configuration_is_repeated_once(tmp_path: Path, script: str, starts: int, said: str) -> None:
    with Job(tmp_path, "--nproc-per-node=1", "--max-restarts=3", script=f"mark('up')\n{script}") as job:
        assert job.wait().exit_code in (1, 2)
    assert len(list(tmp_path.glob("up-0-*"))) == starts
    assert said in " ".join(job.stderr.split())
