"""`meshctl measure` on every host of an emulated tree, and what is right there. As a program: a table of many runs.

    python -m tests.support.network.measuring --runs 20

Trees of 8, 12, 16 and 32 hosts whose order of joining says nothing of their places, also with two levels, uneven
leaves and none. A run is right if every domain of every level has exactly its hosts. All hosts are processes of one
machine: at 32 hosts, its cores are what is scarce.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.jobs.multi_node import HostEtcd
from tests.support.network.namespaces import run_ip
from tests.support.network.trees import MBIT, TreeNetwork, why_no_trees

MESHCTL = (sys.executable, "-m", "launcher.meshctl.main")
URGENT = ("nice", "-n", "-20")  # what else runs on this machine is no part of the network that is measured
LIMIT_S = 120.0
LEVELS = "spine,leaf"
SHUFFLE = 7


class Tree(NamedTuple):
    """`rates`: in Mbit/s, as TreeNetwork takes them."""

    paths: Sequence[tuple[str, ...]]
    levels: tuple[str, ...]
    rates: Mapping[str, int]


def leaves(*sizes: int) -> list[tuple[str, ...]]:
    return [(f"l{number}",) for number, size in enumerate(sizes) for _ in range(size)]


def spines(*sizes: Sequence[int]) -> list[tuple[str, ...]]:
    pairs = [(number, size) for number, spine in enumerate(sizes) for size in spine]
    return [(f"s{spine}", f"l{number}") for number, (spine, size) in enumerate(pairs) for _ in range(size)]


TREES = {
    "8 hosts, 4+4": Tree(leaves(4, 4), ("leaf",), {"host": 40, "leaf": 40}),
    "8 hosts, flat": Tree([()] * 8, (), {"host": 40}),
    "12 hosts, 5+5+2": Tree(leaves(5, 5, 2), ("leaf",), {"host": 40, "leaf": 40}),
    "12 hosts, 3x4, one slow": Tree(leaves(4, 4, 4), ("leaf",), {"host": 40, "leaf": 40, "leaf:l1": 20}),
    "16 hosts, 4x4": Tree(leaves(4, 4, 4, 4), ("leaf",), {"host": 40, "leaf": 80}),
    "16 hosts, 2x2x4": Tree(spines((4, 4), (4, 4)), ("spine", "leaf"), {"host": 40, "leaf": 80, "spine": 80}),
    "32 hosts, 4x8": Tree(leaves(8, 8, 8, 8), ("leaf",), {"host": 20, "leaf": 40}),
    "32 hosts, flat": Tree([()] * 32, (), {"host": 20}),
}


class Measured(NamedTuple):
    """What `meshctl measure` ended with on a host. `found` is its JSON, empty if it wrote none."""

    exit_code: int
    found: dict[str, Any]
    stderr: str


def place(tree: Tree) -> dict[str, tuple[str, ...]]:
    """Names of hosts, in the order in which they come, and their paths, which it says nothing of."""
    paths = list(tree.paths)
    random.Random(SHUFFLE).shuffle(paths)
    return {f"n{number}": path for number, path in enumerate(paths)}


class KnownNetwork(TreeNetwork):
    """A tree whose hosts know one another's links: 32 would overflow the kernel's one table of those it has to find."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(place(tree), tree.levels, {name: rate * MBIT for name, rate in tree.rates.items()})
        self.names = list(place(tree))
        lines = {}
        for name in self.names:
            link = json.loads(run_ip("-netns", self._namespace(name), "-json", "link", "show", "eth0"))[0]
            to = f"{self.host(name).address} lladdr {link['address']}"
            lines[name] = f"neigh replace {to} dev eth0 nud permanent\n"
        for name in self.names:
            words = ("ip", "-netns", self._namespace(name), "-batch", "-")
            others = "".join(line for other, line in lines.items() if other != name)
            subprocess.run(words, input=others, text=True, check=True, timeout=20)


class Measurement:
    """`meshctl measure` on hosts of a network, begun together."""

    def __init__(
        self,
        network: KnownNetwork,
        endpoint: str,
        *words: str,
        names: Sequence[str] = (),
        count: int | None = None,
        own: Mapping[str, Sequence[str]] | None = None,
        run_id: str = "measured",
    ) -> None:
        """`count`: of nodes that it waits for, if not of those that run it; `own`: further words for some hosts."""
        names = names or network.names
        common = ("measure", run_id, "--nnodes", str(count or len(names)), "--rdzv-endpoint", endpoint, "--json")
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("LAUNCHER_", "PET_"))}
        self.processes = {
            name: subprocess.Popen(
                [
                    *network.host(name).prefix,
                    *URGENT,
                    *MESHCTL,
                    *common,
                    "--levels",
                    LEVELS,
                    *words,
                    *(own or {}).get(name, ()),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environ,
            )
            for name in names
        }

    def wait(self) -> dict[str, Measured]:
        found = {}
        for name, process in self.processes.items():
            try:
                stdout, stderr = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                stdout, stderr = process.communicate()
            found[name] = Measured(process.returncode, json.loads(stdout or "{}"), stderr)
        return found


def list_domains(paths: Mapping[str, Sequence[str | None]]) -> list[set[frozenset[str]]]:
    """The hosts of every domain, for each level; the names of domains do not matter."""
    depth = len(next(iter(paths.values())))
    found = []
    for level in range(1, depth + 1):
        domains = defaultdict(set)
        for name, path in paths.items():
            domains[tuple(path[:level])].add(name)
        found.append({frozenset(one) for one in domains.values()})
    return found


def is_exact(tree: Tree, found: Mapping[str, Any]) -> bool:
    """Whether the tree was found, or no tree where there is none."""
    if not tree.levels:
        return found.get("verdict") == "flat"
    paths = {node["id"]: node["path"] for node in found.get("nodes", ())}
    return found.get("verdict") == "tree" and list_domains(paths) == list_domains(place(tree))


def find_errors(tree: Tree, found: Mapping[str, Any]) -> list[float]:
    """By which part each link's rate is off, for the links of an exact tree, those of hosts included."""
    said, errors = found["rates"], []
    true_paths = place(tree)
    for node in found["nodes"]:
        name = node["id"]
        paths = ["/".join(node["path"][:depth]) for depth in range(1, len(node["path"]) + 1)]
        links = [("host", name, name), *zip(found["levels"], paths, true_paths[name], strict=True)]
        for level, domain, true_domain in links:
            true = tree.rates.get(f"{level}:{true_domain}", tree.rates[level])
            rate = parse_rate(said.get(f"{level}:{domain}", said[level]))
            errors.append(abs(rate / (true * MBIT) - 1))
    return errors


def parse_rate(text: str) -> float:
    units = {"Gbit": 1e9, "Mbit": 1e6, "kbit": 1e3}
    return next(float(text.removesuffix(unit)) * size for unit, size in units.items() if text.endswith(unit))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", default="", help="a part of the names of trees")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="begin no further tree after this")
    given = parser.parse_args()
    if why_no_trees():
        print(f"skipped: {why_no_trees()}")
        return 0
    print(f"| {'tree':<24} | exact | s, median | s, most | rates off, mean | most |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    for name, tree in TREES.items():
        if given.only not in name:
            continue
        right, seconds, errors = 0, [], []
        with (
            tempfile.TemporaryDirectory() as folder,
            KnownNetwork(tree) as network,
            HostEtcd(network, Path(folder)) as at,
        ):
            for run in range(given.runs):
                ended = Measurement(network, at.endpoint, run_id=f"run-{run}").wait()
                found = next((one.found for one in ended.values() if one.found), {})
                exact = is_exact(tree, found)
                right += exact
                seconds.append(found.get("seconds", LIMIT_S))
                errors += find_errors(tree, found) if exact and tree.levels else []
                if not exact:
                    stderr = next(iter(ended.values())).stderr
                    print(f"{name}, run {run}: {found.get('sentences', stderr)}", file=sys.stderr, flush=True)
        off = f"{statistics.mean(errors):.1%} | {max(errors):.1%}" if errors else "- | -"
        times = f"{statistics.median(seconds):.1f} | {max(seconds):.1f}"
        print(f"| {name:<24} | {right} of {given.runs} | {times} | {off} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
