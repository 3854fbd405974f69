"""What meshctl shows of jobs that run: logs of all nodes against the files, ranks, events, runs; by real agents.

LOG_LINES says how many lines the flood has, 48,000 by default; `make slow WHAT=logs` takes a million.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.jobs.meshctl import ask, start
from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

N1, N2, N3 = loopback_hosts(3)
LINES = int(os.environ.get("LOG_LINES", "48000"))
RANKS = 6
# Most lines are the same on all ranks, some are not, and the last has no end. Each waits for readers to be there.
FLOOD = f"""
print("ready", flush=True)
mark("up")
wait_for("../go")
own = lambda i: f"rank {{RANK}} at {{i}}\\n" if i % 5 == 0 else ""
text = "".join(f"step {{i}}\\n" + own(i) for i in range({LINES // RANKS * 5 // 6}))
for at in range(0, len(text), 4096):
    sys.stdout.write(text[at : at + 4096])
    sys.stdout.flush()
sys.stderr.write(f"last words of {{RANK}}")
"""
STAY = """
print("hello", flush=True)
print(f"I am {RANK}", flush=True)
mark("up")
wait_for("../finish")
"""


def start_reader(path: Path, run_id: str) -> subprocess.Popen[str]:
    """Follow all lines of a run, into a file."""
    with path.open("w") as file:
        return start("logs", "-f", "--tail", "all", run_id, stdout=file)


def split_by_rank(lines: Iterator[str]) -> dict[int, list[str]]:
    """What is shown of each rank: "[0-2,5] text" is a line of four of them."""
    found = defaultdict(list)
    for line in lines:
        match = re.match(r"\[([\d,-]+)\] (.*)", line)
        assert match is not None, line
        for part in match[1].split(","):
            first, _, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                found[rank].append(match[2])
    return found


def read_files(cluster: Cluster, stream: str = "stdout") -> dict[int, list[str]]:
    """The lines in the log files, by rank."""
    found = {}
    for job in cluster.jobs.values():
        marks = sorted(int(path.name.split("-")[1]) for path in job.directory.glob("up-*-1"))
        for local_rank, rank in enumerate(marks):
            (path,) = job.directory.glob(f"logs/*_*/*/attempt_0/{local_rank}/{stream}.log")
            found[rank] = path.read_text().splitlines()
    return found


def test_every_line_of_three_nodes_is_shown_once_to_each_reader(tmp_path: Path, etcd: EtcdServer) -> None:
    options = ("--nnodes=3", "--nproc-per-node=2", "--log-dir=logs", "--redirects=3")
    with Cluster(tmp_path, *options, etcd=etcd, script=FLOOD) as cluster:
        cluster.start(N1, N2, N3)
        for job in cluster.jobs.values():
            wait_until(lambda job=job: len(list(job.directory.glob("up-*-1"))) == 2, 60, "the workers")  # type: ignore[misc]
        paths = [tmp_path / f"reader-{index}" for index in range(3)]
        readers = [start_reader(path, cluster.run_id) for path in paths]

        def all_read() -> bool:
            for index, reader in enumerate(readers):
                if reader.poll() is not None:
                    sentence = reader.communicate()[1]
                    assert re.search("not respond|answered", sentence), sentence  # no agent had time for its question
                    readers[index] = start_reader(paths[index], cluster.run_id)
            return all(path.stat().st_size for path in paths)

        try:
            wait_until(all_read, 60, "readers that read")
            (tmp_path / "go").touch()
            wait_until(lambda: paths[2].stat().st_size > 100, 60, "the first lines")
            readers[2].send_signal(signal.SIGKILL)  # the others notice nothing of it
            for node in ("n1", "n2", "n3"):
                cluster.jobs[node].wait(600)
            for reader, path in zip(readers[:2], paths, strict=False):
                assert "no longer has an agent on this machine" in reader.communicate(timeout=600)[1]
                expected = read_files(cluster)
                with path.open() as file:
                    shown = split_by_rank(line.removesuffix("\n") for line in file)
                assert sorted(expected) == list(range(RANKS))
                for rank, lines in expected.items():
                    own = [line for line in shown[rank] if not line.startswith("last words")]
                    assert len(own) == len(lines)
                    assert own == lines
                    assert shown[rank].count(f"last words of {rank}") == 1
                # Equal lines of several ranks are one, as far as they come together: how many depends on the load.
                assert path.stat().st_size < sum(map(len, map(str, expected.values()))) * 3 / 4
        finally:
            for reader in readers:
                reader.kill()
                reader.communicate()


def test_a_job_of_one_machine_is_listed_and_shown(tmp_path: Path, etcd: EtcdServer) -> None:
    (tmp_path / "job").mkdir()
    options = ("--nproc-per-node=2", "--rdzv-id=one-machine", f"--log-dir={tmp_path}/logs", "--redirects=3")
    with Job(tmp_path / "job", *options, "--node-name=..odd", script=STAY) as job:
        job.marks("up", range(2))
        runs = json.loads(ask("status", "--json", "--rdzv-endpoint", etcd.endpoint))["runs"]
        (listed,) = [one for one in runs if job.pid in one["pids"]]
        assert (listed["phase"], listed["now"]) == ("running", "round 1 runs 2 ranks on 1 node")
        report = json.loads(ask("ps", job.pid, "--json"))
        assert [rank["rank"] for rank in report["nodes"][0]["ranks"]] == [0, 1]
        assert report["at"].endswith("Z")
        assert ask("logs", job.pid).splitlines() == ["[0-1] hello", "[0] I am 0", "[1] I am 1"]
        assert ask("logs", job.pid, "--rank", 1, "--tail", 1).splitlines() == ["[1] I am 1"]
        assert "use a rank from 0 to 1" in ask("logs", job.pid, "--rank", 7, exit_code=2)
        status = json.loads(ask("status", job.pid, "--json"))
        assert (status["schema"], status["round"], status["world_size"]) == (1, 1, 2)
        assert all("..odd" in ask(command, job.pid) for command in ("ps", "status"))
        with start("events", "-f", job.pid) as events:
            assert "the agent started" in events.stdout.readline()  # type: ignore[union-attr]
            events.stdout.close()  # type: ignore[union-attr]  # as head -1 does, and nothing happens any more
            assert events.wait(60) == 0
        assert "..odd  round 1 starts: 2 ranks on 1 node" in ask("events", job.pid)
        kinds = [json.loads(line)["event"] for line in ask("events", job.pid, "--json").splitlines()]
        assert {"agent_started", "round_started", "worker_started"} <= set(kinds)
        (tmp_path / "finish").touch()
        assert job.wait().exit_code == 0


def test_a_job_of_one_machine_is_stopped_by_its_pid_and_read_after_its_end(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    options = ("--nproc-per-node=1", "--rdzv-id=halt", f"--log-dir={tmp_path}/logs", "--redirects=3")
    with Job(tmp_path / "job", *options, script=STAY) as job:
        job.marks("up", range(1))
        assert "cannot" not in ask("stop", job.pid)
        assert job.wait().exit_code == 143
    shown = json.loads(ask("status", "halt", "--log-dir", f"{tmp_path}/logs", "--json"))
    assert (shown["verdict"]["kind"], shown["verdict"]["exit_code"]) == ("stopped", 143)
    assert "stopped at the request of" in shown["now"]
