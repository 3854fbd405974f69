"""Several agents of one run on this host: each has a name of its own, finds it again, and shares no device."""

from __future__ import annotations

import os
import resource
import secrets
import select
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.startup.host_agents import HostAgents, take_host_place
from launcher.agent.startup.stale_agents import NodeLock
from launcher.model.errors import TemporaryError
from launcher.model.node import Device, Slot
from tests.support.processes.lock_agents import (
    BEGIN_WORKER,
    SLEEP,
    USE_FOLDER,
    LockAgents,
    act_after_open,
    kill_all_three,
    locks_in,
    read_words,
)
from tests.support.processes.tree import freeze, is_alive
from tests.support.waiting import wait_until

# An agent: it takes a place, forks a supervisor with a worker, takes its devices, and waits for a line or for its end.
AGENT = f"""
import os, sys
from launcher.model.lean_import import import_msgspec
import_msgspec()
from launcher.agent.startup.host_agents import take_host_place
from launcher.agent.startup.stale_agents import Attempt
from launcher.model.errors import TemporaryError
from launcher.model.node import Device, Slot
_, folder, run, uses, worker = sys.argv
{USE_FOLDER}
agents, place = take_host_place(
    run, "host", "boot", os.environ, uses_accelerators=uses != "cpu",
    node_rank=int(os.environ["NUMBER"]) if "NUMBER" in os.environ else None,
    attempt=Attempt(int(os.environ.get("ATTEMPT", 0))),
)
{BEGIN_WORKER}
try:
    names = uses.removeprefix("cpu").split()
    devices = [Device(kind="nvidia", index=at, id=name, visible=name) for at, name in enumerate(names)]
    agents.take_devices([Slot(index=0, devices=tuple(devices))])
except TemporaryError as error:
    print("refused", error, flush=True)
else:
    print(agents.name, reports[0].pid, flush=True)
    sys.stdin.readline()
supervisor.close(SWEEP_LIMIT_S)
agents.leave(is_clean=place.release())
"""


class Host(LockAgents):
    """The agents of one run, started here."""

    def __init__(self, folder: Path) -> None:
        super().__init__(AGENT, folder)
        self.run_id = f"run-{os.getpid()}-{secrets.token_hex(4)}"

    def start(self, uses: str = "cpu", worker: str = SLEEP, **environment: str) -> subprocess.Popen[str]:
        return self.run(self.run_id, uses, worker, **environment)

    def begin(self, uses: str = "cpu", **environment: str) -> tuple[str, subprocess.Popen[str]]:
        """The name of one more agent, once its worker runs."""
        process = self.start(uses, **environment)
        return name_of(process), process


def slot(device: str, kind: str = "nvidia") -> Slot:
    return Slot(index=0, devices=(Device(kind=kind, index=0, id=device, visible=device),))


def name_of(process: subprocess.Popen[str]) -> str:
    return read_words(process)[0]


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def end(process: subprocess.Popen[str]) -> str:
    """Let an agent end by itself; what it has said."""
    return process.communicate("\n", timeout=60)[1]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "places")
    yield host
    host.close()


def test_agents_that_begin_at_once_get_different_names_and_no_gap_is_left(host: Host) -> None:
    agents = [host.start() for _ in range(8)]
    names = [name_of(agent) for agent in agents]
    assert sorted(names) == sorted(["host", *(f"host-{number}" for number in range(2, 9))])
    for agent in agents:
        end(agent)
    assert list(host.folder.iterdir()) == []


def test_an_agent_that_is_not_the_first_says_which_are_there(host: Host) -> None:
    _, first = host.begin()
    name, second = host.begin()
    assert name == "host-2"
    sentence = f"agent {first.pid} (host) of run {host.run_id} is here, too: this node is called host-2"
    assert sentence in end(second)
    assert "is here" not in end(first)


DEVICES = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("variable", "story"),
    [
        ("", "+a host, +b host-2, +c host-3, kill b, +b host-2, kill a, +a host, kill c, +c host-3"),
        # The name of a killed agent is kept for one with its devices.
        (DEVICES, "+0 host, +1 host-2, +2 host-3, kill 1, kill 2, +3 host-4, +2 host-3, +1 host-2"),
        # One that has ended is remembered while others are there.
        (DEVICES, "+0 host, +1 host-2, +2 host-3, end 1, end 2, +2 host-3, end 0, end 2, +2 host"),
        # Something may be left of a killed one, so its name comes before that of one that has ended.
        ("", "+a host, +b host-2, +c host-3, end a, kill b, +d host-2, +e host"),
        # What is left of another must be ended, so the name of any killed one is taken.
        ("NUMBER", "+0 host, +1 host-2, +2 host-3, kill 1, kill 2, +2 host-3, +1 host-2, kill 0, +9 host"),
    ],
    ids=["killed", "by devices", "ended", "killed before ended", "by numbers"],
)
def test_an_agent_that_comes_back_has_its_name_again(host: Host, variable: str, story: str) -> None:
    """`+0 host`: an agent whose variable is 0 begins, and is called host."""
    agents: dict[str, subprocess.Popen[str]] = {}
    for step in story.split(", "):
        verb, who = step.split()
        if verb == "kill":
            kill(agents[who])
        elif verb == "end":
            end(agents[who])
        else:
            number = verb[1:]
            uses = f"GPU-{number}" if variable == DEVICES else "cpu"
            name, agents[number] = host.begin(uses, **({variable: number} if variable else {}))
            assert name == who, step


def test_an_agent_with_the_number_of_one_that_runs_waits_for_its_end(host: Host) -> None:
    """Though the name of another that has ended could be had."""
    agents = [host.begin(NUMBER=str(number))[1] for number in range(3)]
    end(agents[0])
    again = host.start(NUMBER="1")
    assert again.stderr is not None
    assert select.select([again.stdout, again.stderr], [], [], 60)[0] == [again.stderr], "it has taken another name"
    said = again.stderr.readline()
    assert f"agent {agents[1].pid} (host-2) of run {host.run_id} is here: waiting up to 10 s for it to exit" in said
    end(agents[1])
    assert name_of(again) == "host-2"


def test_after_a_boot_nothing_is_left_and_names_begin_anew(host: Host) -> None:
    kill(host.begin("GPU-a", CUDA_VISIBLE_DEVICES="0")[1])
    with locks_in(host.folder):
        agents, place = take_host_place(host.run_id, "host", "next boot", {})
    assert agents.name == "host"
    agents.leave(is_clean=place.release())


def test_what_an_agent_has_left_is_ended_by_the_next_of_its_name_alone(host: Host) -> None:
    orphan_file = host.folder.parent / "orphan"
    _, sibling = host.begin(CUDA_VISIBLE_DEVICES="0")
    worker = f"(setsid sleep 1000 >/dev/null 2>&1 & echo $! > {orphan_file}); exec sleep 1000"
    process = host.start(worker=worker, CUDA_VISIBLE_DEVICES="1")
    assert name_of(process) == "host-2"
    orphan = int(wait_until(lambda: orphan_file.exists() and orphan_file.read_text()))
    kill_all_three(process)
    assert is_alive(orphan)
    host.begin(CUDA_VISIBLE_DEVICES="2")
    assert is_alive(orphan), "another's leftovers"
    assert host.begin(CUDA_VISIBLE_DEVICES="1")[0] == "host-2"
    assert not is_alive(orphan)
    assert sibling.poll() is None


def take_place(folder: Path, device: str = "") -> tuple[HostAgents, NodeLock]:
    """A place in this process. Two of them are agents of one pid, which differ by their names alone."""
    environ = {"CUDA_VISIBLE_DEVICES": device}
    with locks_in(folder):
        return take_host_place("run", "host", "boot", environ, uses_accelerators=False)


def test_an_agent_that_leaves_something_is_remembered_like_a_killed_one(tmp_path: Path) -> None:
    (first, first_place), (second, second_place) = (take_place(tmp_path / "places") for _ in range(2))
    hangs = subprocess.Popen(["sleep", "1000"], pass_fds=(second_place.descriptor,))
    os.pwrite(second_place.descriptor, b"0 0".ljust(64), 0)  # as if its agent were no longer this process
    for agents, place in ((first, first_place), (second, second_place)):
        agents.leave(is_clean=place.release())
    third, third_place = take_place(tmp_path / "places")
    assert third.name == "host-2"
    assert hangs.wait(10.0) == -signal.SIGKILL
    third.leave(is_clean=third_place.release())
    assert list((tmp_path / "places").iterdir()) == []


def test_an_agent_that_could_not_end_what_is_left_leaves_that_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, first_place), (second, second_place) = (take_place(tmp_path / "places") for _ in range(2))
    second.leave(is_clean=second_place.release())

    def refuse(*_: object, **__: object) -> None:
        raise TemporaryError("what an earlier agent has left hangs in a driver")

    with monkeypatch.context() as patch:
        patch.setattr("launcher.agent.startup.stale_agents.take_node_lock", refuse)
        with pytest.raises(TemporaryError, match="hangs"):
            take_place(tmp_path / "places")
    first.leave(is_clean=first_place.release())
    third, third_place = take_place(tmp_path / "places")
    assert third.name == "host-2"
    third_place.release()


def test_a_full_disk_leaves_the_list_as_it_was(tmp_path: Path) -> None:
    first, second, third = (HostAgents("run", "host", str(tmp_path / "x.agents")) for _ in range(3))
    for agents in (first, second):
        agents.join({}, uses_accelerators=False)
    first.take_devices([slot(f"GPU-{number:0200}") for number in range(40)])
    before = (tmp_path / "x.agents").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 1, limits[1]))  # a write beyond it is cut short, too
    try:
        with pytest.raises(TemporaryError, match=r"cannot change .*x\.agents, the list of this run's agents"):
            second.take_devices([slot(f"GPU-b{number:0200}") for number in range(40)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]
    third.join({}, uses_accelerators=False)
    assert third.name == "host-3"


def test_what_a_killed_agent_was_writing_goes_before_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the list has gone, the next agent may be writing its own."""
    first, second = (HostAgents("run", "host", str(tmp_path / "x.agents")) for _ in range(2))
    for agents in (first, second):
        agents.join({}, uses_accelerators=False)
    assert (tmp_path / "x.agents").stat().st_mode & stat.S_ISVTX, "systemd-tmpfiles would remove it after 10 days"
    first.leave(is_clean=True)
    (tmp_path / "x.agents.part").write_bytes(b"[")
    unlink = os.unlink
    removed: list[str] = []
    monkeypatch.setattr(os, "unlink", lambda path: (unlink(path), removed.append(os.path.basename(path))))
    second.leave(is_clean=True)
    assert removed == ["x.agents.part", "x.agents"]


def test_two_agents_with_one_device_are_refused_with_pid_and_device(host: Host) -> None:
    _, first = host.begin("GPU-a GPU-b", CUDA_VISIBLE_DEVICES="0,1")
    second = host.start("GPU-b GPU-c", CUDA_VISIBLE_DEVICES="1,2")
    said, _ = second.communicate("\n", timeout=60)
    assert said == (
        f"refused agent {first.pid} (host) of run {host.run_id} is here with GPU-b, which this agent would also use\n"
    )
    assert host.begin("GPU-c", CUDA_VISIBLE_DEVICES="2")[0] == "host-2", "the name of a refused agent is free"


def test_of_agents_that_claim_a_device_at_once_one_gets_it(host: Host) -> None:
    agents = [host.start("GPU-a", CUDA_VISIBLE_DEVICES=f"0,{number}") for number in range(4)]
    names = [name_of(agent) for agent in agents]
    assert names.count("refused") == 3


def test_a_device_is_free_once_its_agent_was_killed(host: Host) -> None:
    _, first = host.begin("GPU-a", CUDA_VISIBLE_DEVICES="0")
    kill(first)
    assert host.begin("GPU-a", CUDA_VISIBLE_DEVICES="0,1")[0] == "host-2"


def test_an_agent_that_still_has_the_devices_is_waited_for(host: Host) -> None:
    _, first = host.begin("GPU-a")
    second = host.start("GPU-a")
    assert second.stderr is not None
    said = second.stderr.readline()
    assert f"agent {first.pid} (host) of run {host.run_id} is here: waiting up to 10 s for it to exit" in said
    end(first)
    assert name_of(second) == "host"


def test_an_agent_on_the_cpu_waits_for_no_other(host: Host) -> None:
    host.begin("GPU-a")
    assert host.begin("cpu")[0] == "host-2"


def test_a_stopped_agent_keeps_its_name(host: Host) -> None:
    _, first = host.begin()
    freeze(first.pid)
    assert host.begin()[0] == "host-2"
    os.kill(first.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "text", ["", "\n", "[", '[{"name": 1}]\n', '{"a": 1}\n', "\xff\n", '[{"name":"host"}]\n', "[" * 100_000]
)
def test_a_list_that_cannot_be_read_counts_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.agents").write_bytes(text.encode("latin-1"))
    agents = HostAgents("run", "host", str(tmp_path / "x.agents"))
    agents.join({}, uses_accelerators=False)
    assert agents.name == "host"
    (tmp_path / "x.agents").write_bytes(text.encode("latin-1"))
    agents.take_devices([slot("GPU-a")])
    with pytest.raises(TemporaryError):
        HostAgents("run", "host", str(tmp_path / "x.agents")).take_devices([slot("GPU-a")])


def test_hosts_that_share_the_directory_do_not_meet(host: Host) -> None:
    """As containers may, which have host names of their own and count their devices from 0."""
    with locks_in(host.folder):
        own, place = take_host_place(host.run_id, "other", "boot", {})
    own.take_devices([slot("foo0")])
    assert host.begin("foo0")[0] == "host"
    assert own.name == "other"
    own.leave(is_clean=place.release())


def test_a_list_that_stays_locked_is_named_after_the_limit(tmp_path: Path) -> None:
    agents, other = (HostAgents("run", "host", str(tmp_path / "x.agents")) for _ in range(2))
    file = other._open()
    with locks_in(limit_s=0.2), pytest.raises(TemporaryError, match=r"was locked for 0\.2 s"):
        agents.join({}, uses_accelerators=False)
    os.close(file)
    agents.join({}, uses_accelerators=False)
    assert agents.name == "host"


def test_a_list_that_its_last_agent_has_removed_meanwhile_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = HostAgents("run", "host", str(tmp_path / "x.agents"))
    first.join({}, uses_accelerators=False)
    act_after_open(monkeypatch, lambda: first.leave(is_clean=True))
    second = HostAgents("run", "host", str(tmp_path / "x.agents"))
    second.join({}, uses_accelerators=False)
    assert second.name == "host"
    assert (tmp_path / "x.agents").exists()


def test_cpus_are_no_devices_that_an_agent_takes(tmp_path: Path) -> None:
    for _ in range(2):
        agents = HostAgents("run", "host", str(tmp_path / "x.agents"))
        agents.join({}, uses_accelerators=True)
        agents.take_devices([slot("cpu0", kind="cpu")])
    assert agents.name == "host-2"
