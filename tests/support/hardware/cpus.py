"""Made-up machines: the files under /sys that tell a machine's CPUs, nodes and devices, written into a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def machine(
    root: Path,
    *,
    nodes: Sequence[str],
    threads: Mapping[int, str] | None = None,
    caches: Sequence[str] = (),
    sockets: Sequence[Sequence[int]] = (),
) -> Path:
    """A machine under `root`, which is given back. Lists of CPUs are the kernel's: 0-3,8.

    `nodes`: the CPUs of each NUMA node; `threads`: by CPU, who shares its core, itself alone by default; `caches`: the
    CPUs behind each last-level cache; `sockets`: the nodes on each socket, one by default.
    """
    folder = root / "sys/devices/system"
    for node, cpulist in enumerate(nodes):
        write(folder / f"node/node{node}/cpulist", cpulist)
        (socket,) = [number for number, there in enumerate(sockets) if node in there] or [0]
        for cpu in cpus(cpulist):
            write(folder / f"cpu/cpu{cpu}/topology/physical_package_id", socket)
            write(folder / f"cpu/cpu{cpu}/topology/thread_siblings_list", (threads or {}).get(cpu, cpu))
            write(folder / f"cpu/cpu{cpu}/cache/uevent", "")
            levels = [("Data", 1, cpu), ("Instruction", 1, cpu), ("Unified", 2, cpu), ("Instruction", 4, cpu)]
            levels += [("Unified", 3, cache) for cache in caches if cpu in cpus(cache)]  # type: ignore[misc]
            for index, (kind, level, sharers) in enumerate(levels if caches else ()):
                for name, value in (("type", kind), ("level", level), ("shared_cpu_list", sharers)):
                    write(folder / f"cpu/cpu{cpu}/cache/index{index}/{name}", value)
    return root


def cpus(cpulist: str | int) -> set[int]:
    """The numbers in a list of CPUs."""
    found: set[int] = set()
    for part in filter(None, str(cpulist).split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
