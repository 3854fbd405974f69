"""Train a small transformer on a 3-D mesh: pipeline stages x sharded data parallelism x tensor parallelism.

    meshrun --standalone --nproc-per-node 8 --max-restarts 3 --mesh pp=2,dp=*,tp=2 examples/mesh_3d.py --checkpoint DIR

    mesh pp=2 dp=2 tp=2
    step 10 of 60: loss 3.103
    step 20 of 60: loss 2.726

It reads the licence of Python, which comes with every Python, letter by letter, and learns what follows. The grid is
what the launcher says in MESH_AXES and MESH_SHAPE. All of it is torch's own, on CPUs with gloo: parallelize_module
cuts the matrices of a layer over `tp`, fully_shard (FSDP2) all parameters and the state of Adam over `dp`, and a GPipe
schedule runs the layers in stages over `pp`.

Kill a worker, or a node of several: the job comes back with as many replicas as are whole, each worker reads its new
share of the last checkpoint, and training goes on with the next step. DIR must be one that every node sees. A batch
depends on nothing but the number of its step, so the losses are those of a run in which nothing was lost.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

AXES = ("pp", "dp", "tp")
LETTERS = 128  # ASCII
CONTEXT = 32
WIDTH = 64
HEAD_SIZE = 16
LAYERS = 4
BATCH = 24  # of all replicas together: at most 12, of which 1, 2, 3, 4, 6 or 12 leave nothing out
MICROBATCHES = 2
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # With tensor parallelism a worker has only some of the heads: -1 is how many.
        heads = self.heads(self.norm1(x)).unflatten(-1, (-1, 3 * HEAD_SIZE)).transpose(1, 2)
        heads = scaled_dot_product_attention(*heads.chunk(3, dim=-1), is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


CUTS = {"heads": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}


class Stage(nn.Module):
    """The layers of one pipeline stage. Its parameters have the names that they have in the whole model."""

    def __init__(self, stage: int, stages: int) -> None:
        super().__init__()
        torch.manual_seed(0)  # every rank makes the whole model and keeps its share
        letters, places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        blocks = {str(index): Block() for index in range(LAYERS)}
        norm, head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, LETTERS, bias=False)
        mine = range(LAYERS * stage // stages, LAYERS * (stage + 1) // stages)
        self.blocks = nn.ModuleDict({str(index): blocks[str(index)] for index in mine})
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        if self.is_first:
            self.letters, self.places = letters, places
        if self.is_last:
            self.norm, self.head = norm, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_first:
            x = self.letters(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.is_last else x


def grid() -> DeviceMesh:
    """The mesh that the launcher has made; one axis, dp, where it has made none (torchrun does not)."""
    axes = os.environ.get("MESH_AXES", "dp").split(",")
    shape = [int(size) for size in os.environ.get("MESH_SHAPE", os.environ["WORLD_SIZE"]).split(",")]
    sizes = dict(zip(axes, shape, strict=True))
    sizes |= {axis: 1 for axis in AXES if axis not in sizes}
    if len(sizes) > len(AXES):
        raise SystemExit(f"the axes that this script knows are {', '.join(AXES)}; the mesh has {', '.join(axes)}")
    if sizes["pp"] > LAYERS or sizes["dp"] > BATCH // MICROBATCHES or WIDTH // HEAD_SIZE % sizes["tp"]:
        raise SystemExit(f"{sizes} is too fine for a model of {LAYERS} layers with 4 heads, and a batch of {BATCH}")
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output.flatten(0, 1), target.flatten())


def batch(text: torch.Tensor, step: int, rank: int, replicas: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What this replica reads in a step, and the letters that follow."""
    starts = torch.randint(len(text) - CONTEXT, (BATCH,), generator=torch.Generator().manual_seed(step))
    share = BATCH // replicas // MICROBATCHES * MICROBATCHES
    rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts[rank * share :][:share]])
    return rows[:, :-1], rows[:, 1:]


class Checkpoint:
    """Checkpoints in a directory that every node sees, called step-<number>; the newest counts.

    Every worker writes its shards, and reads those that it needs now: the grid may be another one by then.
    """

    def __init__(self, directory: str, model: nn.Module, optimizer: torch.optim.Optimizer, sizes: str) -> None:
        self._directory, self._model, self._optimizer, self._sizes = directory, model, optimizer, sizes

    def _state(self) -> dict[str, Any]:
        return {
            "model": get_model_state_dict(self._model),
            "optimizer": get_optimizer_state_dict(self._model, self._optimizer, options=FLAT),
            "sizes": self._sizes,
        }

    def _steps(self) -> list[int]:
        names = os.listdir(self._directory) if os.path.exists(self._directory) else []
        return [int(name[5:]) for name in names if re.fullmatch("step-[0-9]+", name)]

    def save(self, step: int) -> None:
        """Write beside the old checkpoint, then rename: whoever is killed on the way, a whole one remains."""
        path = os.path.join(self._directory, f"step-{step}")
        old = self._steps()
        dcp.save(self._state(), checkpoint_id=f"{path}.new")
        if dist.get_rank() == 0:
            os.rename(f"{path}.new", path)
            for number in old:
                shutil.rmtree(os.path.join(self._directory, f"step-{number}"))

    def load(self) -> int:
        """How many steps have been made; 0 without a checkpoint."""
        newest = [max(self._steps(), default=0)]
        dist.broadcast_object_list(newest)  # one answer for all, where a network's file system gives several
        if not (step := newest[0]):
            return 0
        path = os.path.join(self._directory, f"step-{step}")
        state = self._state()
        dcp.load(state, checkpoint_id=path)
        set_model_state_dict(self._model, state["model"])
        set_optimizer_state_dict(self._model, self._optimizer, state["optimizer"], options=FLAT)
        if dist.get_rank() == 0:
            print(f"resumed after step {step} from {path}: saved by {state['sizes']}", flush=True)
        return step


def train(text: torch.Tensor, mesh: DeviceMesh, arguments: argparse.Namespace) -> None:
    pp, dp, tp = (mesh[axis] for axis in AXES)
    stage = Stage(pp.get_local_rank(), pp.size())
    for block in stage.blocks.values():
        parallelize_module(block, tp, CUTS)
    fully_shard(stage, mesh=dp, reshard_after_forward=False)
    # foreach=False: some parameters are cut over two axes, some over one, and torch updates no mixture at once.
    optimizer = torch.optim.Adam(stage.parameters(), lr=6e-3, foreach=False)
    sizes = " ".join(f"{axis}={mesh[axis].size()}" for axis in AXES)
    if dist.get_rank() == 0:
        print(f"mesh {sizes}", flush=True)
    checkpoint = Checkpoint(arguments.checkpoint, stage, optimizer, sizes) if arguments.checkpoint else None
    done = checkpoint.load() if checkpoint else 0

    pipeline = PipelineStage(stage, pp.get_local_rank(), pp.size(), torch.device("cpu"), group=pp.get_group())
    schedule = ScheduleGPipe(pipeline, MICROBATCHES, loss_fn=loss_of)
    for step in range(done + 1, arguments.steps + 1):
        letters, following = batch(text, step, dp.get_local_rank(), dp.size())
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        schedule.step(
            *([letters] if stage.is_first else []),
            target=following if stage.is_last else None,
            losses=losses if stage.is_last else None,
            return_outputs=False,
        )
        optimizer.step()
        if step % arguments.every:
            continue
        if stage.is_last:
            loss = torch.stack(losses).mean() / dp.size()
            dist.all_reduce(loss, group=dp.get_group())
            if dp.get_local_rank() == tp.get_local_rank() == 0:
                print(f"step {step} of {arguments.steps}: loss {loss.item():.3f}", flush=True)
        if checkpoint:
            checkpoint.save(step)


@record  # an exception reaches the launcher's failure report with its traceback
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints, and between two lines")
    parser.add_argument("--checkpoint", metavar="DIR", help="save there, and resume from there")
    licence = os.path.join(os.path.dirname(os.__file__), "LICENSE.txt")
    parser.add_argument("--text", metavar="FILE", default=licence, help="what it reads: the licence of Python")
    arguments = parser.parse_args()

    if "WORLD_SIZE" not in os.environ:
        raise SystemExit("no launcher has given this process a rank: start this with meshrun")
    torch.set_num_threads(1)  # the network is tiny: more threads would only wait for each other
    with open(arguments.text, encoding="ascii", errors="ignore") as file:
        text = torch.tensor([ord(letter) for letter in file.read()])
    dist.init_process_group("gloo")
    train(text, grid(), arguments)
    # FSDP and tensor parallelism keep the threads of their groups alive, and one that still has a tensor to give back
    # when the process ends aborts it (torch 2.13). While this one waits here, they can.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
