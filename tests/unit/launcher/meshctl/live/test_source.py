"""Which agent of this machine a view asks: another of the same job where one has ended or is frozen."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.meshctl.live import source as sources
from launcher.meshctl.live.source import LocalSource, RunGoneError, find_source
from launcher.model.errors import TemporaryError, UsageError
from launcher.views.questions.local_socket import LocalAgent
from launcher.views.requests import EventPage, NodeReply, NodeRequest, ReadEvents
from launcher.views.run_view import RunView
from rendezvous import __version__
from tests.support.run_reports import REPORT

A, B, OTHER = (
    LocalAgent(name=f"meshrun.0.{pid}", run_id="exp", node=f"h{pid}", version=__version__, job=f"/meshrun/exp/{job}")
    for pid, job in ((1, "x"), (2, "x"), (3, "y"))
)


class Machine:
    """The agents of a machine. `named`: those whose sockets are there; `silent`: that do not answer; `asked`: which."""

    def __init__(self, *agents: LocalAgent) -> None:
        self.named = list(agents)
        self.silent: set[LocalAgent] = set()
        self.asked: list[str] = []
        self.refusals = 0

    def list_agents(self) -> list[LocalAgent]:
        return [agent for agent in self.named if agent not in self.silent]

    def require(self, agent: LocalAgent) -> None:
        self.asked.append(agent.node)
        self.refusals -= 1
        if self.refusals >= 0 or agent not in self.list_agents():
            raise TemporaryError(f"the agent {agent.node} has not answered in time")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(A, OTHER, B)

    class FakeSocketSource:
        def __init__(self, agent: LocalAgent) -> None:
            self._agent = agent

        def read_run(self) -> RunView:
            found.require(self._agent)
            return REPORT

        def read_node(self, node: str, request: NodeRequest) -> NodeReply:
            found.require(self._agent)
            return EventPage(lines=(), first=0, next_after=-1)

    monkeypatch.setattr(sources, "SocketSource", FakeSocketSource)
    monkeypatch.setattr(sources, "list_local_agents", found.list_agents)
    monkeypatch.setattr(
        sources,
        "find_local_agents",
        lambda: (found.list_agents(), [agent.pid for agent in found.silent & {*found.named}]),
    )
    monkeypatch.setattr(sources, "list_socket_names", lambda: [agent.name for agent in found.named])
    return found


def test_a_frozen_agent_has_not_ended(machine: Machine) -> None:
    machine.named, machine.silent = [A], {A}
    source = LocalSource(A)
    for ask in (source.read_run, lambda: source.read_node("h1", ReadEvents())):
        with pytest.raises(TemporaryError, match="has not answered in time") as problem:
            ask()
        assert not isinstance(problem.value, RunGoneError)
    machine.silent = set()
    assert source.read_run() is REPORT


@pytest.mark.parametrize("is_frozen", [True, False])
def test_another_agent_of_the_same_job_is_asked_and_none_of_another_job(machine: Machine, is_frozen: bool) -> None:
    if is_frozen:
        machine.silent = {A}
    else:
        machine.named.remove(A)
    source = LocalSource(A)
    assert source.read_run() is REPORT
    assert (machine.asked, source.switch_count) == (["h1", "h2"], 1)
    machine.named = [OTHER]
    with pytest.raises(RunGoneError):
        source.read_node("h1", ReadEvents())
    assert "h3" not in machine.asked


def test_an_agent_that_had_not_joined_its_job_is_known_by_its_socket(machine: Machine) -> None:
    source = LocalSource(replace(A, job=""))
    machine.refusals = 1
    assert source.read_run() is REPORT
    assert (machine.asked, source.switch_count) == (["h1", "h1"], 0)
    machine.named.remove(A)
    assert source.read_run() is REPORT
    assert machine.asked[-1] == "h2"


@pytest.mark.parametrize("run_id", ["exp", None])
def test_a_frozen_agent_is_not_taken_for_none(machine: Machine, run_id: str | None) -> None:
    machine.named, machine.silent = [A], {A}
    with pytest.raises(UsageError, match=r"on this machine \(agents that do not respond: pid 1\)"):
        find_source(run_id)
    with pytest.raises(UsageError, match=r"^the agent with pid 1 does not respond$"):
        find_source("1")
    machine.named = []
    with pytest.raises(UsageError, match=r"on this machine$"):
        find_source(run_id)
