"""Train a small network on handwritten digits with JAX in several processes, and survive restarts.

    meshrun --standalone --nproc-per-node 2 --framework jax --max-restarts 3 \
        examples/jax_digits.py --checkpoint /tmp/digits

`jax.distributed.initialize` needs no arguments: what it looks for is in the workers' environment, so the same script
runs on one machine and on many. The data are 1,797 real scans of 8 x 8 pixels that come with scikit-learn. Every
process computes a part of each batch, and JAX adds up the gradients because the parameters are declared to be the
same everywhere. Kill a worker while it runs: all are started again, and training goes on from the last epoch saved.
Tell the launcher to stop: the epoch is finished and saved, and all workers leave together.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import reached_preemption_sync_point
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

TRAIN_COUNT = 1440  # the other 357 scans are the test
BATCH_SIZE = 48  # of all workers together; 1, 2, 3, 4, 6, 8, ... workers get equal parts
PIXELS, HIDDEN, DIGITS = 64, 128, 10
Tree = Any


def digits() -> tuple[np.ndarray, np.ndarray]:
    """All scans in one fixed random order, and what they show."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return data.data[order].astype(np.float32) / 16, data.target[order].astype(np.int32)


def network() -> Tree:
    random = np.random.default_rng(0)
    sizes = {"hidden": (PIXELS, HIDDEN), "digits": (HIDDEN, DIGITS)}
    weights = {name: random.normal(0, size[0] ** -0.5, size).astype(np.float32) for name, size in sizes.items()}
    return {"weights": weights, "biases": {name: np.zeros(size[1], np.float32) for name, size in sizes.items()}}


def scores(parameters: Tree, images: jax.Array) -> jax.Array:
    weights, biases = parameters["weights"], parameters["biases"]
    hidden = jax.nn.relu(images @ weights["hidden"] + biases["hidden"])
    return hidden @ weights["digits"] + biases["digits"]


def loss_of(parameters: Tree, images: jax.Array, labels: jax.Array) -> jax.Array:
    chances = jax.nn.log_softmax(scores(parameters, images))
    return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()


@jax.jit
def step(state: Tree, images: jax.Array, labels: jax.Array) -> tuple[Tree, jax.Array]:
    """Gradient descent with momentum. The mean runs over the whole batch, wherever its parts lie."""
    loss, gradients = jax.value_and_grad(loss_of)(state["parameters"], images, labels)
    speed = jax.tree.map(lambda old, new: 0.9 * old + new, state["speed"], gradients)
    return {
        "parameters": jax.tree.map(lambda old, by: old - 0.1 * by, state["parameters"], speed),
        "speed": speed,
    }, loss


def save(path: str, epochs: int, state: Tree) -> None:
    """Write beside the old checkpoint, then rename: whoever is killed on the way, one whole file remains."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "wb") as file:
        np.savez(file, epochs=epochs, **{str(n): leaf for n, leaf in enumerate(jax.tree.leaves(state))})
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def train(epochs: int, checkpoint: str | None) -> None:
    rank, world_size = jax.process_index(), jax.process_count()
    mesh = Mesh(jax.devices(), "dp")
    everywhere, in_parts = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("dp"))
    images, labels = digits()
    parameters = network()
    state = {"parameters": parameters, "speed": jax.tree.map(np.zeros_like, parameters)}

    path = os.path.join(checkpoint, "digits.npz") if checkpoint else None
    first_epoch = 0
    if path and os.path.exists(path):
        with np.load(path) as saved:
            leaves, structure = jax.tree.flatten(state)
            state = jax.tree.unflatten(structure, [saved[str(n)] for n in range(len(leaves))])
            first_epoch = int(saved["epochs"])
        if rank == 0:
            print(f"resumed after epoch {first_epoch} from {path}", flush=True)
    state = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(everywhere, leaf), state)

    started = time.perf_counter()
    for epoch in range(first_epoch, epochs):
        # The same order on every rank; of each batch a rank takes every world_size-th scan.
        order = np.random.default_rng(epoch).permutation(TRAIN_COUNT)
        for batch in order.reshape(-1, BATCH_SIZE):
            mine = batch[: BATCH_SIZE // world_size * world_size][rank::world_size]
            parts = (jax.make_array_from_process_local_data(in_parts, array[mine]) for array in (images, labels))
            state, loss = step(state, *parts)
        if rank == 0:
            print(f"epoch {epoch + 1} of {epochs}: loss {float(loss):.3f}", flush=True)
            if path:
                save(path, epoch + 1, state)
        if reached_preemption_sync_point(epoch):  # true after the same epoch on every rank
            if rank == 0:
                print(f"told to stop after epoch {epoch + 1}", flush=True)
            return
    elapsed_s = time.perf_counter() - started

    if rank == 0:
        here = jax.tree.map(np.asarray, state["parameters"])
        right = scores(here, images[TRAIN_COUNT:]).argmax(axis=1) == labels[TRAIN_COUNT:]
        sample_count = TRAIN_COUNT * max(epochs - first_epoch, 0)
        print(f"test accuracy {right.mean():.3f}, {sample_count / elapsed_s:.0f} samples/s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint", metavar="DIR", help="save after every epoch, and resume from there")
    arguments = parser.parse_args()
    jax.distributed.initialize()
    train(arguments.epochs, arguments.checkpoint)
