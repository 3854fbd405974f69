"""What `benchmarks.ray_train` runs on either side: the same training of digits, and a driver of Ray Train.

    ray_programs.py train DIRECTORY     what meshrun starts, a process per node
    ray_programs.py trainer DIRECTORY   a driver with TorchTrainer, 2 to 3 workers of one CPU
    ray_programs.py forget DIRECTORY    end the actors that Ray Train keeps in a cluster for later jobs

Each worker appends a line per step to `DIRECTORY/steps_<rank>`: the time, the world size, its pid and the step. Rank 0
saves a checkpoint every 20 steps, and all resume from it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

SAVE_EVERY = 20  # steps
STEP_S = 0.05  # a pause in each step, so that few cores suffice for all


def train(directory: Path) -> None:
    """Train in the process group that exists, until the process is ended from outside."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from ddp_digits import digits, network, save

    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels = digits()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters())
    path, step = directory / "digits.pt", 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.module.load_state_dict(state["model"])
        step = state["step"]
    with (directory / f"steps_{rank}").open("a") as log:
        while True:
            mine = torch.randint(len(labels), (16,))
            optimizer.zero_grad()
            cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
            step += 1
            print(time.time(), world, os.getpid(), step, file=log, flush=True)
            if rank == 0 and step % SAVE_EVERY == 0:
                save(str(path), {"model": model.module.state_dict(), "step": step})
            time.sleep(STEP_S)


def train_in_own_group(directory: Path) -> None:
    """Train as a script under meshrun, or torchrun."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    train(directory)


def drive_ray_train(directory: Path) -> None:
    """Run Ray Train's elastic trainer until the process is ended from outside."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(address=os.environ["RAY_ADDRESS"], _node_ip_address=os.environ["BENCH_HEAD"])
    TorchTrainer(
        lambda: train(directory),
        scaling_config=ScalingConfig(
            num_workers=(2, 3), resources_per_worker={"agent": 1}, elastic_resize_monitor_interval_s=2.0
        ),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=str(directory / "storage"), failure_config=FailureConfig(max_failures=99)),
    ).fit()


def end_detached_actors(_: Path) -> None:
    """End the named actors that outlive their job.

    Ray Train's AutoscalingCoordinator holds what a driver that was stopped had asked for, for up to 180 s, in which the
    next trainer gets no worker (train/v2/_internal/execution/scaling_policy).
    """
    import ray

    ray.init(address=os.environ["RAY_ADDRESS"], _node_ip_address=os.environ["BENCH_HEAD"])
    for actor in ray.util.list_named_actors(all_namespaces=True):
        ray.kill(ray.get_actor(actor["name"], actor["namespace"]))


if __name__ == "__main__":
    {"train": train_in_own_group, "trainer": drive_ray_train, "forget": end_detached_actors}[sys.argv[1]](
        Path(sys.argv[2])
    )
