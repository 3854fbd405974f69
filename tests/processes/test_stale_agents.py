"""Taking the place of an earlier agent: what it left is killed, what lives is respected, strangers are not touched."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.startup.stale_agents import (
    LOCK_VARIABLE,
    UNCOUNTED,
    Attempt,
    NodeLock,
    list_running_agents,
    take_node_lock,
)
from launcher.extensions.measure import measurement
from launcher.hardware.linux import control_group, kernel
from launcher.model.errors import TemporaryError, UsageError
from tests.support.jobs.attacks import NOBODY, Stranger
from tests.support.network.namespaces import Network, why_no_namespaces
from tests.support.processes.lock_agents import (
    BEGIN_WORKER,
    LIMIT_S,
    SLEEP,
    USE_FOLDER,
    LockAgents,
    act_after_open,
    kill_all_three,
    locks_in,
    read_words,
)
from tests.support.processes.syscalls import KILL, PIDFD_OPEN, WITHOUT_PIDFDS, refusing
from tests.support.processes.tree import REPOSITORY, TOKEN_VARIABLE, is_alive, state
from tests.support.waiting import wait_until

# An agent that takes its place and forks a supervisor with a worker; then it waits.
AGENT = f"""
import os, sys
from launcher.agent.startup import stale_agents
exec(os.environ.get("BEFORE", ""))
_, folder, run, name, limit_s, worker = sys.argv
{USE_FOLDER}
stale_agents.LIMIT_S = float(limit_s)
attempt = stale_agents.Attempt(int(os.environ.get("ATTEMPT", 0)))
place = stale_agents.take_node_lock(run, name, os.environ, attempt=attempt)
{BEGIN_WORKER}
print(os.getpid(), reports[0].pid, flush=True)
sys.stdin.readline()
"""
RUN = f"run-{os.getpid()}"  # the same tests may run beside these: agents of one run and name kill what the others left


class Lives(LockAgents):
    """Agents of one run on this node, one after another or side by side."""

    def start(
        self, run_id: str = RUN, name: str = "node", limit_s: float = LIMIT_S, worker: str = SLEEP, **environment: str
    ) -> subprocess.Popen[str]:
        return self.run(run_id, name, str(limit_s), worker, **environment)

    def take(self, limit_s: float = LIMIT_S, attempt: Attempt = UNCOUNTED) -> NodeLock:
        """Take the place in this process."""
        with locks_in(self.folder, limit_s=limit_s):
            return take_node_lock(RUN, "node", {}, attempt=attempt)

    def list_running(self) -> list[int]:
        with locks_in(self.folder):
            return list_running_agents()

    def leave_a_sleeper(self) -> subprocess.Popen[bytes]:
        """A process that carries the mark of an agent that has gone."""
        place = self.take()
        environment = {**os.environ, **place.environment, TOKEN_VARIABLE: self.token}
        sleeper = subprocess.Popen(["sleep", "1000"], env=environment)
        os.close(place.descriptor)
        wait_until(lambda: marked(sleeper.pid))
        return sleeper

    def worker_of(self, process: subprocess.Popen[str]) -> int:
        """Once the agent has its place and its worker runs."""
        return int(read_words(process)[1])


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(AGENT, tmp_path / "places")
    yield lives
    lives.close()
    for group in groups(lives):
        control_group.remove(group)


def orphan_of(lives: Lives, worker: str) -> tuple[int, subprocess.Popen[str]]:
    """What a worker leaves that writes its pid to the file ORPHAN, and its agent."""
    file = lives.folder.parent / "orphan"
    first = lives.start(worker=worker.replace("ORPHAN", str(file)))
    lives.worker_of(first)
    return int(wait_until(lambda: file.exists() and file.read_text())), first


def marked(pid: int) -> bool:
    return f"{LOCK_VARIABLE}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize("lacking", [None, "filter"])
def test_a_process_that_outlived_its_agent_is_killed_by_the_next_one(lives: Lives, lacking: str | None) -> None:
    orphan, first = orphan_of(lives, "(setsid sleep 1000 >/dev/null 2>&1 & echo $! > ORPHAN); exec sleep 1000")
    kill_all_three(first)
    assert is_alive(orphan)
    assert marked(orphan)
    worker = lives.worker_of(lives.start(BEFORE=WITHOUT_PIDFDS[lacking] if lacking else ""))
    assert not is_alive(orphan)
    assert is_alive(worker)


def test_only_agents_that_live_are_listed(lives: Lives) -> None:
    agents = [lives.start(name=name) for name in ("one", "two")]
    for agent in agents:
        lives.worker_of(agent)
    assert sorted(lives.list_running()) == sorted(agent.pid for agent in agents)
    kill_all_three(agents[0])
    assert lives.list_running() == [agents[1].pid]


def test_an_agent_in_another_network_namespace_is_disturbed_by_no_measurement(lives: Lives) -> None:
    if why_no_namespaces():
        pytest.skip(why_no_namespaces())
    usual = {"run_id": "net", "node_count": 4, "levels": "leaf", "output": None, "as_json": False, "wait_s": 1.0}
    request = measurement.MeasureRequest(insist=False, options={}, **usual)  # type: ignore[arg-type]
    with Network() as network, locks_in(lives.folder):
        network.host("n1")
        with network.inside("n1"):
            agent = lives.start()
            lives.worker_of(agent)
            with pytest.raises(UsageError, match=f"an agent runs on this node.*: pid {agent.pid}"):
                measurement.run(request)
        with pytest.raises(UsageError, match="needs --rdzv-endpoint"):  # the next thing that is missing
            measurement.run(request)


def test_a_holder_of_the_lock_that_carries_no_mark_is_found_too(lives: Lives) -> None:
    orphan, first = orphan_of(lives, "(env -i /usr/bin/setsid sleep 1000 & echo $! > ORPHAN); exec sleep 1000")
    wait_until(lambda: not marked(orphan))
    kill_all_three(first)
    lives.worker_of(lives.start())
    assert not is_alive(orphan)


def test_a_holder_of_the_lock_is_found_below_a_link(tmp_path: Path) -> None:
    """As where /tmp is a link: the kernel names an open file by its real path."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    lives = Lives(AGENT, tmp_path / "link" / "places")
    place = lives.take()
    with subprocess.Popen(["sleep", "1000"], pass_fds=(place.descriptor,)) as holder:
        os.pwrite(place.descriptor, b"0 0".ljust(64), 0)  # its agent has ended
        os.close(place.descriptor)
        try:
            lives.take().release()
            assert holder.wait(10.0) == -signal.SIGKILL
        finally:
            holder.kill()


def test_a_lock_is_not_cleaned_away_while_its_agent_runs(lives: Lives) -> None:
    """systemd-tmpfiles removes files of /tmp that are 10 days old, except those with the sticky bit."""
    place = lives.take()
    assert os.fstat(place.descriptor).st_mode & stat.S_ISVTX
    place.release()


KEEPER = """
import os, signal
with open("/proc/self/comm", "w") as file:
    file.write("mr-keeper")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_keeper_is_woken_and_may_end_its_work(lives: Lives) -> None:
    place = lives.take()
    keeper = subprocess.Popen([sys.executable, "-I", "-S", "-c", KEEPER], pass_fds=(place.descriptor,))
    wait_until(lambda: state(keeper.pid) == "T")
    os.pwrite(place.descriptor, b"0 0".ljust(64), 0)  # its agent has ended
    os.close(place.descriptor)
    lives.take().release()
    assert keeper.wait() == 0


def test_a_process_without_mark_or_lock_is_found_by_its_control_group(lives: Lives) -> None:
    if not control_group.make_path(""):
        pytest.skip("no control group can be made here: no cgroup of version 2 is this user's")
    close = "; ".join(f"exec {number}>&-" for number in range(3, 10))
    daemon = f"({close}; env -i /usr/bin/setsid sleep 1000 & echo $! > ORPHAN)"
    orphan, first = orphan_of(lives, f"{daemon}; exec sleep 1000")
    wait_until(lambda: not marked(orphan))
    kill_all_three(first)
    assert is_alive(orphan)
    (group,) = groups(lives)
    worker = lives.worker_of(lives.start())
    assert not is_alive(orphan)
    assert is_alive(worker)
    assert not os.path.exists(group)
    (own,) = groups(lives)
    lives.processes[-1].kill()
    wait_until(lambda: not os.path.exists(own), what="the keeper to take the group away")


@pytest.fixture
def inmate() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.fixture
def group() -> Iterator[str]:
    """A control group, empty."""
    path = control_group.make_path("test")
    if not path or not control_group.make(path):
        pytest.skip("no control group can be made here: no cgroup of version 2 is this user's")
    yield path
    wait_until(lambda: control_group.list_members(path) == [])
    control_group.remove(path)
    assert not os.path.exists(path)


def test_empty_control_groups_of_runs_that_never_came_back_are_taken_away(
    group: str, inmate: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = control_group.make_path("new")
    assert control_group.make(new)
    control_group.remove(new)
    assert os.path.exists(group)  # it is not old
    monkeypatch.setattr(control_group, "_OLD_S", -1.0)
    Path(f"{group}/cgroup.procs").write_text(str(inmate.pid))
    assert control_group.make(new)
    control_group.remove(new)
    assert os.path.exists(group)
    inmate.kill()
    inmate.wait()
    assert control_group.make(new)
    control_group.remove(new)
    assert not os.path.exists(group)


def test_a_group_that_another_agent_removes_does_not_stop_a_new_one(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = control_group.make_path("other")
    os.mkdir(other)
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (listed(path), control_group.remove(other))[0])
    new = control_group.make_path("new")
    assert control_group.make(new)
    control_group.remove(new)


def test_who_is_in_a_group_within_is_found_too(group: str, inmate: subprocess.Popen[bytes]) -> None:
    os.mkdir(f"{group}/inner")
    Path(f"{group}/inner/cgroup.procs").write_text(str(inmate.pid))
    control_group.remove(group)
    assert control_group.clear(group, set()) == [inmate.pid]
    assert inmate.wait(10.0) == -signal.SIGKILL


def test_a_group_with_controllers_for_its_children_is_not_delegated(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("\n")
    assert control_group._is_delegated(str(tmp_path))
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    assert not control_group._is_delegated(str(tmp_path))


def test_a_mount_may_have_a_name_in_no_encoding(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_bytes(b"22 1 0:20 / /media/M\xfcll rw - vfat none rw\n")
    assert "/media" in kernel.read_text(str(tmp_path / "mountinfo"))


def groups(lives: Lives) -> list[str]:
    """The control groups that the files name."""
    return [path.read_text()[64:] for path in lives.folder.glob("*.lock")]


def test_an_agent_that_lives_keeps_its_place_and_is_named(lives: Lives) -> None:
    first = lives.start()
    worker = lives.worker_of(first)
    second = lives.start(limit_s=0.3)
    _, said = second.communicate(timeout=60)
    assert f"an agent of run {RUN} is already on this node, as node: pid {first.pid}" in said
    assert is_alive(worker)


def test_a_stopped_agent_lives_and_keeps_its_place(lives: Lives) -> None:
    first = lives.start()
    worker = lives.worker_of(first)
    os.kill(first.pid, signal.SIGSTOP)
    assert f"pid {first.pid}" in lives.start(limit_s=0.3).communicate(timeout=60)[1]
    assert is_alive(worker)


def test_an_agent_of_an_earlier_attempt_is_asked_to_leave_and_no_other(
    lives: Lives, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first = lives.start(ATTEMPT="2")
    worker = lives.worker_of(first)
    asked = []

    def leave(pid: int, run_id: str, attempt: int) -> None:
        asked.append((pid, run_id, attempt))
        assert first.stdin is not None
        if len(asked) == 2:  # it may not hear the first
            first.stdin.write("\n")
            first.stdin.flush()

    monkeypatch.setattr("launcher.views.questions.local_socket.ask_to_leave", leave)
    monkeypatch.setattr("launcher.agent.startup.stale_agents.ASK_PAUSE_S", 0.05)
    with pytest.raises(TemporaryError, match=f"is already on this node, as node: pid {first.pid}"):
        lives.take(0.2, Attempt(2))
    with pytest.raises(UsageError, match=f"this is attempt 1, but run {RUN} is at attempt 2: its agent {first.pid} is"):
        lives.take(0.2, Attempt(1))
    assert asked == []
    os.close(lives.take(0.2, Attempt(3, LIMIT_S)).descriptor)
    assert len(asked) >= 2  # more, if it takes long to go
    assert set(asked) == {(first.pid, RUN, 3)}
    assert not is_alive(worker)
    assert f"agent {first.pid} of attempt 2 of run {RUN} is here as node: waiting up to {LIMIT_S:g} s" in (
        capfd.readouterr().err
    )


def test_an_agent_of_an_earlier_attempt_that_does_not_leave_is_named(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lives.start()
    lives.worker_of(first)
    monkeypatch.setattr("launcher.views.questions.local_socket.ask_to_leave", lambda *_: None)
    with pytest.raises(TemporaryError, match=f"^agent {first.pid} of attempt 0 of run {RUN} is still on this node"):
        lives.take(0.1, Attempt(3, 0.2))


@pytest.mark.parametrize(
    "other",
    [{"run_id": "other"}, {"name": "other"}, {"CUDA_VISIBLE_DEVICES": "1"}],
    ids=["another run", "another name", "other devices"],
)
def test_agents_with_places_of_their_own_do_not_meet(lives: Lives, other: dict[str, str]) -> None:
    worker = lives.worker_of(lives.start())
    assert is_alive(lives.worker_of(lives.start(limit_s=0.3, **other)))  # type: ignore[arg-type]
    assert is_alive(worker)


def test_an_agent_that_was_ended_leaves_its_place_at_once(lives: Lives) -> None:
    for _ in range(3):
        process = lives.start(limit_s=5.0)
        worker = lives.worker_of(process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    wait_until(lambda: not is_alive(worker))


def test_what_cannot_be_killed_is_named_after_the_limit(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = lives.leave_a_sleeper()
    with monkeypatch.context() as patch:
        patch.setattr("launcher.agent.startup.stale_agents._kill", lambda *_: None)
        with pytest.raises(TemporaryError, match=rf"still exist after 0.2 s: pid {sleeper.pid}$"):
            lives.take(limit_s=0.2)
    sleeper.kill()
    sleeper.wait()


def test_what_may_not_be_killed_is_named_with_the_reason(lives: Lives) -> None:
    sleeper = lives.leave_a_sleeper()
    next_one = lives.start(limit_s=0.3, BEFORE=refusing(PIDFD_OPEN, KILL))
    _, said = next_one.communicate(timeout=60)
    assert f"left processes that could not be killed: pid {sleeper.pid} (Operation not permitted)" in said
    sleeper.kill()
    sleeper.wait()


def test_whoever_started_the_agent_is_spared_though_it_carries_the_mark(lives: Lives) -> None:
    place = lives.take()
    os.close(place.descriptor)
    script = "import sys; from launcher.agent.startup.stale_agents import take_node_lock; "
    script += "from launcher.hardware.linux import locked_files; locked_files.list_lock_dirs = lambda: sys.argv[1:]; "
    script += f"take_node_lock('{RUN}', 'node', {{}}); print('taken')"
    nested = f'"{sys.executable}" -c "{script}" {lives.folder}; echo alive'
    environment = {**os.environ, **place.environment, TOKEN_VARIABLE: lives.token}
    done = subprocess.run(
        ["sh", "-c", nested], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["taken", "alive"]


@pytest.mark.parametrize("fault", ["mode", "link"])
def test_a_directory_that_others_could_have_prepared_is_refused(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "places"
    if fault == "mode":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="not a directory that only this user can access"):
        Lives(AGENT, folder).take()


def test_a_released_lock_leaves_no_file_and_a_dead_agents_is_taken_over(lives: Lives) -> None:
    lives.take().release()
    assert list(lives.folder.iterdir()) == []
    first = lives.start()
    lives.worker_of(first)
    first.kill()
    first.wait()
    lives.take().release()
    assert list(lives.folder.iterdir()) == []


def test_a_file_whose_lock_a_process_still_holds_is_not_taken_away(lives: Lives) -> None:
    place = lives.take()
    sleeper = subprocess.Popen(["sleep", "1000"], pass_fds=(place.descriptor,))
    place.release()
    assert [path.name for path in lives.folder.iterdir()] == [os.path.basename(place.path)]
    sleeper.kill()
    sleeper.wait()


def test_a_lock_on_a_file_that_was_taken_away_meanwhile_is_no_place(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lives.take()
    act_after_open(monkeypatch, first.release)
    second = lives.take()
    assert os.path.samestat(os.fstat(second.descriptor), os.stat(second.path))
    second.release()


def test_one_of_many_agents_that_begin_at_once_gets_the_lock_and_none_dies(lives: Lives) -> None:
    agents = [lives.start(limit_s=1.0) for _ in range(4)]
    wait_until(lambda: sum(agent.poll() is not None for agent in agents) == 3)
    (winner,) = [agent for agent in agents if agent.poll() is None]
    assert {agent.returncode for agent in agents if agent is not winner} == {1}  # an exception, here
    assert is_alive(lives.worker_of(winner))


def test_what_another_user_has_made_first_is_passed_over_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(mode=0o755)
    with locks_in(first, second):
        place = take_node_lock(RUN, "node", {})
    assert os.path.dirname(place.path) == str(second)
    assert capfd.readouterr().err == (
        f"meshrun: the lock of this node is in {second}: {first} is not a directory that only this user can access\n"
    )
    place.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_another_user_s_directory_keeps_no_agent_from_its_lock(lives: Lives) -> None:
    """The one that takes its place is the same for all agents, one after another."""
    lives.folder.mkdir()
    os.chown(lives.folder, NOBODY, NOBODY)
    lives.folder.with_name("places-0").mkdir(mode=0o700)
    os.chown(lives.folder.with_name("places-0"), NOBODY, NOBODY)
    winner = lives.start(limit_s=3.0)
    worker = lives.worker_of(winner)
    assert lives.start(limit_s=0.5).wait(60) == 1, "the first one has the lock"
    assert lives.list_running() == [winner.pid]
    winner.kill()
    assert is_alive(lives.worker_of(lives.start()))
    assert not is_alive(worker)
    assert len(list(lives.folder.parent.glob("places-*/*.lock"))) == 1
    assert list(lives.folder.iterdir()) == []


@pytest.mark.parametrize(
    "other", [("run", "other store", "node"), ("run", "store", "other"), ("other", "store", "node")]
)
def test_one_id_in_another_store_is_another_run(tmp_path: Path, other: tuple[str, str, str]) -> None:
    taken = []
    for run, scope, name in (("run", "store", "node"), other):
        with locks_in(tmp_path / "places", limit_s=0.0):
            taken.append(take_node_lock(run, name, {}, scope=scope))
    for one in taken:
        one.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_a_user_whose_directories_are_all_taken_has_its_locks_in_tmp(lives: Lives) -> None:
    uid = 1_000_000 + os.getpid()  # another for each process that runs this: the directories are the real ones
    folders = [f"{place}/meshrun-{uid}" for place in ("/tmp", "/dev/shm")]

    def take_two() -> int:
        first, second = (take_node_lock("taken", name, {}) for name in ("one", "other"))
        assert re.fullmatch(rf"{folders[0]}-[0-9a-f]{{16}}/\w+\.lock", first.path)
        assert os.path.dirname(second.path) == os.path.dirname(first.path)
        assert sorted(list_running_agents()) == [os.getpid()] * 2
        assert first.release()
        assert second.release()
        os.rmdir(os.path.dirname(first.path))
        return 2

    with Stranger(lambda: len([os.mkdir(folder) for folder in folders])) as stranger:
        assert stranger.wait() == 2
    try:
        with Stranger(take_two, uid) as user:
            assert user.wait() == 2
    finally:
        for folder in folders:
            os.rmdir(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("places", ["/tmp", "/tmp /dev/shm /run"])
def test_a_read_only_tmp_is_passed_over(places: str) -> None:
    script = "from launcher.agent.startup.stale_agents import take_node_lock; "
    script += "place = take_node_lock('read-only', 'node', {}); print(place.path); place.release()"
    binds = "".join(f"mount --bind {path} {path}; mount -o remount,ro,bind {path}; " for path in places.split())
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{binds} "{sys.executable}" -c "{script}"'],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if places == "/tmp":
        assert done.stdout.startswith("/dev/shm/meshrun-0/")
        assert "the lock of this node is in /dev/shm/meshrun-0: /tmp/meshrun-0 cannot be " in done.stderr
    else:
        assert "UsageError: cannot create this node's lock file: /tmp/meshrun-0 cannot be " in done.stderr
