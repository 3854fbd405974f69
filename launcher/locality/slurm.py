"""The topology of Slurm, which sets every task's position if the cluster's owner has described the network.

SLURM_TOPOLOGY_ADDR is the path from the top to the node, `s8.s4.s0.tux1`, and SLURM_TOPOLOGY_ADDR_PATTERN the kind of
each part, `switch.switch.switch.node`. A part is empty where a node's branch has no switch at that height, and a list
in brackets where it has several: nodes with the same list are in the same domain. With topology/block it is
`block.node`. Without a description, topology/flat, there is only the node.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.locality.contract import Hints, Level
from launcher.locality.keys import TIERS, sort_levels
from launcher.model.locality_path import is_text

ADDRESS, PATTERN = "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"


class Source:
    name = "slurm"

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return bool(environ.get("SLURM_JOB_ID"))

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        address, pattern = environ.get(ADDRESS, ""), environ.get(PATTERN, "")
        *kinds, last = pattern.split(".")
        if not address or not pattern:
            reason = f"no {PATTERN if address else ADDRESS}: srun has not started this command, or Slurm is old"
        elif not is_text(address) or not is_text(pattern):
            reason = f"{ADDRESS} or {PATTERN} is too long or not text"
        elif last != "node":
            reason = f"{PATTERN}={pattern} does not end in a node"
        elif not kinds:
            reason = f"{PATTERN}=node: this cluster's network is not described to Slurm (topology/flat)"
        elif set(kinds) == {"switch"} or kinds == ["block"]:
            return _parse_address(address, kinds, environ.get("SLURMD_NODENAME", ""))
        else:
            reason = f"{PATTERN}={pattern} is neither a tree nor a block: it names no domains"
        return Hints((), reason)


def _parse_address(address: str, kinds: list[str], node: str) -> Hints:
    if node and address.endswith(f".{node}"):  # whose name may have dots of its own
        parts = [*address.removesuffix(f".{node}").split("."), node]
    else:
        parts = address.split(".", len(kinds))
    if len(parts) != len(kinds) + 1:
        return Hints((), f"{ADDRESS}={address} does not fit {'.'.join((*kinds, 'node'))}")
    if node and parts[-1] != node:
        return Hints((), f"{ADDRESS}={address} is about another node than {node}: variables of another task")
    domains = parts[-2::-1]  # nearest first; of a deeper tree the outermost are left out
    levels = [Level(tier, domain, ADDRESS) for tier, domain in zip(TIERS, domains, strict=False) if is_text(domain)]
    if not levels:
        return Hints((), f"{ADDRESS}={address} names no {kinds[0]}")
    return Hints(sort_levels(levels), f"{ADDRESS}={address}")
