"""Bad input gets a sentence, a hint where we know one, and exit code 2."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher import cli
from launcher.agent import command, node_main
from launcher.config import files
from launcher.model.errors import UsageError
from launcher.supervisor.handle import Supervisor
from tests.cli.running import Call, run


@pytest.fixture(autouse=True)
def no_scripts(place: Path) -> None:
    """Several things beside the script that are none."""
    (place / "folder").mkdir()
    (place / "folder" / "other.py").write_text("")
    with zipfile.ZipFile(place / "bundle.zip", "w") as bundle:
        bundle.writestr("other.py", "")
    os.mkfifo(place / "pipe")


@pytest.mark.parametrize(
    ("words", "sentence", "hint"),
    [
        ([], "no script given", "run meshrun [options] SCRIPT [arguments of the script]; see meshrun -h"),
        (["tarin.py"], "script tarin.py does not exist", "did you mean train.py?"),
        (
            ["--nproc-per-node", "train.py"],
            "no script given",
            "write --nproc-per-node N train.py: the option took train.py as its value",
        ),
        (["no/where.py"], "script no/where.py does not exist", "check the path: no such directory: no"),
        (["train.py/x"], "script train.py/x cannot be read: Not a directory", None),
        (["folder"], "folder is a directory without __main__.py", "give the name of a script in it"),
        (["bundle.zip"], "bundle.zip is a zip file without __main__.py", None),
        (["--run-path", "folder"], "folder is a directory without __main__.py", "give the name of a script in it"),
        (["pipe"], "script pipe is neither a file nor a directory", "name a file that every worker can read"),
        (["-"], "the script cannot be read from stdin: every worker reads it", "name a file"),
        ([""], "the script's name is empty", "check whether a variable of the shell is empty"),
        (["-m", "train.py"], "--module takes the name of a module, but train.py is a file", "leave out --module"),
        (
            ["--nproc-per-node", "99999999999999999999", "train.py"],
            "--nproc-per-node 99999999999999999999: more than 10000 workers on one machine",
            None,
        ),
        (
            ["--shutdown-timeout", "1e10", "train.py"],
            "--shutdown-timeout 1e10 is more than 1000000000 s, thirty years",
            None,
        ),
        (
            ["--nproc=gpus", "train.py"],
            "--nproc-per-node gpus is neither a number nor auto, gpu, cpu or a type of device",
            "did you mean gpu?",
        ),
        (
            ["--nnodes", "a", "train.py"],
            "--nnodes a is neither a number of nodes nor MIN:MAX",
            "leave it out to run on one machine",
        ),
        (
            ["--mesh", "dp=*,tp=*", "train.py"],
            "mesh 'dp=*,tp=*' has 2 elastic axes (dp, tp); at most one may be *",
            "give all but one a size",
        ),
        (["--log-dir", "train.py", "train.py"], "log directory train.py is not a directory", None),
        (["--log-dir", "train.py/x", "train.py"], "log directory train.py/x cannot be created: Not a directory", None),
        (
            ["--numa-binding", "near", "train.py"],
            "--numa-binding near is neither node, socket, exclusive nor core-complex",
            "leave it out to bind nothing",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command_says_what_is_wrong(
    call: Call, place: Path, words: list[str], sentence: str, hint: str | None
) -> None:
    outcome = call("meshrun", *words, cwd=place)
    expected = f"meshrun: error: {sentence}\n" + (f"hint: {hint}\n" if hint else "")
    assert (outcome.err, outcome.out, outcome.code) == (expected, "", 2)


def test_a_current_directory_that_has_been_removed_is_no_bug_of_ours(place: Path) -> None:
    command = f'rmdir "$PWD"; exec {os.path.dirname(sys.executable)}/meshrun train.py'
    gone = place / "gone"
    gone.mkdir()
    done = subprocess.run(["sh", "-c", command], cwd=gone, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == (
        "meshrun: error: script train.py does not exist\nhint: change the directory: the current one has been removed\n"
    )


@pytest.mark.parametrize("word", ["-h", "--version"])
def test_an_answer_that_cannot_be_written_is_no_bug_of_ours(word: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [os.path.join(os.path.dirname(sys.executable), "meshrun"), word],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    expected = "meshrun: error: cannot write to stdout: No space left on device\nhint: check df -h and df -i\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize(
    ("words", "environ", "sentence", "hint"),
    [
        (["--mesh=dp=-1"], {}, "mesh 'dp=-1': the size of dp is '-1', ", "use for example --mesh pp=4,dp=*,tp=8; "),
        ([sys.executable], {}, f"{sys.executable} is a program, not a Python script\n", "add --no-python to run it\n"),
        (["python", "train.py"], {}, "script python does not exist\n", "leave out python: meshrun starts it"),
        (
            ["--mesh", "dp=2", "tp=2", "train.py"],
            {},
            "script tp=2 does not exist\n",
            "separate axes by commas: --mesh dp=2,tp=2\n",
        ),
        (
            ["--rates", "a=1Gbit", "b=1Gbit", "train.py"],
            {},
            "script b=1Gbit does not exist\n",
            "separate the parts of an option's value by commas",
        ),
        (["help"], {}, "script help does not exist\n", "run meshrun -h\n"),
        (
            ["--nproc", "train.py", "2"],
            {},
            "--nproc-per-node train.py is neither a number nor",
            "write --nproc-per-node N train.py: the option took train.py as its value\n",
        ),
        (
            ["--max-restarts", "train.py", "2"],
            {},
            "--max-restarts train.py must be an integer >= 0\n",
            "write --max-restarts N train.py: the option took train.py as its value\n",
        ),
        (
            ["--nproc-per-node", "2x", "train.py"],
            {},
            "--nproc-per-node 2x is neither a number nor",
            "did you mean 2?\n",
        ),
        (["--start-timeout", "30s", "train.py"], {}, "--start-timeout 30s is not a", "write 30, in seconds\n"),
        (["-n", "2", "train.py"], {}, "unknown option -n\n", "set --nproc-per-node to the workers of one node\n"),
        (
            ["--min-round-time", "2", "train.py"],
            {},
            "unknown option --min-round-time\n",
            "set LAUNCHER_MIN_ROUND_TIME\n",
        ),
        (["--rdzv_prefix=x", "train.py"], {}, "unknown option --rdzv_prefix\n", "set LAUNCHER_RDZV_PREFIX\n"),
        (
            ["--nnodes=2", "train.py"],
            {},
            "--nnodes 2: several nodes need a rendezvous\n",
            "add --rdzv-backend c10d --rdzv-endpoint FIRST-NODE:29400 on every node",
        ),
        (
            ["--nnodes=2", "--rdzv-backend=c10d", "train.py"],
            {},
            "--nnodes 2: several nodes need a rendezvous\n",
            "set --rdzv-endpoint to the host name of one node, the same on all nodes\n",
        ),
        (["odd\udcff.py"], {}, "script 'odd\\udcff.py' does not exist", None),
        ([], {"PET_NNODES": "caf\udce9"}, "PET_NNODES='caf\\udce9' is neither a number of nodes nor MIN:MAX\n", None),
        (["--role=a\nb"], {}, "--role 'a\\nb': it must contain only printable characters\n", None),
        (["--tee=\x1b[31m"], {}, "--tee '\\x1b[31m' is neither a code nor RANK:CODE,...\n", None),
        (["--max-restarts= "], {}, "--max-restarts ' ' must be an integer >= 0\n", None),
        (["--mesh=" + "dp=1," * 20000], {}, "--mesh has 100000 characters; the limit is 4096\n", None),
        (["--\udcff"], {}, "unknown option '--\\udcff'\n", None),
        (
            ["--log-dir", "x/" * 2000],
            {},
            f"log directory {'x/' * 75}... (4000 characters) cannot be created: it has too many levels\n",
            None,
        ),
    ],
)
def test_what_a_run_finds_out_first_is_said_before_anything_starts(
    call: Call, place: Path, words: list[str], environ: dict[str, str], sentence: str, hint: str | None
) -> None:
    outcome = call("meshrun", *words, "train.py", cwd=place, environ=environ)
    assert (outcome.out, outcome.code) == ("", 2)
    assert outcome.err.startswith(f"meshrun: error: {sentence}")
    assert hint is None or f"\nhint: {hint}" in outcome.err


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        ("LAUNCHER_LEASE_TTL=2", "LAUNCHER_LEASE_TTL: a lease of 2 s is too short: "),
        ("PET_NPROC_PER_NODE=gpu", "PET_NPROC_PER_NODE=gpu, but no GPU was found: "),
    ],
)
def test_what_the_agent_finds_out_is_said_before_a_worker_starts(place: Path, variable: str, sentence: str) -> None:
    name, _, value = variable.partition("=")
    outcome = run("meshrun", "train.py", cwd=place, environ={"CUDA_VISIBLE_DEVICES": "", name: value})
    assert (outcome.out, outcome.code) == ("", 2)
    assert outcome.err.startswith(f"meshrun: error: {sentence}")


def test_remarks_come_before_the_job_and_on_stderr(place: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "", "LAUNCHER_NPROC_PER_NDOE": "2"}
    outcome = run("meshrun", "--monitor-interval=5", "train.py", "--nproc-per-node", "2", cwd=place, environ=environ)
    expected = (
        "meshrun: unknown variable LAUNCHER_NPROC_PER_NDOE: did you mean LAUNCHER_NPROC_PER_NODE?",
        "meshrun: --nproc-per-node is passed to train.py: put options of meshrun before the script",
        "meshrun: --monitor-interval 5 has no effect: ",
    )
    assert all(map(str.startswith, outcome.err.splitlines()[:3], expected))
    assert (outcome.out, outcome.code) == ("it runs\n", 0)


def test_python_m_launcher_says_the_same(place: Path) -> None:
    assert run("python", "-m", "launcher", "nosuch.py", cwd=place) == run("meshrun", "nosuch.py", cwd=place)


@contextmanager
def without_rights() -> Iterator[None]:
    """As a user for whom file permissions hold; root may read and write everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def open_place(place: Path) -> Iterator[Path]:
    """`place`, which a user without rights can reach: pytest makes its directories for their owner only."""
    changed = [parent for parent in (place, *place.parents) if parent.stat().st_mode & 0o055 != 0o055]
    modes = [parent.stat().st_mode & 0o7777 for parent in changed]
    for parent, mode in zip(changed, modes, strict=True):
        parent.chmod(mode | 0o055)
    yield place
    for parent, mode in zip(changed, modes, strict=True):
        parent.chmod(mode)


def check_script(*words: str) -> None:
    files.check_script(command.parse(words, {}).workers, None)


def test_what_the_user_may_not_read_or_write_is_refused(open_place: Path) -> None:
    closed, script = open_place / "logs", str(open_place / "train.py")
    closed.mkdir()
    closed.chmod(0o555)
    for logs, sentence in ((closed, "is not writable"), (closed / "more", "cannot be created: Permission denied")):
        with without_rights(), pytest.raises(UsageError) as caught:
            files.check_log_dir(str(logs))
        assert str(caught.value) == f"log directory {logs} {sentence}"
    (open_place / "train.py").chmod(0)
    with without_rights(), pytest.raises(UsageError) as caught:
        check_script(script)
    assert str(caught.value) == f"script {script} cannot be read: Permission denied"


def test_a_directory_or_zip_with_main_passes(place: Path) -> None:
    (place / "folder" / "__main__.py").write_text("")
    with zipfile.ZipFile(place / "bundle.zip", "a") as bundle:
        bundle.writestr("__main__.py", "")
    (place / "packed").write_bytes(Path(sys.executable).read_bytes()[:64] + (place / "bundle.zip").read_bytes())
    for script in ("folder", "bundle.zip", "packed", "train.py"):
        check_script(str(place / script))


def test_a_log_directory_is_made_when_it_is_not_there(place: Path) -> None:
    files.check_log_dir(str(place / "a" / "b"))
    assert (place / "a" / "b").is_dir()


def test_a_module_and_a_program_are_not_looked_for(place: Path) -> None:
    check_script("-m", "no.such.module")
    check_script("--no-python", "no-such-program")


def test_an_unexpected_error_is_called_our_bug_and_shows_its_traceback(
    call: Call, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run", lambda *_: {}["lost"])
    outcome = call("meshrun", "train.py", cwd=place)
    assert outcome.code == 70
    lines = outcome.err.splitlines()
    assert lines[0] == "meshrun: error: unexpected KeyError: a bug in meshrun, not in your job"
    assert lines[1].startswith("hint: please report it with the command line and all that follows; meshrun 0.")
    assert lines[2] == "Traceback (most recent call last):"
    assert lines[-1] == "KeyError: 'lost'"


def test_an_interrupt_before_the_agent_runs_is_quiet(call: Call, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupted)
    assert call("meshrun", "train.py", cwd=place) == (130, "", "")


def test_garbage_is_collected_again_once_all_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def run_agent(*_: object) -> int:
        seen.append(gc.isenabled())
        return 5

    monkeypatch.setattr(cli, "protect_imports", lambda: seen.append(gc.isenabled()))
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(files, "check_script", lambda *_: seen.append(gc.isenabled()))
    monkeypatch.setattr(Supervisor, "start", lambda *_: None)
    monkeypatch.setattr(node_main, "run", run_agent)
    assert cli.main(["train.py"]) == 5
    assert seen == [True, False, True]
    monkeypatch.setattr(command, "run", lambda *_: 6)
    assert (cli.main(["train.py"]), gc.isenabled()) == (6, True)


def test_the_interpreter_of_the_workers_can_be_chosen() -> None:
    assert command.parse(["train.py"], {}).workers.python == sys.executable
    assert command.parse(["train.py"], {"PYTHON_EXEC": "/opt/python"}).workers.python == "/opt/python"
