"""Who looks at a job from one of its machines sees all of them, their output and their events."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.model.errors import TemporaryError
from launcher.observe.local_socket import LocalAgent, SocketSource, list_local_agents
from launcher.observe.node_report import EventPage, LogPage, ReadEvents, ReadLogs
from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

N1, N2, N3 = loopback_hosts(3)
WORK = """
from launcher.worker import progress
print("hello from", RANK, flush=True)
progress(7)
mark("up")
wait_for("go")
if RANK == 1 and ROUND == 1:
    raise KeyError("lost")
"""


def find_agent(job: Job) -> LocalAgent:
    found: list[LocalAgent] = []

    def is_there() -> bool:
        found.extend(agent for agent in list_local_agents() if agent.pid == str(job.pid))
        return bool(found)

    wait_until(is_there, 60, "the agent's socket")
    return found[0]


def test_every_node_is_seen_from_the_one_that_does_not_lead(tmp_path: Path, etcd: EtcdServer) -> None:
    options = ("--nnodes=1:2", "--nproc-per-node=2", "--redirects=3", f"--log-dir={tmp_path}/logs", "--join-grace=600")
    with Cluster(tmp_path, *options, etcd=etcd, script=WORK) as cluster:
        cluster.begin(N1, N2, workers=4)
        agents = {host: find_agent(cluster[host]) for host in (N1, N2)}
        assert {agent.job.rpartition("/")[0] for agent in agents.values()} == {f"/meshrun/{cluster.run_id}"}
        assert agents[N1].job == agents[N2].job
        sources = {host: SocketSource(agent) for host, agent in agents.items()}
        reports = {host: source.read_run() for host, source in sources.items()}
        for report in reports.values():
            assert [node.state for node in report.nodes] == ["running", "running"]
            assert sorted(rank.rank for node in report.nodes for rank in node.ranks) == [0, 1, 2, 3]
            assert {rank.step for node in report.nodes for rank in node.ranks} == {7}
            assert all(rank.rss_bytes > 1 << 20 for node in report.nodes for rank in node.ranks)
            assert (report.missing, report.lost) == ((), ())
            assert report.rounds[0].world_size == 4
        report = reports[N1]
        (past,) = (value for key, value in cluster.stored().items() if key.startswith("history/"))
        assert abs(past["began_at"] - report.rounds[0].began_at) < 60, "seconds since 1970"
        follower = next(node.node for node in report.nodes if node.node != report.leader)
        source = sources[N1]
        page = source.read_node(follower, ReadLogs(stream="stdout"))
        assert isinstance(page, LogPage)
        ranks = {rank.rank for node in report.nodes if node.node == follower for rank in node.ranks}
        assert sorted(chunk.data for chunk in page.chunks) == [f"hello from {rank}\n" for rank in sorted(ranks)]
        events = source.read_node(follower, ReadEvents())
        assert isinstance(events, EventPage)
        assert [json.loads(line)["event"] for line in events.lines].count("worker_started") == 2
        assert {json.loads(line)["node"] for line in events.lines} == {follower}
        cluster.start(N3)  # all places are taken
        spare = SocketSource(find_agent(cluster[N3]))
        wait_until(lambda: "spare" in read_states(spare), 60, "the spare's report")


def read_states(source: SocketSource) -> set[str]:
    try:
        return {node.state for node in source.read_run().nodes}
    except TemporaryError:  # an agent can be asked before it knows who leads
        return set()


def test_a_job_of_one_machine_leaves_its_events_and_rounds(tmp_path: Path) -> None:
    events, logs = tmp_path / "events", tmp_path / "logs"
    options = ("--nproc-per-node=2", "--max-restarts=1", f"--events={events}", f"--log-dir={logs}", "--redirects=3")
    with Job(tmp_path, *options, f"--notify=cat >> {tmp_path}/told", script=WORK) as job:
        job.marks("up", range(2))
        report = SocketSource(find_agent(job)).read_run()
        assert [rank.rank for rank in report.nodes[0].ranks] == [0, 1]
        (tmp_path / "go").touch()
        assert job.wait().exit_code == 0
        job.wait_until_nobody_is_left()
    found = [json.loads(line) for line in events.read_text().splitlines()]
    assert [one["event"] for one in found if one["event"].startswith("round")] == [
        *("round_started", "round_stopping", "round_ended") * 2
    ]
    failure = next(one for one in found if one["event"] == "failure_found")
    assert (failure["rank"], failure["error"], failure["failure_class"]) == (
        1,
        "KeyError: 'lost'",
        "user code: KeyError",
    )
    (first,) = logs.glob("*/round_1.json")
    assert json.loads(first.read_text())["failed_rank"] == 1
    told = [json.loads(line)["event"] for line in (tmp_path / "told").read_text().splitlines()]
    assert told == ["round_started", "round_stopping", "round_started", "round_stopping", "agent_ended"]
