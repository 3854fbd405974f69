"""Lightning Fabric as a user writes it, on a tiny regression; it finds the process group by torchrun's variables.

Started by a test. Rank 0 prints what Fabric took its ranks from, the size of the world, and the first and the last
loss. Fabric compares devices and nodes with the world, so both are read from the launcher.
"""

from __future__ import annotations

import os

import torch
from lightning.fabric import Fabric
from torch import nn

torch.set_num_threads(1)
fabric = Fabric(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
)
fabric.launch()
fabric.seed_everything(0)
plain = nn.Linear(8, 1)
model, optimizer = fabric.setup(plain, torch.optim.Adam(plain.parameters(), lr=0.1))
if fabric.global_rank == 0:
    environment = type(fabric.strategy.cluster_environment).__name__
    print(f"{environment}, workers {fabric.world_size}, mesh {os.environ.get('MESH_AXES')}", flush=True)
for step in range(100):
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
    mine = inputs[fabric.global_rank :: fabric.world_size]
    loss = nn.functional.mse_loss(model(mine), mine.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    fabric.backward(loss)
    optimizer.step()
    if fabric.global_rank == 0 and step in (0, 99):
        print(f"loss {loss.item():.3f}", flush=True)
fabric.barrier()
torch.distributed.destroy_process_group()
