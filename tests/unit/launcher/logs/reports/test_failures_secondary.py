"""Which failures name a connection rather than a cause. The texts are what the libraries really say."""

from __future__ import annotations

import pytest

from launcher.logs.reports.failures import is_abort
from launcher.logs.reports.symptoms import is_peer_loss

ECHOES = [
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4521",
    "RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection reset by peer",
    "torch.distributed.DistBackendError: NCCL error in: ... ncclRemoteError: A call failed possibly due to a network "
    "error or a remote process exiting prematurely.",
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
    "server shutdown or crash?",
    "[E] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "torch.distributed.DistStoreError: Socket Timeout",
    "F1121 client.h:80] Terminating process because the JAX distributed service detected fatal errors. This most "
    "likely indicates that another task died",
    "ValueError: UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by "
    "peer [127.0.0.1]:29584",
    "RuntimeError: [/paddle/third_party/gloo/gloo/transport/tcp/pair.cc:584] TIMEOUT self_rank = 0 pair_rank = 1 "
    "peer_str = [127.0.0.1]:2432",
    "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was preempted/died/restarted",
]
CAUSES = [
    "",
    "ZeroDivisionError: division by zero",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "I1121 coordination_service.cc:417] /job:jax_worker/replica:0/task:2 has connected to coordination service.",
]


@pytest.mark.parametrize("text", ECHOES)
def test_the_loss_of_a_peer_is_known_wherever_it_stands(text: str) -> None:
    assert is_peer_loss(text)
    assert is_peer_loss(f"Traceback (most recent call last):\n  ...\n{text}\nsome lines after it")


@pytest.mark.parametrize("text", CAUSES)
def test_a_failure_with_a_cause_of_its_own_is_not_an_echo(text: str) -> None:
    assert not is_peer_loss(text)


def test_an_abort_without_an_explanation_is_told_from_one_with_one() -> None:
    assert is_abort(-6, None, None)
    assert not is_abort(-6, "Traceback ...", None)
    assert not is_abort(-6, None, "no sign of life for 60 s")
    assert not is_abort(-11, None, None)
    assert not is_abort(134, None, None)
