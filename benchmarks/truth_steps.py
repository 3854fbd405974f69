"""One rank of a training step: real collectives of torch or JAX over gloo, with sizes that are known to the byte.

A process takes its place in the job, and then a step for each start that it is told: it waits for that moment, which
is the same for all ranks since they share a machine and its clock, communicates, and tells how long that took it.
Communication comes in the order of a schedule: tensors and experts, activations forward through the pipeline in
microbatches, gradients back, then the gradients of replicas. No barrier stands between these parts: a rank goes on as
soon as its own part is done. A little is computed while messages are on their way, far less than would
keep a core busy: what is measured is the network.

What each rank sends on an axis is its weight. A ring all-reduce of S bytes among n ranks sends 2 S (n-1)/n, a line half
of its weight forward and half back, an all-to-all n-1 of n blocks.
"""

from __future__ import annotations

import ctypes
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

MICROBATCHES = 8
_FLOAT = 4  # bytes
_CLONE_NEWUTS = 0x04000000
_PORT = 29_500


class Exchange(NamedTuple):
    """Communication along an axis: "ring", "line" or "all", and the bytes that a rank sends in a step."""

    axis: str
    kind: str
    weight: float


class Seat(NamedTuple):
    """What a rank knows of its job. `store`: a file for torch; `root`, `address`: of rank 0's host and of its own."""

    rank: int
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    exchanges: tuple[Exchange, ...]
    store: str
    root: str
    address: str

    @property
    def world(self) -> int:
        return math.prod(self.shape)


def sort_by_schedule(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """What layers do among themselves (tp, ep), then the pipeline, and the gradients of dp at the end."""
    return sorted(exchanges, key=lambda one: (one.axis == "dp", one.kind == "line"))


def count_floats(one: Exchange, size: int) -> int:
    """How many floats the tensor has on each rank, of a group of `size`, for the rank to send the weight."""
    if one.kind == "ring":
        return round(one.weight * size / (2 * (size - 1)) / _FLOAT)
    if one.kind == "line":
        return round(one.weight / 2 / _FLOAT)
    return round(one.weight / (size - 1) / _FLOAT) * size


def serve(seat: Seat, pipe: Connection, framework: str) -> None:
    """Take the seat, then steps until None comes instead of a start; the process ends without any further ado."""
    step = (_join_torch if framework == "torch" else _join_jax)(seat)
    pipe.send(0.0)
    while (start_s := pipe.recv()) is not None:
        time.sleep(max(0.0, start_s - time.monotonic()))
        step()
        pipe.send(time.monotonic() - start_s)
    os._exit(0)  # gloo's threads may abort an orderly end


def _join_torch(seat: Seat) -> Callable[[], None]:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    # A file: it is the same on every host here, and costs the network nothing.
    dist.init_process_group("gloo", rank=seat.rank, world_size=seat.world, store=dist.FileStore(seat.store, seat.world))
    mesh = init_device_mesh("cpu", seat.shape, mesh_dim_names=seat.axes)
    side = torch.ones(64, 64)
    parts: list[Callable[[], None]] = []
    for one in sort_by_schedule(seat.exchanges):
        group = mesh.get_group(one.axis)
        size = dist.get_world_size(group)
        if size == 1:
            continue
        data = torch.zeros(count_floats(one, size))
        if one.kind == "line":
            line = dist.get_process_group_ranks(group)
            parts += [_make_line(dist, group, each, data, side) for each in (line, line[::-1])]
        elif one.kind == "ring":
            parts.append(_overlap(partial(dist.all_reduce, data, group=group, async_op=True), side))
        else:
            exchange = partial(dist.all_to_all_single, torch.empty_like(data), data, group=group, async_op=True)
            parts.append(_overlap(exchange, side))

    def step() -> None:
        for part in parts:
            part()

    return step


def _overlap(start: Callable[[], Any], side: Any) -> Callable[[], None]:
    """A collective, and a little that is computed meanwhile."""

    def run() -> None:
        work = start()
        side @ side
        work.wait()

    return run


def _make_line(dist: Any, group: Any, line: Sequence[int], data: Any, side: Any) -> Callable[[], None]:
    """Pass microbatches along the line: each waits for its own from the rank before, all sends overlap.

    At the end a word comes back from the receiver: gloo takes a message for sent when it lies in a buffer of the
    kernel, which a GPU's messages do not, and the next part would begin on top of it.
    """
    chunks = data.chunk(MICROBATCHES)
    word = data.new_zeros(1)
    at = line.index(dist.get_rank())

    def run() -> None:
        coming = [dist.irecv(chunk, line[at - 1], group) for chunk in chunks] if at > 0 else []
        going = []
        for index, chunk in enumerate(chunks):
            if coming:
                coming[index].wait()
            side @ side
            if at + 1 < len(line):
                going.append(dist.isend(chunk, line[at + 1], group))
        for work in going:
            work.wait()
        if at > 0:
            dist.send(word, line[at - 1], group)
        if at + 1 < len(line):
            dist.recv(word, line[at + 1], group)

    return run


def _join_jax(seat: Seat) -> Callable[[], None]:
    # JAX's gloo listens where the host's own name leads to, so that has to be an address; None is the machine's.
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(seat.address)
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"{seat.root}:{_PORT}", num_processes=seat.world, process_id=seat.rank)
    mesh = Mesh(np.array(jax.devices()).reshape(seat.shape), seat.axes)
    spec = PartitionSpec(seat.axes)
    sizes = dict(zip(seat.axes, seat.shape, strict=True))
    side = jax.numpy.ones((64, 64))
    parts = []
    for one in sort_by_schedule(seat.exchanges):
        size = sizes[one.axis]
        if size == 1:
            continue
        local = np.zeros((1, count_floats(one, size)), np.float32)
        data = jax.make_array_from_process_local_data(NamedSharding(mesh, spec), local)
        for move in _make_moves(jax, one, size):
            run = jax.jit(jax.shard_map(move, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
            run.lower(data).compile()
            parts.append((run, data))

    def step() -> None:
        for run, data in parts:
            found = run(data)
            (side @ side).block_until_ready()
            found.block_until_ready()

    return step


def _make_moves(jax: Any, one: Exchange, size: int) -> list[Callable[[Any], Any]]:
    """What each shard does, part by part; the whole line at once, as a compiled step has every stage at work."""
    if one.kind == "ring":
        return [lambda x: jax.lax.psum(x, one.axis)]
    if one.kind == "all":
        return [lambda x: jax.lax.all_to_all(x, one.axis, 1, 1, tiled=True)]
    forward = [(at, at + 1) for at in range(size - 1)]
    back = [(there, here) for here, there in forward]
    return [lambda x, hops=hops: jax.lax.ppermute(x, one.axis, hops) for hops in (forward, back)]  # type: ignore[misc]
