"""Nodes that are killed, cut off or drained while all others are inside an all-reduce, which then never ends well.

No restart is allowed (`--max-restarts 0`): the round goes down because of a node, so nobody's failure is charged, the
others go on without it, and the job ends well. In every step another rank comes late on purpose, so whenever the fault
comes the others wait for one another inside gloo.
"""

from __future__ import annotations

import pytest

from tests.support.jobs.multi_node import BEAT_IN_A_THREAD, FAULT_REPEATS, LIMIT_S, Make, lose
from tests.support.network.namespaces import Host, Network

# Starting torch takes most of the time: `make slow WHAT=faults` has all of them.
FAULTS = ["kill"] if FAULT_REPEATS == 1 else ["kill", "cut", "drain"]
REDUCING = (
    BEAT_IN_A_THREAD
    + """
import torch, torch.distributed

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
size, step, stop_count = torch.distributed.get_world_size(), 0, 0
while not stop_count:
    if step % size == RANK:
        time.sleep(0.02)
    step += 1
    counts = torch.tensor([1, os.path.exists("../finish")])
    torch.distributed.all_reduce(counts)
    count, stop_count = counts.tolist()
    if count != size:
        sys.exit(f"{count} of {size} ranks took part in step {step}")
    if step == 10:
        mark("reduces")
torch.distributed.destroy_process_group()
"""
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_node_lost_in_an_all_reduce_costs_the_others_no_restart(
    cluster: Make, hosts: list[Host], network: Network, is_leader_victim: bool, fault: str
) -> None:
    lease = () if fault == "cut" else ("--lease-ttl=15",)  # where none is to end
    job = cluster("--nnodes", "2:3", "--nproc-per-node", "1", "--max-restarts", "0", *lease, script=REDUCING)
    before = job.begin(*hosts[:3], workers=3)
    for name, ranks in before.items():
        job[name].mark("reduces", ranks[0], 1, LIMIT_S)
    victim = job.victim(is_leader_victim)
    lose(job, network, victim, fault)
    after = job.wait_for_round(2, 2)
    assert sorted(after) == sorted(name for name in before if name != victim)
    for name, ranks in after.items():
        job[name].mark("reduces", ranks[0], 2, LIMIT_S)
    assert all(f"node {victim} " in end.stderr for end in job.finish(*after))
    assert {life.round for life in job.lives()} == {1, 2}
