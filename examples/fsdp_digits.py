"""Train a small network on handwritten digits with FSDP, and save sharded checkpoints that any number of workers loads.

    torchrun --standalone --nproc-per-node 2 examples/fsdp_digits.py --checkpoint /tmp/digits
    meshrun  --standalone --nproc-per-node 2 examples/fsdp_digits.py --checkpoint /tmp/digits

The same file runs under both, on CPUs (gloo) and on GPUs (nccl). Each worker has a part of every parameter
(`fully_shard`, FSDP2), and writes that part with torch.distributed.checkpoint (DCP). Kill a worker while it runs: the
launcher restarts all, and training resumes from the last epoch saved. DIR must be one that every node sees.
"""

from __future__ import annotations

import argparse
import os
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

TRAIN_COUNT = 1440  # the other 357 scans are the test
BATCH_SIZE = 48  # of all workers together


def make_state(model, optimizer, epochs):
    model_state, optimizer_state = get_state_dict(model, optimizer)  # this rank's shards
    return {"model": model_state, "optimizer": optimizer_state, "epochs": epochs}


def save(path, model, optimizer, epochs):
    dcp.save(make_state(model, optimizer, epochs), checkpoint_id=f"{path}.new")  # on every rank
    if dist.get_rank() == 0:
        os.rename(f"{path}.new", path)


def load(path, model, optimizer):
    state = make_state(model, optimizer, 0)
    dcp.load(state, checkpoint_id=path)  # every rank reads its shards
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["epochs"]


def find_newest(directory: str) -> str | None:
    """The newest checkpoint that was saved in full, for all ranks the one that rank 0 sees."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    newest = [max((name for name in names if name.isdecimal()), key=int, default=None)]  # `4.new` is incomplete
    dist.broadcast_object_list(newest)
    return newest[0] and os.path.join(directory, newest[0])


def train(device: torch.device, epochs: int, directory: str | None) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = (torch.tensor(data.data, dtype=torch.float32) / 16)[order].to(device)
    labels = torch.tensor(data.target)[order].to(device)

    torch.manual_seed(0)  # every rank makes the whole network, and keeps its shards
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    mesh = init_device_mesh(device.type, (world_size,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    first_epoch = 0
    if directory and (path := find_newest(directory)):
        first_epoch = load(path, model, optimizer)
    if first_epoch and rank == 0:
        print(f"resumed after epoch {first_epoch} with {world_size} worker{'s' * (world_size > 1)}", flush=True)

    for epoch in range(first_epoch, epochs):
        order = torch.randperm(TRAIN_COUNT, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH_SIZE):
            mine = batch[rank::world_size].to(device)
            # FSDP averages gradients over the ranks, whose shares of the batch may differ.
            loss = cross_entropy(model(images[mine]), labels[mine], reduction="sum") * world_size / len(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if directory:
            save(os.path.join(directory, str(epoch + 1)), model, optimizer, epoch + 1)
            if rank == 0 and epoch:
                shutil.rmtree(os.path.join(directory, str(epoch)), ignore_errors=True)

    with torch.no_grad():  # on every rank, because each has only a part of the parameters
        right = model(images[TRAIN_COUNT:]).argmax(dim=1) == labels[TRAIN_COUNT:]
    if rank == 0:
        print(f"test accuracy {right.float().mean().item():.3f}", flush=True)


@record  # an exception reaches the launcher's failure report with its traceback
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint", metavar="DIR", help="save after every epoch, and resume from there")
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # the network is tiny: more threads would only wait for each other
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(device, arguments.epochs, arguments.checkpoint)
    dist.barrier()  # a thread of FSDP's that still holds a tensor when the process ends may abort it (torch 2.13)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
