"""The life of a fork server and its workers: whose children they are, what ends them, what each has for itself.

The supervisor is a stand-in (tests/support/processes/small_supervisor.py); the real one has tests of its own.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.supervisor.fork_server import fork_server
from tests.support.processes.small_supervisor import SmallSupervisor
from tests.support.processes.tree import children, descriptors, is_alive, parent, state
from tests.support.waiting import wait_until


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[SmallSupervisor]:
    (tmp_path / "waits.py").write_text("import signal\nprint('runs')\nsignal.pause()")
    with SmallSupervisor(tmp_path) as supervisor:
        yield supervisor


def test_workers_are_the_supervisor_s_own_children_and_lead_sessions(supervisor: SmallSupervisor) -> None:
    supervisor.start(["colorsys"], "script", "waits.py")
    for _, pid in supervisor.born(3):
        assert (parent(pid), os.getsid(pid), os.getpgid(pid)) == (supervisor.pid, pid, pid)
    assert len(children(supervisor.pid)) == 4
    assert children(supervisor.server_pid) == []


def test_the_fork_server_shows_the_command_of_the_worker(supervisor: SmallSupervisor) -> None:
    supervisor.start(["colorsys"], "script", "waits.py", "a b")
    words = Path(f"/proc/{supervisor.server_pid}/cmdline").read_text().split("\0")
    assert words == [supervisor.python, "-u", "waits.py", "a b", ""]


def test_a_worker_s_socket_closes_as_it_begins_though_others_stand_by(supervisor: SmallSupervisor) -> None:
    supervisor.start(["colorsys"], "script", "waits.py")
    parked, (number, _) = supervisor.born(2)
    assert supervisor.release(number) is None
    assert is_alive(parked[1])


@pytest.mark.parametrize("is_released", [False, True], ids=["parked", "running"])
def test_workers_die_with_the_supervisor(supervisor: SmallSupervisor, is_released: bool) -> None:
    supervisor.start(["colorsys"], "script", "waits.py")
    ((number, pid),) = supervisor.born()
    if is_released:
        assert supervisor.release(number) is None
        wait_until(lambda: "runs" in supervisor.output(f"warm{number}")[0], what="the script to run")
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), what="the worker's end")
    wait_until(lambda: not is_alive(supervisor.server_pid), what="the fork server's end")


def test_a_standby_worker_that_is_not_needed_exits_and_runs_nothing(supervisor: SmallSupervisor) -> None:
    supervisor.start(["colorsys"], "script", "waits.py")
    ((number, pid),) = supervisor.born()
    supervisor.ask("close", number)
    assert supervisor.ask("wait", pid) == 0
    assert supervisor.output("server") == ("", "")


def test_the_fork_server_ends_with_the_supervisor_and_its_workers_stay(supervisor: SmallSupervisor) -> None:
    supervisor.start(["colorsys"], "script", "waits.py")
    ((number, pid),) = supervisor.born()
    supervisor.ask("close", 0)
    assert supervisor.ask("wait", supervisor.server_pid) == 0
    assert supervisor.release(number) is None
    wait_until(lambda: "runs" in supervisor.output(f"warm{number}")[0], what="the script to run")
    assert is_alive(pid)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda signum: signum.name)
def test_a_signal_ends_standby_workers_and_the_fork_server(supervisor: SmallSupervisor, signum: signal.Signals) -> None:
    (supervisor.folder / "handles.py").write_text("import signal\nsignal.signal(signal.SIGTERM, print)")
    supervisor.start(["handles"], "script", "waits.py")
    ((_, pid),) = supervisor.born()
    os.kill(pid, signum)
    os.kill(supervisor.server_pid, signum)
    assert (supervisor.ask("wait", pid), supervisor.ask("wait", supervisor.server_pid)) == (-signum, -signum)
    assert supervisor.output("server") == ("", "")


def test_a_signal_during_the_imports_ends_the_fork_server(supervisor: SmallSupervisor) -> None:
    (supervisor.folder / "sends.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()"
    )
    assert supervisor.start(["sends"], "script", "waits.py") is None
    assert supervisor.ask("wait", supervisor.server_pid) == -signal.SIGINT
    assert supervisor.output("server") == ("", "")


def test_a_fork_that_fails_is_answered_and_the_next_one_is_tried(supervisor: SmallSupervisor) -> None:
    (supervisor.folder / "full.py").write_text(
        "import errno, os\nfork, count = os.fork, 0\n"
        "def second_fails():\n"
        "    global count\n"
        "    count += 1\n"
        "    if count == 2: raise OSError(errno.EAGAIN, 'no')\n"
        "    return fork()\n"
        "os.fork = second_fails\n"
    )
    supervisor.start(["full"], "script", "waits.py")
    failed = ["failed", "cannot fork a worker: Resource temporarily unavailable", 11]
    for _who in ("the go-between", "the fork server"):  # the first has inherited a count of 1
        (number,) = supervisor.ask("order", 1)
        assert [supervisor.ask("hear", number), supervisor.ask("hear", number)] == [failed, None]
    ((_, pid),) = supervisor.born()
    assert parent(pid) == supervisor.pid


def test_a_hundred_forks_leave_nothing_in_the_fork_server(supervisor: SmallSupervisor) -> None:
    supervisor.start(["colorsys"], "script", "waits.py")

    def fork(times: int) -> tuple[int, list[str]]:
        for _ in range(times):
            for number, pid in supervisor.born(10):
                supervisor.ask("close", number)
                supervisor.ask("wait", pid)
        used = Path(f"/proc/{supervisor.server_pid}/statm").read_text().split()
        return int(used[1]) - int(used[2]), descriptors(supervisor.server_pid)

    before = fork(3)
    after = fork(10)
    assert after[1] == before[1]
    assert after[0] - before[0] <= 16  # pages
    wait_until(lambda: state(supervisor.server_pid) == "S", what="the fork server to wait")


def test_what_each_process_makes_for_itself_differs_between_workers(supervisor: SmallSupervisor) -> None:
    modules = ["random", "multiprocessing", "threading", "uuid", "tempfile", "secrets"]
    modules += [name for name in ("numpy.random", "torch") if importlib.util.find_spec(name.partition(".")[0])]
    (supervisor.folder / "seeds.py").write_text("import random\nrandom.seed(1)\n")
    (supervisor.folder / "draws.py").write_text(
        f"import {', '.join(modules)}\n"
        "print(random.random())\n"
        "print(multiprocessing.current_process().authkey.hex())\n"
        "print(uuid.uuid4())\nprint(tempfile.mktemp())\nprint(secrets.token_hex())\n"
        "print(threading.main_thread().native_id)\n"
        + ("print(numpy.random.random())\n" if "numpy.random" in modules else "")
        + ("print(torch.initial_seed())\nprint(torch.rand(1).item())\n" if "torch" in modules else "")
    )
    answer = supervisor.start([*modules, "seeds"], "script", "draws.py", OMP_NUM_THREADS="1")
    assert (answer[0], answer[2]) == ("ready", []), (answer, supervisor.output("server"))
    ends = [supervisor.run() for _ in range(2)]
    assert [(code, stderr) for code, _, stderr in ends] == [(0, ""), (0, "")]
    drawn = [stdout.splitlines() for _, stdout, _ in ends]
    assert not [one for one, other in zip(*drawn, strict=True) if one == other]


def test_a_worker_is_kept_to_its_cpus_and_writes_where_it_is_told(supervisor: SmallSupervisor) -> None:
    cpu = min(os.sched_getaffinity(0))
    (supervisor.folder / "shows.py").write_text(
        "import os, sys\nprint(os.sched_getaffinity(0), sys.stdout.seekable(), sys.stderr.seekable())"
    )
    supervisor.start(["colorsys"], "script", "shows.py")
    ((number, pid),) = supervisor.born()
    os.mkfifo(supervisor.folder / "pipe")
    reader = os.open(supervisor.folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    fields = {"local_rank": 0, "env": {}, "unset": [], "fork_argv": ["script", "shows.py"], "affinity": [cpu]}
    supervisor.ask("release", number, [str(supervisor.folder / "pipe"), None], fields)
    assert supervisor.ask("wait", pid) == 0
    assert os.read(reader, 1000).decode() == f"{ {cpu} } False True\n"
    os.close(reader)


def test_what_cannot_be_applied_is_answered_and_nothing_runs(supervisor: SmallSupervisor) -> None:
    supervisor.start(["colorsys"], "script", "waits.py")
    for wrong, expected in (
        ({"env": {"A=B": "1"}}, "cannot run 'waits.py': "),
        ({"affinity": []}, "cannot bind the worker of local rank 3 to its CPUs: Invalid argument"),
    ):
        ((number, pid),) = supervisor.born()
        fields = {"local_rank": 3, "env": {}, "unset": [], "fork_argv": ["script", "waits.py"], **wrong}
        supervisor.ask("release", number, [None, None], fields)
        answer = supervisor.ask("hear", number)
        assert answer[0] == "failed"
        assert answer[1].startswith(expected), answer
        assert supervisor.ask("wait", pid) == 127


def test_a_child_of_the_fork_server_s_python_before_the_hook_is_left_alone(supervisor: SmallSupervisor) -> None:
    """Such as a .pth file starts: it inherits what is meant for the fork server."""
    (supervisor.folder / "own").mkdir()
    (supervisor.folder / "own" / "sitecustomize.py").write_text("print('customized')")
    variables = {
        "PYTHONPATH": f"{fork_server.HOOK_DIRECTORY}:{supervisor.folder}/own",
        fork_server.SOCKET_VARIABLE: "9:1:set:script:1",
    }
    code = "import os; print(os.environ.get('LAUNCHER_FORK_SERVER'), os.environ['PYTHONPATH'])"
    assert supervisor.run_cold("code", code, **variables) == (0, f"customized\nNone {supervisor.folder}/own\n", "")
