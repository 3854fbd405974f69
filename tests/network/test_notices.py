"""Nodes whose cloud announces their end: the agent asks at the link-local address, as on a machine of that cloud.

Each host is a network namespace, whose loopback has the address of the metadata server, and a namespace of mounts, in
which the firmware is Amazon's.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from launcher.hardware.metadata_server import LINK_LOCAL
from tests.support.jobs.multi_node import Make
from tests.support.jobs.single_node import Job
from tests.support.network.metadata_servers import amazon, serving
from tests.support.network.namespaces import Host, Network, run_ip

IN_TWO_MINUTES = {"action": "terminate", "time": "2026-01-05T18:02:00Z"}
IN_SEVEN_SECONDS = {"action": "terminate", "time": "2026-01-05T18:00:07Z"}
FIRMWARE = (
    "mount -t tmpfs none /sys/class && mkdir -p /sys/class/dmi/id && echo Amazon EC2 > /sys/class/dmi/id/sys_vendor"
    ' && exec "$@"'
)
SAVES = """
from launcher.worker import stop_request
while not os.path.exists("../finish"):
    beat()
    time.sleep(0.01)
    if told := stop_request():
        mark("saved", f"{told.seconds_left:.3f} {told.reason}")
        sys.exit(0)
"""


@contextmanager
def on_amazon(network: Network, host: Host) -> Iterator[tuple[Host, dict[str, Any]]]:
    """The host as a machine of Amazon's, and what its metadata server says of it."""
    values: dict[str, Any] = {}
    with ExitStack() as stack:
        with network.inside(host.name):
            run_ip("address", "add", f"{LINK_LOCAL[0]}/32", "dev", "lo")
            stack.enter_context(serving(amazon(values), address=LINK_LOCAL))
        prefix = (*host.prefix, "unshare", "--mount", "sh", "-c", FIRMWARE, "sh")
        yield Host(host.name, host.address, prefix), values


def test_a_node_with_a_notice_saves_and_leaves_uncharged(
    network: Network, hosts: list[Host], cluster: Make, is_leader_victim: bool
) -> None:
    with ExitStack() as stack:
        clouds = [stack.enter_context(on_amazon(network, host)) for host in hosts[:2]]
        job = cluster("--nnodes=1:2", "--target-nodes=2", "--max-restarts=0", "--lease-ttl=15", script=SAVES)
        for host, _ in clouds:
            job.start(host, options=("--events=events",))
        first = job.wait_for_round(1, 4)
        going = job.victim(is_leader_victim)
        (values,) = [values for host, values in clouds if host.name == going]
        values["spot/instance-action"] = IN_TWO_MINUTES
        job.wait(going, exit_code=143)
        assert "AWS announces a spot interruption (terminate) in 2 min: this node leaves" in job[going].stderr
        for text in job[going].marks("saved", first[going]):
            left_s, _, reason = text.partition(" ")
            assert reason == "AWS announces a spot interruption (terminate)"
            assert 20 < float(left_s) <= 30
        kept = next(name for name in first if name != going)
        assert job.wait_for_round(2, 2) == {kept: [0, 1]}
        assert all(f"{going} leaving" in text for text in job[kept].marks("saved", first[kept]))
        job.finish(kept)
        lines = [json.loads(line) for line in (job[going].directory / "events").read_text().splitlines()]
        (notice,) = [line for line in lines if line["event"] == "notice"]
        assert (notice["source"], notice["state"], notice["leaves"], notice["left_s"]) == (
            "AWS", "announced", True, 120.0,
        )  # fmt: skip


def test_a_save_that_is_under_way_ends_before_the_machine(network: Network, hosts: list[Host], tmp_path: Path) -> None:
    script = """
from launcher.worker import stop_request
signal.signal(signal.SIGTERM, lambda *_: mark("asked"))
mark("up")
while not (told := stop_request()) or told.seconds_left > 100:
    time.sleep(0.01)
mark("hurries", f"{told.seconds_left:.3f} {told.reason}")
time.sleep(1000)
"""
    options = ("--standalone", "--nproc-per-node=1", "--shutdown-timeout=1000")
    with (
        on_amazon(network, hosts[0]) as (host, values),
        Job(tmp_path, *options, script=script, prefix=host.prefix) as job,
    ):
        job.marks("up", [0])
        job.send(signal.SIGTERM)
        job.marks("asked", [0])
        values["spot/instance-action"] = IN_SEVEN_SECONDS
        assert job.wait().exit_code == 143
        (text,) = job.marks("hurries", [0])
        left_s, _, reason = text.partition(" ")
        assert float(left_s) <= 5.0
        assert reason == "stopped by SIGTERM"
        assert "in 7.0 s: this node is leaving already\n" in job.stderr


def test_a_node_that_has_not_joined_yet_ends_at_a_notice(network: Network, hosts: list[Host], tmp_path: Path) -> None:
    options = ("--standalone", "--nproc-per-node=1", "--health-check=false")
    with on_amazon(network, hosts[0]) as (host, values):
        values["spot/instance-action"] = IN_TWO_MINUTES
        with Job(tmp_path, *options, prefix=host.prefix) as job:
            assert job.wait().exit_code == 143
            assert "AWS announces a spot interruption (terminate), and this node had not joined yet" in job.stderr
