"""Train a small network on handwritten digits with PaddlePaddle in several processes, and survive restarts.

    meshrun --standalone --nproc-per-node 2 --framework paddle --max-restarts 3 examples/paddle_digits.py \\
        --checkpoint /tmp/digits

The data are 1,797 real scans of 8 x 8 pixels that come with scikit-learn. Kill a worker while it runs: all are started
again, and training goes on from the last epoch saved. The number of workers may differ from round to round.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.nn.functional import cross_entropy
from sklearn.datasets import load_digits

TRAIN_COUNT = 1440  # the other 357 scans are the test
BATCH_SIZE = 48  # of all workers together


def digits() -> tuple[np.ndarray, np.ndarray]:
    """All scans in one fixed random order, and what they show."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = data.images.astype(np.float32)[:, None] / 16
    return images[order], data.target[order].astype(np.int64)


def network() -> nn.Layer:
    paddle.seed(0)
    return nn.Sequential(
        nn.Conv2D(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2D(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def save(path: str, epochs: int, model: nn.Layer, optimizer: paddle.optimizer.Optimizer) -> None:
    """Write beside the old checkpoint, then rename: one whole file remains if this process is killed on the way."""
    paddle.save({"epochs": epochs, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{path}.new")
    os.replace(f"{path}.new", path)


def train(epochs: int, checkpoint: str | None) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, labels = digits()
    model = network()
    optimizer = paddle.optimizer.Adam(3e-3, parameters=model.parameters())

    path = os.path.join(checkpoint, "digits.pdparams") if checkpoint else None
    first_epoch = 0
    if path and os.path.exists(path):
        saved = paddle.load(path)
        model.set_state_dict(saved["model"])
        optimizer.set_state_dict(saved["optimizer"])
        first_epoch = saved["epochs"]
        if rank == 0:
            print(f"resumed after epoch {first_epoch} from {path}", flush=True)
    parallel = paddle.DataParallel(model) if world_size > 1 else model

    started = time.perf_counter()
    for epoch in range(first_epoch, epochs):
        # The same order on every rank; of each batch a rank takes every world_size-th scan.
        order = np.random.default_rng(epoch).permutation(TRAIN_COUNT)
        for batch in order.reshape(-1, BATCH_SIZE):
            mine = batch[: BATCH_SIZE // world_size * world_size][rank::world_size]
            loss = cross_entropy(parallel(paddle.to_tensor(images[mine])), paddle.to_tensor(labels[mine]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
        if rank == 0:
            print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}", flush=True)
            if path:
                save(path, epoch + 1, model, optimizer)
    elapsed_s = time.perf_counter() - started

    if rank == 0:
        with paddle.no_grad():
            guess = model(paddle.to_tensor(images[TRAIN_COUNT:])).numpy().argmax(axis=1)
        sample_count = TRAIN_COUNT * max(epochs - first_epoch, 0)
        right = guess == labels[TRAIN_COUNT:]
        print(f"test accuracy {right.mean():.3f}, {sample_count / elapsed_s:.0f} samples/s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint", metavar="DIR", help="save after every epoch, and resume from there")
    arguments = parser.parse_args()
    if arguments.checkpoint:
        os.makedirs(arguments.checkpoint, exist_ok=True)
    paddle.disable_signal_handler()  # which prints where the C++ code was when the job is told to stop
    dist.init_parallel_env()
    train(arguments.epochs, arguments.checkpoint)
