"""DeepSpeed as a user writes it, without DeepSpeed's own launcher: ZeRO, whose stage is the only argument, over gloo.

Started by a test. Rank 0 prints the first and the last loss.
"""

from __future__ import annotations

import sys

import deepspeed
import torch
import torch.distributed as dist

STAGE = int(sys.argv[1])
deepspeed.init_distributed(dist_backend="gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
rank, world_size = dist.get_rank(), dist.get_world_size()
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
engine, _, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
    config={
        "train_batch_size": 32,
        "zero_optimization": {"stage": STAGE},
        "zero_allow_untested_optimizer": True,  # its own Adam would be compiled first
    },
)
for step in range(60):
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
    wanted = inputs.sum(dim=1, keepdim=True)
    loss = torch.nn.functional.mse_loss(engine(inputs[rank::world_size]), wanted[rank::world_size])
    engine.backward(loss)
    engine.step()
    if rank == 0 and step in (0, 59):
        print(f"loss {loss.item():.3f}", flush=True)
engine.destroy()
dist.barrier()  # else who is done first may abort inside gloo as it goes, in two of five runs under torchrun too
dist.destroy_process_group()
