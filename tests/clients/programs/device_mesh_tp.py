"""Tensor parallelism on a DeviceMesh of two axes, which must be the mesh that the launcher was given.

Started by a test with --mesh dp=*,tp=2. Rank 0 prints how far the cut model is from the whole one: not at all.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
torch.set_num_threads(1)
shape = tuple(int(size) for size in os.environ["MESH_SHAPE"].split(","))
mesh = init_device_mesh("cpu", shape, mesh_dim_names=tuple(os.environ["MESH_AXES"].split(",")))
assert ",".join(map(str, mesh.get_coordinate())) == os.environ["MESH_COORDS"]

torch.manual_seed(0)
whole = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
cut = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
cut.load_state_dict(whole.state_dict())
parallelize_module(cut, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
inputs = torch.randn(16, 8)
distance = (cut(inputs) - whole(inputs)).abs().max()
cut(inputs).sum().backward()
whole(inputs).sum().backward()
gradient = cut[0].weight.grad.full_tensor()
distance = torch.maximum(distance, (gradient - whole[0].weight.grad).abs().max())
dist.all_reduce(distance, dist.ReduceOp.MAX)
if dist.get_rank() == 0:
    rows = cut[0].weight.to_local().shape[0]
    print(f"rank 0 holds {rows} of 64 rows, distance {distance.item():.0e}", flush=True)
dist.barrier()  # else a thread of gloo's may abort the process as it ends, under torchrun too
dist.destroy_process_group()
