"""Train a small network on handwritten digits with DistributedDataParallel, and survive restarts.

    torchrun --standalone --nproc-per-node 2 examples/ddp_digits.py --checkpoint /tmp/digits
    meshrun  --standalone --nproc-per-node 2 examples/ddp_digits.py --checkpoint /tmp/digits

The same file runs under both, on CPUs (gloo) and on GPUs (nccl). The data are 1,797 real scans of 8 x 8 pixels
that come with scikit-learn. Kill a worker while it runs: the launcher restarts all, and training goes on from
the last epoch saved. DIR must be one that every node sees. The batch is the same whatever the number of
workers, so a job that comes back smaller goes on learning as before.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist

# DDP imports this later, when its functions would take the process group of the moment as a default argument. That
# keeps the group's threads alive beyond destroy_process_group, and at exit they may abort the process (torch 2.13).
import torch.distributed.nn
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

TRAIN_COUNT = 1440  # the other 357 scans are the test
BATCH_SIZE = 48  # of all workers together; 1, 2, 3, 4, 6, 8, ... workers get equal parts


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All scans in one fixed random order, and what they show."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(data.target)[order]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def save(path: str, state: dict[str, object]) -> None:
    """Write beside the old checkpoint, then rename: whoever is killed on the way, one whole file remains."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def train(device: torch.device, epochs: int, checkpoint: str | None) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, labels = (tensor.to(device) for tensor in digits())
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    path = os.path.join(checkpoint, "digits.pt") if checkpoint else None
    first_epoch = 0
    if path and os.path.exists(path):
        state = torch.load(path, map_location=device, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epochs"]
        if rank == 0:
            print(f"resumed after epoch {first_epoch} from {path}", flush=True)

    started = time.perf_counter()
    for epoch in range(first_epoch, epochs):
        # The same order on every rank; of each batch a rank takes every world_size-th scan.
        order = torch.randperm(TRAIN_COUNT, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH_SIZE):
            mine = batch[rank::world_size].to(device)
            loss = cross_entropy(model(images[mine]), labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}", flush=True)
            if path:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
                save(path, state)
    elapsed_s = time.perf_counter() - started

    if rank == 0:
        with torch.no_grad():
            right = model.module(images[TRAIN_COUNT:]).argmax(dim=1) == labels[TRAIN_COUNT:]
        sample_count = TRAIN_COUNT * max(epochs - first_epoch, 0)
        print(f"test accuracy {right.float().mean().item():.3f}, {sample_count / elapsed_s:.0f} samples/s", flush=True)


@record  # an exception reaches the launcher's failure report with its traceback
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint", metavar="DIR", help="save after every epoch, and resume from there")
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # the network is tiny: more threads would only wait for each other
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    train(device, arguments.epochs, arguments.checkpoint)
    dist.destroy_process_group()  # `model` is gone by now, so this ends the group's threads


if __name__ == "__main__":
    main()
