"""What a worker does in the checks on a GPU: `worker.py hold BYTES`, `collect BACKEND`, `hang` or `jax`.

A worker writes what it sees to `seen-ROUND-RANK.json` in its directory, and goes on until there is a file `finish`.
With GPU_PRETEND the device is a directory: memory is a file named by the process that holds it, and a kernel that does
not end is a loop. That tries the checks themselves where no GPU is.
"""

import json
import os
import sys
import time

BEGAN_S = time.monotonic()
HAD_TORCH = "torch" in sys.modules  # forked with it in memory
KERNEL_S = 100  # ends by itself some day, should nothing else end it
CYCLES_PER_S = 2_000_000_000  # about the clock of an H100; a slower device takes longer
RANK, ROUND = int(os.environ.get("RANK", "0")), int(os.environ.get("LAUNCHER_ROUND", "0"))  # also imported elsewhere
VARIABLES = ("LOCAL_RANK", "LAUNCHER_LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "JAX_LOCAL_DEVICE_IDS")


class Cuda:
    """The device of this rank, by torch."""

    def __init__(self):
        import torch

        self.torch = torch
        self.ready_s = time.monotonic()
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        self.kept = [torch.ones(1, device="cuda")]
        torch.cuda.synchronize()

    def tell(self):
        properties = self.torch.cuda.get_device_properties(self.torch.cuda.current_device())
        found = {"devices": self.torch.cuda.device_count(), "uuid": f"GPU-{getattr(properties, 'uuid', '')}"}
        return {**found, "sum": float(self.torch.arange(1000, device="cuda").sum())}

    def allocate(self, count):
        """Take so many bytes and write to them. Raises MemoryError."""
        try:
            self.kept.append(self.torch.full((count,), 1, dtype=self.torch.uint8, device="cuda"))
            self.torch.cuda.synchronize()
        except self.torch.cuda.OutOfMemoryError as error:
            self.torch.cuda.empty_cache()
            raise MemoryError(str(error).partition("\n")[0]) from None

    def compute_for_ever(self):
        self.torch.cuda._sleep(KERNEL_S * CYCLES_PER_S)
        self.torch.cuda.synchronize()


class Pretended:
    """The same of a directory."""

    TOTAL = 1000

    def __init__(self):
        self.ready_s = time.monotonic()
        self.folder = os.environ["GPU_PRETEND"]

    def tell(self):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return {"devices": 1, "uuid": visible if visible.startswith("GPU-") else "GPU-aa11-0", "sum": 499500.0}

    def allocate(self, count):
        if used(self.folder) + count > self.TOTAL:
            raise MemoryError("out of pretended memory")
        with open(f"{self.folder}/{os.getpid()}", "w") as file:
            file.write(str(count))

    def compute_for_ever(self):
        until = time.monotonic() + KERNEL_S
        while time.monotonic() < until:
            pass


def used(folder):
    """Bytes that living processes hold of the pretended device."""
    return sum(read_held(folder, name) for name in os.listdir(folder))


def read_held(folder, pid):
    try:
        with open(f"/proc/{pid}/stat") as stat, open(f"{folder}/{pid}") as file:
            is_alive = stat.read().rpartition(")")[2].split()[0] not in "ZX"
            return int(file.read() or 0) if is_alive else 0
    except OSError:
        return 0


def open_device():
    return Pretended() if "GPU_PRETEND" in os.environ else Cuda()


def tell(**found):
    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    seen = {"pid": os.getpid(), "began_s": BEGAN_S, "told_s": time.monotonic(), "had_torch": HAD_TORCH, **found}
    name = f"seen-{ROUND}-{RANK}.json"
    with open(f"{name}.part", "w") as file:
        json.dump({**seen, "variables": variables}, file)
    os.rename(f"{name}.part", name)


def wait_for_the_end():
    while not os.path.exists("finish"):
        time.sleep(0.05)


def hold(count):
    """Hold so much memory. What is not free yet is asked for again for 20 s."""
    device = open_device()
    opened_s, refusals = time.monotonic(), 0
    while True:
        try:
            device.allocate(int(count))
            break
        except MemoryError:
            refusals += 1
            if time.monotonic() > opened_s + 20:
                raise
            time.sleep(0.02)
    times = {"imported_s": device.ready_s, "opened_s": opened_s}
    tell(**device.tell(), **times, refusals=refusals)
    wait_for_the_end()


def collect(backend):
    """Ten all-reduces, all of them known to the recorder."""
    import torch
    import torch.distributed as dist

    device = "cuda" if backend == "nccl" else "cpu"
    dist.init_process_group(backend)
    for _ in range(10):
        dist.all_reduce(torch.ones(1000, device=device))
    if device == "cuda":
        torch.cuda.synchronize()
    library = sys.modules["torch._C._distributed_c10d"]
    tell(torch=torch.__version__, can_serve=hasattr(library, "_WorkerServer"))
    wait_for_the_end()
    dist.destroy_process_group()


def hang():
    """In the first round rank 1 waits for a kernel that does not end, and the others for rank 1 in an all-reduce."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    device = open_device()
    dist.all_reduce(torch.ones(1))
    tell(**device.tell())
    if ROUND == 1 and RANK == 1:
        device.compute_for_ever()
    dist.all_reduce(torch.ones(1))
    wait_for_the_end()
    dist.destroy_process_group()


def jax():
    """A sum on the device, with as much memory as JAX takes by itself."""
    import jax
    import jax.numpy

    jax.distributed.initialize()
    total = float(jax.numpy.arange(1000.0).sum())
    devices = [f"{device.platform} {device.device_kind}" for device in jax.local_devices()]
    tell(jax=jax.__version__, devices=devices, sum=total, processes=jax.process_count())
    wait_for_the_end()


if __name__ == "__main__":
    {"hold": hold, "collect": collect, "hang": hang, "jax": jax}[sys.argv[1]](*sys.argv[2:])
