"""A static rendezvous of several nodes: the user numbers the nodes before any has joined.

Each node gets its number, and all get the address of number 0, torchrun's "master". So ranks follow the numbers, even
where another order would be shorter, and the workers get the master's address and port unchanged, in every round. The
agents still have to meet: number 0 serves the store beside that port, and the others wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcher.config.options.command_line import Value
from launcher.config.options.network import (
    StoreConfig,
    list_unused_settings,
    make_served_store,
    require_no_file_store,
)
from launcher.config.options.readers import parse_address, parse_count, parse_host, parse_port
from launcher.model.errors import UsageError
from rendezvous.stores.addresses import join_address

MASTER_ADDR = "127.0.0.1"  # torchrun's
MASTER_PORT = 29500  # torchrun's
_PORT_MAX = 65535
_MASTER_OPTIONS = ("master-addr", "master-port")
_RANK_OPTIONS = ("node-rank", "rdzv-endpoint", *_MASTER_OPTIONS)


class StaticRendezvous(NamedTuple):
    """`node_count`: all of them take part, always. `master_addr` and `master_port` are for the workers."""

    network: StoreConfig
    node_count: int
    node_rank: int
    master_addr: str
    master_port: int


def is_static(values: Mapping[str, Value], nodes_min: int) -> bool:
    """Whether these options are a static rendezvous, with an --nnodes of more than 1, and number the nodes.

    Raises UsageError if they do not and one machine is not enough.
    """
    nodes = values["nnodes"]
    if any(not values[name].is_default for name in _RANK_OPTIONS):
        return True
    if nodes_min == 1:
        return False
    raise UsageError(
        f"{nodes}: the nodes need a place to meet",
        "--rdzv-backend c10d --rdzv-endpoint HOST names one of them, or --node-rank, --master-addr and --master-port",
    )


# docs/internals/decisions/0022-static-node-ranks.md
def resolve_static(
    values: Mapping[str, Value], conf: Mapping[str, str], node_range: tuple[int, int | None], notes: list[str]
) -> StaticRendezvous:
    """Resolve the options; `node_range`: the minimum and maximum of nodes. Raises UsageError."""
    nodes, node_rank, (least, most) = values["nnodes"], parse_count(values["node-rank"]), node_range
    if most is None:
        raise UsageError(
            f"{nodes}: where each node has its number, how many there are must be said",
            "--rdzv-backend c10d --rdzv-endpoint HOST lets any number come",
        )
    if node_rank >= most:
        raise UsageError(f"{values['node-rank']}: the node ranks of {nodes} are 0 to {most - 1}")
    if least != most:
        notes.append(f"{nodes}: where each node has its number, all {most} take part; with c10d fewer may")
    master_addr, master_port = _choose_master(values, notes)
    require_no_file_store(values["rdzv-conf"], conf)
    notes += list_unused_settings(values, conf, ("etcd_prefix",))
    endpoint = join_address(master_addr, _choose_store_port(values["store-port"], master_port))
    network = make_served_store(values, conf, endpoint, is_host=node_rank == 0)
    return StaticRendezvous(network, most, node_rank, master_addr, master_port)


def _choose_master(values: Mapping[str, Value], notes: list[str]) -> tuple[str, int]:
    """Return where rank 0 listens: the endpoint overrides the other two, as under torchrun."""
    endpoint, addr, number = values["rdzv-endpoint"], values["master-addr"], values["master-port"]
    if not endpoint.is_default:
        found, at = parse_address(endpoint, endpoint.text)
        if at is None:
            raise UsageError(f"{endpoint}: a static rendezvous needs HOST:PORT")
        origin = endpoint
    else:
        found = MASTER_ADDR if addr.is_default else parse_host(addr, addr.text)
        at = MASTER_PORT if number.is_default else parse_port(number, number.text)
        origin = number
        if addr.is_default:
            notes.append(f"--master-addr is not given: only agents of this machine can meet at {MASTER_ADDR}")
    if not at:
        raise UsageError(f"{origin}: the other nodes must know the port, 0 is any", f"{MASTER_PORT} is usual")
    return found, at


def _choose_store_port(value: Value, master_port: int) -> int:
    store_port = master_port + 1 if value.is_default else parse_port(value, value.text)
    if store_port > _PORT_MAX:
        raise UsageError(f"the store would be on the port after {master_port}, which is the last", "see --store-port")
    if not store_port:
        raise UsageError(f"{value}: the other nodes must know the port, 0 is any")
    if store_port == master_port:
        raise UsageError(f"{value}: rank 0 listens on that port", "any other will do")
    return store_port
