"""FSDP2 as a user writes it: parameters and the state of Adam cut over all workers, gathered for each layer.

Started by a test. Rank 0 prints the first and the last loss, and how many of the parameters it holds.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
rank, world_size = dist.get_rank(), dist.get_world_size()
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
mesh = init_device_mesh("cpu", (world_size,))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(60):
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
    wanted = inputs.sum(dim=1, keepdim=True)
    loss = nn.functional.mse_loss(model(inputs[rank::world_size]), wanted[rank::world_size])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step in (0, 59):
        print(f"loss {loss.item():.3f}", flush=True)
if rank == 0:
    held = sum(parameter.to_local().numel() for parameter in model.parameters())
    print(f"rank 0 holds {held} of {sum(parameter.numel() for parameter in model.parameters())}", flush=True)
dist.barrier()  # else a thread of gloo's may abort the process as it ends, under torchrun too
dist.destroy_process_group()
