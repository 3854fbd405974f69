"""Train a small network on handwritten digits with Hugging Face accelerate, and survive restarts.

    meshrun --standalone --nproc-per-node 2 --max-restarts 3 examples/accelerate_digits.py --checkpoint /tmp/digits

Accelerator reads the variables of torchrun, so neither `accelerate launch` nor a configuration of its is needed. The
data are 1,797 real scans of 8 x 8 pixels that come with scikit-learn. Kill a worker while it runs: all are started
again, and training goes on from the last epoch saved. The batch is the same whatever the number of workers.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

TRAIN_COUNT = 1440  # the other 357 scans are the test
BATCH_SIZE = 48  # of all workers together, whose number must divide it


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


def saved_epochs(directory: str) -> list[int]:
    names = os.listdir(directory) if os.path.exists(directory) else []
    return sorted(int(name[6:]) for name in names if re.fullmatch("epoch-[0-9]+", name))


def save(accelerator: Accelerator, directory: str, epoch: int) -> None:
    """Write beside the old checkpoint, then rename: whoever is killed on the way, a whole one remains."""
    path = os.path.join(directory, f"epoch-{epoch}")
    old = saved_epochs(directory)
    accelerator.save_state(f"{path}.new")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.rename(f"{path}.new", path)
        for number in old:
            shutil.rmtree(os.path.join(directory, f"epoch-{number}"))


def train(accelerator: Accelerator, epochs: int, checkpoint: str | None) -> None:
    images, labels = digits()
    train_set = TensorDataset(images[:TRAIN_COUNT], labels[:TRAIN_COUNT])
    model = network()
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=3e-3),
        DataLoader(train_set, BATCH_SIZE, shuffle=True),
    )

    first_epoch = 0
    if checkpoint and (done := saved_epochs(checkpoint)):
        first_epoch = done[-1]
        path = os.path.join(checkpoint, f"epoch-{first_epoch}")
        accelerator.load_state(path)
        accelerator.print(f"resumed after epoch {first_epoch} from {path}", flush=True)

    started = time.perf_counter()
    for epoch in range(first_epoch, epochs):
        loader.set_epoch(epoch)  # which decides on the order
        for batch, shown in loader:
            loss = cross_entropy(model(batch), shown)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}", flush=True)
        if checkpoint:
            save(accelerator, checkpoint, epoch + 1)
    elapsed_s = time.perf_counter() - started

    with torch.no_grad():
        shown = accelerator.unwrap_model(model)(images[TRAIN_COUNT:].to(accelerator.device))
    right = shown.argmax(dim=1).cpu() == labels[TRAIN_COUNT:]
    sample_count = TRAIN_COUNT * max(epochs - first_epoch, 0)
    accelerator.print(f"test accuracy {right.float().mean().item():.3f}, {sample_count / elapsed_s:.0f} samples/s")


@record  # an exception reaches the launcher's failure report with its traceback
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint", metavar="DIR", help="save after every epoch, and resume from there")
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # the network is tiny: more threads would only wait for each other
    loading = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
    # Without `cpu` every worker on a machine without a GPU would train for itself, whatever its variables say.
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=loading)
    train(accelerator, arguments.epochs, arguments.checkpoint)
    accelerator.end_training()


if __name__ == "__main__":
    main()
