"""The agent raises its limit of open files for itself; the supervisor and the workers keep the user's."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes.tree import Agent

RAISE = "__import__('launcher.agent.startup.startup', fromlist=['x']).raise_descriptor_limit({})"
LOW = "import resource; h = resource.getrlimit(7)[1]; resource.setrlimit(7, (256, h))"


def test_workers_have_the_limit_that_the_user_had_set() -> None:
    with Agent(setup=LOW) as agent:
        raised = agent.ask("evaluate", RAISE.format(512))
        (worker,) = agent.start(1, ["sleep", "1000"])
        assert raised == 512
        assert [soft_limit(pid) for pid in (agent.pid, agent.supervisor_pid, worker)] == [512, 256, 256]


def test_a_hard_limit_is_as_far_as_it_goes() -> None:
    with Agent(setup="import resource; resource.setrlimit(7, (200, 300))") as agent:
        assert agent.ask("evaluate", RAISE.format("")) == 300


def soft_limit(pid: int) -> int:
    """Of open files (proc(5), /proc/<pid>/limits)."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(int(line.split()[3]) for line in lines if line.startswith("Max open files"))
