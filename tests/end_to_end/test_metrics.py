"""Debian's Prometheus and promtool on what agents say, and on the files in examples/monitoring."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from launcher.extensions.metrics.exposition import encode_report
from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Command, Job
from tests.support.network.namespaces import free_port, loopback_hosts
from tests.support.page.serving import serve_metrics
from tests.support.prometheus import FOLDER, PrometheusServer, list_queries, run_promtool
from tests.support.reports import FixedSource, make_report
from tests.support.waiting import wait_until

VARIABLES = {"$run": "exp-41", "$node": ".*", "$__rate_interval": "5m"}


def test_promtool_has_no_remark_on_a_page() -> None:
    assert run_promtool("check", "metrics", input=encode_report(make_report(), "")[0]) == ""


def test_every_panel_has_something_to_show_and_every_alert_is_evaluated(tmp_path: Path) -> None:
    server = serve_metrics(FixedSource(make_report()))
    with PrometheusServer(tmp_path / "prometheus", [f"127.0.0.1:{server.port}"], [FOLDER / "alerts.yml"]) as prometheus:
        assert prometheus.wait_for('meshrun_round{run="exp-41", node="n0"}') == 2
        prometheus.wait_for("rate(meshrun_worker_cpu_seconds_total[1m])")
        for query in list_queries():
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            assert prometheus.query(query), query
        rules = wait_until(lambda: [one for one in prometheus.list_rules() if one[1] != "unknown"])
        assert {health for _, health in rules} == {"ok"}
    server.close()


FAILS_ONCE = """
from launcher import worker
if RANK == 1 and ROUND == 1:
    raise KeyError("bad")
step = 0
while not os.path.exists("finish"):
    time.sleep(0.02)
    step += 1
    worker.progress(step)
"""


def find_port(job: Command) -> int:
    """The port that an agent with --metrics-port 0 has got."""
    job.says("metrics at http://127.0.0.1:")
    return int(re.findall(r"metrics at http://127.0.0.1:(\d+)/metrics", job.stderr)[0])


def test_an_agent_whose_port_is_taken_ends_before_its_workers_start_and_may_be_started_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Job(tmp_path, f"--metrics-port={port}", script='mark("ran")') as job:
            assert job.wait().exit_code == 75
            job.says(f"--metrics-port cannot listen on 127.0.0.1:{port}: the port is taken")
            assert not job.has_mark("ran", 0, 1)


def get(port: int, path: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def read_samples(port: int) -> dict[str, float]:
    """The samples of a page without labels but run and node, and one with a cause or a state by that."""
    status, page = get(port, "/metrics")
    assert status == 200, page
    assert run_promtool("check", "metrics", input=page.encode()) == ""
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {
        " ".join([one.name, *(value for label, value in one.labels.items() if label not in ("run", "node"))]): one.value
        for one in samples
    }


def test_prometheus_reads_a_job_that_restarts(tmp_path: Path) -> None:
    options = ("--standalone", "--nproc-per-node=2", "--max-restarts=2", "--metrics-port=0", "--metrics-file=own.prom")
    with Job(tmp_path, *options, script=FAILS_ONCE) as job:
        port = find_port(job)
        with PrometheusServer(tmp_path / "prometheus", [f"127.0.0.1:{port}"]) as prometheus:
            wait_until(lambda: prometheus.query("meshrun_round == 2"))
            assert prometheus.wait_for('meshrun_rounds_ended_total{cause="failure"} == 1') == 1
            assert prometheus.wait_for('meshrun_failures_total{class="user code"} == 1') == 1
            assert prometheus.wait_for("meshrun_restarts_charged / meshrun_restarts_allowed") == 0.5
            prometheus.wait_for('meshrun_worker_step{rank="1"} > 10')
            prometheus.wait_for("deriv(meshrun_worker_step[10s]) > 1")
            prometheus.wait_for('rate(meshrun_worker_cpu_seconds_total{rank="0"}[10s])')
            assert prometheus.wait_for("max(meshrun_worker_progress_age_seconds)") < 5
            assert 0 < prometheus.wait_for("meshrun_goodput_ratio") <= 1
        samples = read_samples(port)
        assert samples["meshrun_ranks running"] == 2
        assert samples["meshrun_worker_resident_memory_bytes 0"] > 1e6
        assert samples["meshrun_agent_resident_memory_bytes"] > 1e6
        assert get(port, "/readyz") == (200, "round 2 runs here, with 2 of 2 ranks\n")
        assert get(port, "/healthz") == (200, "ok\n")
        assert "meshrun_round{" in (tmp_path / "own.prom").read_text()
        (tmp_path / "finish").touch()
        assert job.wait().exit_code == 0
        assert not (tmp_path / "own.prom").exists()


def test_a_job_is_ready_when_it_runs_or_stands_by_and_the_leader_counts(tmp_path: Path) -> None:
    hosts = loopback_hosts(3)
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={hosts[0].address}:{free_port(hosts[0].address)}")
    options = ("--nnodes=2", "--nproc-per-node=1", "--lease-ttl=15", "--join-grace=0.5", "--metrics-port=0")
    with Cluster(tmp_path, *meeting, *options) as cluster:
        cluster.start(hosts[0], options=("--rdzv-conf=is_host=1",))
        first = find_port(cluster[hosts[0]])
        assert wait_until(lambda: answer if (answer := get(first, "/readyz"))[0] == 503 else None)[1].startswith(
            "waiting: "
        )
        assert get(first, "/healthz") == (200, "ok\n")
        cluster.start(*hosts[1:], options=("--rdzv-conf=is_host=0",))
        ports = [find_port(cluster[host]) for host in hosts]
        wait_until(lambda: {get(port, "/readyz")[0] for port in ports} == {200}, 60)
        assert sorted(get(port, "/readyz")[1] for port in ports) == [
            *["round 1 runs here, with 1 of 2 ranks\n"] * 2, "this node is a spare\n",
        ]  # fmt: skip
        pages = [read_samples(port) for port in ports]
        (leader,) = [page for page in pages if page["meshrun_leader"]]
        assert (leader["meshrun_nodes"], leader["meshrun_spare_nodes"]) == (3, 1)
        assert [page.get("meshrun_nodes") for page in pages].count(None) == 2
        assert all(page["meshrun_store_latency_seconds"] >= 0 for page in pages)
        assert sum(page["meshrun_node_state spare"] for page in pages) == 1
        cluster.finish()
