"""Any one or two of agent, keeper and supervisor stopped or killed: nothing of what workers started is left.

Every case has workers with children of every kind, none of whom holds the listener that is kept. Its watchdog is short
and never extended, so whoever is not killed for another reason is killed for that. KEEPER_REPEATS=N does the whole
table N times, with random pauses between the two strokes, and with warm workers.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.processes.tree import (
    REPOSITORY,
    Agent,
    children,
    family,
    freeze,
    is_alive,
    is_refused,
    program_name,
    state,
)
from tests.support.processes.warm_agent import WarmAgent
from tests.support.waiting import wait_until

REPEATS = int(os.environ.get("KEEPER_REPEATS", "0"))
WATCHDOG_S = 0.7
KEPT = 9  # the listener's descriptor
SETUP = f"""
import os, socket
kept = socket.create_server(('127.0.0.1', 0))
os.dup2(kept.fileno(), {KEPT})
kept.close()
KEEP, CLEARS = [{KEPT}], True
"""
PORT = f"socket.socket(fileno=os.dup({KEPT})).getsockname()[1]"
# A wrapper without exec with a child in its group, one in a session of its own with a child of its own, one that has
# lost its parent, and a daemon; descriptors are closed as `subprocess` does.
OFFSPRING = "; ".join((
    " ".join(f"exec {number}>&-;" for number in range(3, 10)).rstrip(";"),
    "sleep 1000 & setsid sh -c 'sleep 1000; :' & (sleep 1000 &)",
    "(setsid setsid sleep 1000 &)",
    "wait",
))  # fmt: skip
SIZE = 6


class Stroke(NamedTuple):
    """SIGSTOP or SIGKILL to one of the three."""

    who: str
    signum: signal.Signals

    def __str__(self) -> str:
        return f"{self.who} {'stopped' if self.signum == signal.SIGSTOP else 'killed'}"


STROKES = [Stroke(who, how) for how in (signal.SIGKILL, signal.SIGSTOP) for who in ("agent", "keeper", "supervisor")]
SINGLES = [(stroke,) for stroke in STROKES]
PAIRS = [pair for pair in itertools.permutations(STROKES, 2) if pair[0].who != pair[1].who]
TABLE: list[tuple[Stroke, ...]] = [*SINGLES, *PAIRS]


class Trio:
    """Agent, keeper and supervisor with workers whose children are of every kind."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.pids = {"agent": agent.pid, "keeper": agent.keeper_pid, "supervisor": agent.supervisor_pid}
        self.port: int = agent.ask("evaluate", PORT)
        agent.start(1, ["sh", "-c", OFFSPRING])
        wait_until(lambda: self.sleepers() == 4 and len(self.below()) >= SIZE, what="the worker's children")

    def sleepers(self) -> int:
        return [program_name(pid) for pid in family(self.agent.token)].count("sleep")

    def below(self) -> list[int]:
        """Who lives of what descends from the three."""
        return sorted(set(family(self.agent.token)) - set(self.pids.values()))

    def checked(self) -> list[int]:
        """The same; raises AssertionError if there was a proof that nobody does."""
        was_refused, left = is_refused(self.port), self.below()
        assert not (was_refused and left), f"the proof was given while {left} lived"
        return left

    def strike(self, strokes: tuple[Stroke, ...], pause_s: float = 0.0) -> None:
        self.agent.do("extend_watchdog", time.clock_gettime(time.CLOCK_BOOTTIME) + WATCHDOG_S)
        self.agent.sweep(99)  # so the supervisor has set its watchdog
        for stroke in strokes:
            with suppress(ProcessLookupError):  # the first has ended it
                os.kill(self.pids[stroke.who], stroke.signum)
            time.sleep(pause_s)


def broken(agent: Agent, strokes: tuple[Stroke, ...], pause_s: float = 0.0) -> str:
    """What is wrong after these strokes, in a sentence; empty if nothing is."""
    name = ", then ".join(map(str, strokes))
    killed = {stroke.who for stroke in strokes if stroke.signum == signal.SIGKILL}
    try:
        trio = Trio(agent)
        trio.strike(strokes, pause_s)
        wait_until(lambda: not trio.checked(), what=f"the end of all but {trio.pids}")
        if "agent" in killed:
            for pid in trio.pids.values():  # one that was stopped when it had nothing left to do
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            wait_until(lambda: not family(agent.token), what="the end of all")
        elif is_refused(trio.port):
            return f"{name}: a proof was given while the agent lived"
    except AssertionError as error:
        there = [f"{pid} ({program_name(pid)}, {state(pid)})" for pid in family(agent.token)]
        return f"{name}: {error}; there are {there}"
    return ""


def run_all(cases: list[tuple[Stroke, ...]], folder: Path | None = None, pause_s: float = 0.0) -> list[str]:
    """The cases side by side, with warm workers if there is a folder; what is broken."""
    with ExitStack() as stack, ThreadPoolExecutor(len(cases)) as pool:
        agents = [stack.enter_context(agent) for agent in started(len(cases), folder)]
        pauses = [random.random() * pause_s for _ in cases]
        return [sentence for sentence in pool.map(broken, agents, cases, pauses) if sentence]


def started(count: int, folder: Path | None) -> Iterator[Agent]:
    for number in range(count):
        if folder is None:
            yield Agent(setup=SETUP)
        else:
            own = folder / str(number)
            own.mkdir(parents=True)
            agent = WarmAgent(own, standby=1, setup=SETUP)
            agent.is_preloaded()
            yield agent


@pytest.mark.parametrize("first", STROKES, ids=str)
def test_one_or_two_of_the_three_are_lost_and_nothing_is_left(first: Stroke) -> None:
    assert run_all([strokes for strokes in TABLE if strokes[0] == first]) == []


@pytest.mark.parametrize("who", ["agent", "keeper", "supervisor"])
def test_with_warm_and_standby_workers_nothing_is_left_either(tmp_path: Path, who: str) -> None:
    others = {"agent": "supervisor", "keeper": "agent", "supervisor": "keeper"}
    cases = [strokes for strokes in PAIRS if (strokes[0].who, strokes[1].who) == (who, others[who])]
    assert run_all(cases, tmp_path) == []


@pytest.mark.skipif(not REPEATS, reason="KEEPER_REPEATS=N does the whole table N times")
@pytest.mark.parametrize("first", STROKES, ids=str)
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_the_whole_table_with_random_pauses(tmp_path: Path, first: Stroke, is_warm: bool) -> None:
    cases = [strokes for strokes in TABLE if strokes[0] == first]
    for repeat in range(REPEATS):
        assert run_all(cases, tmp_path / str(repeat) if is_warm else None, pause_s=random.choice((0.002, 0.05))) == []


def test_a_stopped_trio_goes_on_where_no_watchdog_is_held() -> None:
    with Agent(setup=SETUP) as agent:
        trio = Trio(agent)
        before = trio.below()
        for pid in trio.pids.values():
            freeze(pid)
        for pid in trio.pids.values():
            os.kill(pid, signal.SIGCONT)
        agent.start(2, ["sleep", "1000"])
        assert set(before) <= set(trio.below())


LEAVES = """
import os, socket, sys
os.makedirs("{first}/attempt_0/0")
socket.socket(socket.AF_UNIX).bind("{first}/1.0")
os.mkdir("{second}")
socket.socket(socket.AF_UNIX).bind("{second}/1.0")
open("{second}/error_1_0.json", "w").close()
os.symlink("/", "{second}/link")
os.execvp("sleep", ["sleep", "1000"])
"""


@pytest.mark.parametrize("killed", [("agent",), ("agent", "supervisor"), ("keeper",), ()], ids=" and ".join)
def test_sockets_and_empty_directories_are_removed_whoever_is_killed(tmp_path: Path, killed: tuple[str, ...]) -> None:
    first, second, missing = (tmp_path / name for name in ("first", "second", "missing"))
    with Agent(setup=f"TEMPORARY_DIRS = {[str(first), str(second), str(missing)]!r}") as agent:
        agent.start(1, [sys.executable, "-c", LEAVES.format(first=first, second=second)])
        wait_until((second / "link").is_symlink, what="the worker's files")
        for who in killed:
            pid = {"agent": agent.pid, "keeper": agent.keeper_pid, "supervisor": agent.supervisor_pid}[who]
            with suppress(ProcessLookupError):  # a supervisor ends by itself once its agent has gone
                os.kill(pid, 9)
        if "agent" not in killed:
            agent.ask("close", 20)
        wait_until(lambda: set(family(agent.token)) <= {agent.pid}, what="the end of all")
        assert os.listdir(tmp_path) == ["second"]
        assert sorted(os.listdir(second)) == ["error_1_0.json", "link"]


def test_a_stopped_keeper_ends_with_the_agent_that_closes_in_good_order() -> None:
    with Agent(setup=SETUP) as agent:
        trio = Trio(agent)
        freeze(agent.keeper_pid)
        agent.ask("close", 20)
        assert agent.ask("evaluate", "supervisor._keeper_status") == 0  # it was woken, and not killed
        assert trio.below() == []
        assert children(agent.pid) == []


def test_the_end_of_the_keeper_is_told() -> None:
    with Agent(setup=SETUP) as agent:
        Trio(agent)
        os.kill(agent.keeper_pid, signal.SIGKILL)
        assert agent.wait_for("SupervisorLost")[1] == f"the keeper (pid {agent.keeper_pid}) was killed by SIGKILL"
        agent.wait_until_nobody_is_left(agent.pid)
        assert agent.ask("read_reports") == []
        assert {report[0] for report in agent.heard}.isdisjoint(("Exited", "RoundSwept"))  # that is nobody's failure


# One that is lost itself as soon as it has killed once.
LOST_AFTER_KILLING = """
from launcher.hardware.linux import kernel
real = kernel.kill_children
def kill_children(*arguments):
    left = real(*arguments)
    if {who!r} in open("/proc/self/comm").read():
        os.kill(os.getpid(), {signum})
    return left
kernel.kill_children = kill_children
"""


@pytest.mark.parametrize("first", ["keeper", "supervisor"])
def test_an_agent_lets_the_other_do_its_work_before_it_kills(first: str) -> None:
    with Agent(setup=SETUP + LOST_AFTER_KILLING.format(who="python", signum=9)) as agent:
        trio = Trio(agent)
        os.kill(trio.pids[first], signal.SIGKILL)
        agent.wait_until_nobody_is_left()


@pytest.mark.parametrize(("stopped", "killed"), [("keeper", "supervisor"), ("supervisor", "keeper")])
def test_an_agent_waits_for_nobody_who_stands_still(stopped: str, killed: str) -> None:
    with Agent(
        setup=f"{SETUP}import launcher.supervisor.handle; launcher.supervisor.handle.LOSS_LIMIT_S = 1000.0"
    ) as agent:
        trio = Trio(agent)
        freeze(trio.pids[stopped])
        freeze(agent.pid)  # the supervisor goes on when its keeper ends
        os.kill(trio.pids[killed], signal.SIGKILL)
        os.kill(trio.pids[stopped], signal.SIGSTOP)
        os.kill(agent.pid, signal.SIGCONT)
        agent.wait_until_nobody_is_left(agent.pid)


def test_a_keeper_lets_the_supervisor_do_its_work_before_it_kills() -> None:
    with Agent(setup=SETUP + LOST_AFTER_KILLING.format(who="mr-keeper", signum=19)) as agent:
        trio = Trio(agent)
        os.kill(agent.pid, signal.SIGKILL)
        wait_until(lambda: not trio.checked(), what="the end of all but the keeper")
        wait_until(lambda: state(agent.keeper_pid) in ("T", "Z", ""))  # the agent's end may come later, and wake it


def test_a_keeper_wakes_a_supervisor_that_is_stopped_and_has_no_watchdog() -> None:
    limit = "from launcher.supervisor import keeper; keeper.SUPERVISOR_LIMIT_S = 1000.0"
    with Agent(setup=SETUP + limit) as agent:
        Trio(agent)
        freeze(agent.supervisor_pid)
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait_until_nobody_is_left()


# --- at birth ---

FORKS = """
import os
real, count = os.fork, 0
def fork():
    global count
    count += 1
    if count == 2:
        {}
    return real()
os.fork = fork
"""


def test_a_keeper_that_is_killed_before_it_has_forked_is_told() -> None:
    with born(FORKS.format("os.kill(os.getpid(), 9)") + SETUP) as agent:
        assert "the keeper (pid " in agent.wait_for("SupervisorLost")[1]
        agent.wait_until_nobody_is_left(agent.pid)


def test_a_keeper_that_is_stopped_before_it_has_forked_is_continued() -> None:
    with born(FORKS.format("os.kill(os.getpid(), 19)") + SETUP) as agent:
        assert agent.start(1, ["sleep", "1000"])


def test_a_keeper_that_cannot_fork_is_told() -> None:
    with born(FORKS.format("raise BlockingIOError(11, 'Resource temporarily unavailable')") + SETUP) as agent:
        sentence = "cannot fork the supervisor: Resource temporarily unavailable; check ulimit -u"
        assert agent.wait_for("SupervisorLost")[1] == sentence
        agent.wait_until_nobody_is_left(agent.pid)


# What happens to a keeper before it reads its order.
BEFORE_THE_ORDER = """
import resource
from launcher.supervisor import keeper
from launcher.supervisor.channel import Channel
def lack_memory(text):
    raise MemoryError
def lack_descriptors(*arguments):
    raise OSError(24, "Too many open files")
def set_title(*arguments):
    {}
keeper.set_title = set_title
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
            "the keeper cannot read its order: descriptors were lost in transit: too many open files (ulimit -n)",
        ),
        ("Channel.decode = staticmethod(lack_memory)", "the keeper cannot read its order: MemoryError"),
        (
            "Channel.decode = staticmethod(lambda text: ())",
            "the keeper cannot read its order: ValueError: not enough values to unpack (expected 3, got 0)",
        ),
        (
            "keeper.place_descriptors = lack_descriptors",
            "the supervisor cannot run here: Too many open files; check ulimit -n",
        ),
    ],
    ids=["no descriptor", "no memory", "an order of another form", "none to place others"],
)
def test_a_keeper_that_cannot_obey_its_order_says_why(what: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    with born(BEFORE_THE_ORDER.format(what) + SETUP) as agent:
        _, sentence, exit_code = agent.wait_for("SupervisorLost")
        assert (sentence, exit_code) == (said, 75)
        agent.wait_until_nobody_is_left(agent.pid)
    assert capfd.readouterr().err == ""


def test_a_keeper_whose_order_could_not_be_sent_delays_no_end() -> None:
    script = """
from launcher.supervisor.handle import Supervisor
from launcher.supervisor.keeper import fork_keeper
supervisor = Supervisor(*fork_keeper())
try:
    supervisor.start([10 ** 6])
except OSError as error:
    print(error.strerror)
supervisor.close(limit_s=3600)
print(supervisor.kill_orphans(0))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "Bad file descriptor\n()\n", done.stderr


def test_an_agent_that_dies_before_the_keeper_is_set_up_leaves_nothing() -> None:
    late = """
import os, time
from launcher.hardware.linux import kernel
own, real = os.getpid(), kernel.signal_on_parent_death
def ask(signum):
    while os.getppid() == own: time.sleep(0.005)
    real(signum)
kernel.signal_on_parent_death = ask
"""
    with born(late + SETUP) as agent:
        wait_until(lambda: program_name(agent.keeper_pid) == "mr-keeper")
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait_until_nobody_is_left()


def test_a_supervisor_whose_keeper_dies_during_its_setup_ends() -> None:
    late = """
import os, time
from launcher.hardware.linux import kernel
real, keeper = kernel.signal_on_parent_death, 0
def ask(signum):
    global keeper
    while keeper and os.getppid() == keeper: time.sleep(0.005)
    keeper = os.getpid()
    real(signum)
kernel.signal_on_parent_death = ask
"""
    with born(late + SETUP) as agent:
        wait_until(lambda: children(agent.keeper_pid))
        os.kill(agent.keeper_pid, signal.SIGKILL)
        agent.wait_for("SupervisorLost")
        agent.wait_until_nobody_is_left(agent.pid)


def born(setup: str) -> Agent:
    """An agent whose supervisor may never come."""
    return Agent(setup=setup, settles=False)


# --- names ---


def test_keeper_and_supervisor_have_command_lines_of_their_own() -> None:
    with Agent(setup=f"'meshrun launcher {'x' * 5000}'") as agent:
        (worker,) = agent.start(1, ["sleep", "1000"])
        assert "meshrun launcher" in command_line(agent.pid)
        for pid, name in ((agent.keeper_pid, "mr-keeper"), (agent.supervisor_pid, "mr-supervisor")):
            assert program_name(pid) == name
            assert command_line(pid) == f"{name} of pid {agent.pid}"
        assert command_line(worker) == "sleep 1000"


def test_a_name_is_cut_where_the_agents_command_line_is_shorter() -> None:
    with Agent() as agent:
        keeper = "__import__('launcher.supervisor.keeper').supervisor.keeper"
        agent.ask("evaluate", f"{keeper}.set_title('k', 10 ** 500, {keeper}.kernel.read_stat({agent.pid}).arguments)")
        assert command_line(agent.pid).startswith("k of pid 1000")
        assert agent.start(1, ["sleep", "1000"])


STOPPED = """
import os, signal
from launcher.hardware.linux.kernel import read_stat
from launcher.supervisor.handle import Supervisor
from launcher.supervisor.keeper import fork_keeper
from tests.support.waiting import wait_until
supervisor = Supervisor(*fork_keeper())
keeper = supervisor.keeper_pid
wait_until(lambda: (read_stat(keeper).name, read_stat(keeper).state) == ("mr-keeper", "S"))
os.kill(supervisor.keeper_pid, signal.SIGSTOP)
os.waitid(os.P_PID, supervisor.keeper_pid, os.WSTOPPED)
{then}
"""


def run_stopped(then: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STOPPED.format(then=then)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)


def test_a_keeper_that_was_stopped_before_the_start_starts_the_supervisor() -> None:
    done = run_stopped("supervisor.start(); print(supervisor.pid != supervisor.keeper_pid); supervisor.close()")
    assert done.stdout == "True\n", done.stderr


def test_a_keeper_that_is_stopped_before_the_start_delays_no_end() -> None:
    done = run_stopped("supervisor.close(limit_s=3600); print(supervisor.kill_orphans(0))")
    assert done.stdout == "()\n", done.stderr


def test_a_keeper_that_was_stopped_before_the_start_ends_with_its_agent() -> None:
    then = "print(supervisor.keeper_pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    command = [sys.executable, "-c", STOPPED.format(then=then)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        keeper = int(agent.stdout.readline())
        assert agent.wait(60) == -signal.SIGKILL
        try:
            wait_until(lambda: not is_alive(keeper), 20)
        finally:
            with suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()


QUICK = "import launcher.supervisor.keeper; launcher.supervisor.keeper.STOP_LIMIT_S = 0.2\n"


def test_a_supervisor_that_stays_stopped_is_continued() -> None:
    with Agent(setup=QUICK) as agent:
        for round in (1, 2):
            (worker,) = agent.start(round, ["sleep", "1000"])
            freeze(agent.supervisor_pid)
            os.kill(worker, signal.SIGKILL)
            assert agent.wait_for("Exited", round)[4] == -signal.SIGKILL


def test_a_supervisor_that_is_continued_in_time_is_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with Agent(setup=QUICK.replace("0.2", "1000.0")) as agent:
        freeze(agent.supervisor_pid)
        agent.do("sweep", 1)
        os.kill(agent.supervisor_pid, signal.SIGCONT)
        agent.wait_for("RoundSwept", 1)
    assert "was stopped" not in capfd.readouterr().err
