"""Bad input gets a sentence, a hint where we know one, and exit code 2: what the transcripts beside cannot show."""

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
    ("words", "sentence"),
    [
        (["odd\udcff.py"], "script 'odd\\udcff.py' does not exist"),
        (["--nnodes=caf\udce9"], "--nnodes 'caf\\udce9' is neither a number of nodes nor MIN:MAX\n"),
        (["--role=a\nb"], "--role 'a\\nb': it must contain only printable characters\n"),
        (["--tee=\x1b[31m"], "--tee '\\x1b[31m' is neither a code nor RANK:CODE,...\n"),
        (["--mesh=" + "dp=1," * 20000], "--mesh has 100000 characters; the limit is 4096\n"),
        (["--\udcff"], "unknown option '--\\udcff'\n"),
        (
            ["--log-dir", "x/" * 2000],
            f"log directory {'x/' * 75}... (4000 characters) cannot be created: it has too many levels\n",
        ),
    ],
)
def test_what_no_terminal_could_show_is_shown_escaped_or_cut(
    call: Call, place: Path, words: list[str], sentence: str
) -> None:
    outcome = call("meshrun", *words, "train.py", cwd=place)
    assert (outcome.out, outcome.code) == ("", 2)
    assert outcome.err.startswith(f"meshrun: error: {sentence}")


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
    assert f"meshrun: error: {sentence}" in outcome.err


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
    (place / "folder").mkdir()
    (place / "folder" / "__main__.py").touch()
    with zipfile.ZipFile(place / "bundle.zip", "w") as bundle:
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
    wanted = "the command line, all that follows, and the output of meshctl doctor --report -"
    assert lines[1].startswith(f"hint: please report it with {wanted}; meshrun 0.")
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
