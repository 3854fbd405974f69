"""Training on several hosts with torch, while one of them is lost: it goes on from the checkpoint and ends well.

No restart is allowed (`--max-restarts 0`): what a lost node breaks in the others is not their failure. The node is lost
whenever the fault comes, so mostly in the middle of an all-reduce.
"""

from __future__ import annotations

import pytest

from tests.support.jobs.multi_node import BEAT_IN_A_THREAD, FAULT_REPEATS, Make, lose
from tests.support.network.namespaces import Host, Network
from tests.support.processes.tree import REPOSITORY
from tests.support.waiting import wait_until

EPOCHS = 4
HOSTS = 3 if FAULT_REPEATS == 1 else 4  # starting torch takes most of the time
TRAINING = f"""{BEAT_IN_A_THREAD}
import runpy

sys.argv = ["ddp_digits.py", "--epochs", "{EPOCHS}", "--checkpoint", "../saved"]
runpy.run_path({str(REPOSITORY / "examples" / "ddp_digits.py")!r}, run_name="__main__")
"""


@pytest.mark.parametrize("fault", ["kill"] if FAULT_REPEATS == 1 else ["kill", "cut", "drain"])
def test_training_resumes_from_the_checkpoint_without_the_lost_node(
    cluster: Make, hosts: list[Host], network: Network, is_leader_victim: bool, fault: str
) -> None:
    job = cluster("--nnodes", f"2:{HOSTS}", "--max-restarts", "0", script=TRAINING)
    job.begin(*hosts[:HOSTS], workers=2 * HOSTS)
    checkpoint = job.directory / "saved" / "digits.pt"
    wait_until(lambda: checkpoint.exists() or job.lives(2), 120, "the first checkpoint")
    victim = job.victim(is_leader_victim)
    lose(job, network, victim, fault)
    after = job.wait_for_round(2, 2 * (HOSTS - 1), 120)
    assert victim not in after
    ended = job.wait(*(name for name in job.jobs if name != victim), limit_s=180)
    said = "".join(end.stdout for end in ended)
    assert "resumed after epoch" in said
    # On a busy machine a node may be drained when all epochs are trained and saved.
    assert f"epoch {EPOCHS} of {EPOCHS}" in said or f"resumed after epoch {EPOCHS} " in said
    assert all(f"node {victim} " in end.stderr for end in ended)
    assert {life.round for life in job.lives()} == {1, 2}
