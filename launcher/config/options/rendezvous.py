"""The rules between the options of the agreement: where its nodes meet, who is who, and its limits and times.

With a store in the network (see `network`) the nodes meet there, and rank 0's node publishes a new port in every round.
On one machine the agreement runs on a store inside the agent, and torchrun 2.13's rules for a local rendezvous apply:
--standalone overrides the others; a static rendezvous passes MASTER_ADDR and MASTER_PORT to the workers unchanged, the
address of the endpoint before --master-addr; c10d uses neither. One rule differs: torchrun drops an --rdzv-id when it
falls back to a local rendezvous, here it always names the run, except with --standalone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from launcher.config.options import readers
from launcher.config.options.readers import Value
from launcher.config.options.table import ROWS
from launcher.model.errors import UsageError, suggest
from rendezvous.records import UNNAMED_RUN

if TYPE_CHECKING:
    from launcher.config.options.network import StoreConfig

Setting = float | str | bool
NodeRange = tuple[int, int | None]

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MASTER_OPTIONS = ("master-addr", "master-port")
# Options that concern other nodes only.
_CLUSTER_OPTIONS = (
    "target-nodes", "join-grace", "rejoin-timeout", "grow", "store-outage", "presence-proof",
    "on-finished", "interface", "port-range", "rdzv-prefix", "attempt",
)  # fmt: skip


def resolve_rendezvous(values: Mapping[str, Value], notes: list[str], nodes: NodeRange) -> dict[str, Any]:
    """Return the fields of sections that the rules determine, adding a note for every option without effect.

    `nodes`: minimum and maximum. Where the rounds assign the ranks, `node_rank`, `master_addr` and `master_port` are
    None. Raises UsageError.
    """
    backend, endpoint, run_id = values["rdzv-backend"], values["rdzv-endpoint"], values["rdzv-id"]
    rank = [values["node-rank"]] if values["node-rank"].read() else []
    unused = [*rank, *(values[name] for name in _MASTER_OPTIONS), values["store-port"]]
    values["store-port"].read()
    endpoint.read()  # before anything shows it
    conf = values["rdzv-conf"].read()
    nowhere = {"network": None, "node_rank": 0, "master_addr": None, "master_port": None}
    if values["standalone"].read():
        notes += list_conf_remarks(values["rdzv-conf"], conf, " on one node", readers.KNOWN_KEYS)
        others = [value for value in (backend, run_id, endpoint) if value.text != "c10d"]
        _note_unused(notes, [*others, *unused], f"beside {values['standalone']}")
        _note_unused(notes, _list_cluster_options(values), "on one machine")
        _require_one_node(values, notes, nodes)
        return {**nowhere, "rdzv_backend": "c10d", "rdzv_endpoint": None, "run_id": None, "nodes_max": 1}
    backend.read()
    name = run_id.read()
    if not endpoint.is_default or nodes[1] != 1 or backend.text not in ("static", "c10d"):
        from launcher.config.options.network import resolve_network, resolve_static  # not needed on one machine

        is_alone = nodes[1] == 1 or (nodes[0] == 1 and endpoint.text.endswith(":0"))  # no other node can know the port
        if (network := resolve_network(values, conf, is_alone=is_alone, notes=notes)) is not None:
            _note_ignored(values, conf, notes)
            _note_unused(notes, unused, "where nodes meet in a store, because each round assigns the ranks")
            found = {**nowhere, "network": network, "node_rank": None, "run_id": name or UNNAMED_RUN}
            return {**found, "rdzv_backend": "etcd"} if network.backend == "etcd" else found
        if _is_static_cluster(values, nodes):
            found = {"run_id": name or UNNAMED_RUN, **resolve_static(values, conf, nodes, notes)}
            _note_ignored(values, conf, notes)
            if not endpoint.is_default:
                _note_unused(notes, [values[name] for name in _MASTER_OPTIONS], f"beside {endpoint}")
            return found
    notes += list_conf_remarks(values["rdzv-conf"], conf, " on one node", readers.KNOWN_KEYS)
    _note_unused(notes, [values["store-port"], *_list_cluster_options(values)], "on one machine")
    master_addr, master_port = _resolve_alone(values, conf, rank, notes)
    if master_addr is not None:
        _note_unused(notes, [values["local-addr"]], "on one node when the master's address is given")
    # torchrun draws a name for a purely local rendezvous.
    is_local = backend.text == "static" and master_port is None
    _require_one_node(values, notes, nodes)
    return {
        **nowhere,
        "nodes_max": 1,
        "run_id": name or (None if is_local else UNNAMED_RUN),
        "master_addr": master_addr,
        "master_port": master_port or None,  # 0 means any free port
    }


def _resolve_alone(
    values: Mapping[str, Value], conf: Mapping[str, str], rank: list[Value], notes: list[str]
) -> tuple[str | None, int | None]:
    """Return where rank 0 of one machine listens, None for what is not given."""
    backend, endpoint = values["rdzv-backend"], values["rdzv-endpoint"]
    masters = [values[name] for name in _MASTER_OPTIONS]
    is_file = backend.text == "c10d" and conf.get("store_type", "").lower() == "file"
    here = None if endpoint.is_default or is_file else readers.parse_address(endpoint)
    if backend.text == "c10d":
        _note_unused(notes, [*rank, *masters], f"with {backend}")
        if here is not None and here[0] not in _LOOPBACK:
            _note_unused(notes, [endpoint], "on one node: its rendezvous is inside the agent")
        return None, None
    if rank:
        raise UsageError(f"{rank[0]}: a job of one node has only node rank 0")
    if here is None:
        return values["master-addr"].read(), values["master-port"].read()
    if here[1] is None:
        raise UsageError(f"{endpoint}: a static rendezvous needs HOST:PORT")
    _note_unused(notes, masters, f"beside {endpoint}")
    return here


def _require_one_node(values: Mapping[str, Value], notes: list[str], nodes: NodeRange) -> None:
    """Check that one node, this machine, is enough."""
    given, (nodes_min, nodes_max) = values["nnodes"], nodes
    if nodes_min > 1:
        if values["standalone"].text == "1":
            raise UsageError(f"{given} and {values['standalone']} exclude each other", "leave out one of them")
        raise UsageError(
            f"{given}: several nodes need a rendezvous",
            "set --rdzv-endpoint to the host name of one node, the same on all nodes",
        )
    if nodes_max != 1 and not given.is_default:
        notes.append(f"{given}: other machines cannot join, so the job starts on 1 node")


def _is_static_cluster(values: Mapping[str, Value], nodes: NodeRange) -> bool:
    """Whether the user has numbered several nodes. Raises UsageError if not, and one machine is not enough."""
    if values["nnodes"].is_default or nodes[1] == 1 or values["rdzv-backend"].text != "static":
        return False
    if any(not values[name].is_default for name in ("node-rank", "rdzv-endpoint", *_MASTER_OPTIONS)):
        return True
    if nodes[0] == 1:
        return False
    hint = "add --rdzv-backend c10d --rdzv-endpoint FIRST-NODE:29400 on every node (or --node-rank and --master-addr)"
    raise UsageError(f"{values['nnodes']}: several nodes need a rendezvous", hint)


def list_conf_remarks(value: Value, conf: Mapping[str, str], scope: str, keys: tuple[str, ...]) -> list[str]:
    """Return remarks on keys without effect (`keys`, and where), and on unknown ones."""
    unused = [key for key in conf if key in keys]
    see = "; use --lease-ttl to set how long a node may be silent" if {*unused} & {*readers.HEARTBEAT_KEYS} else ""
    notes = [f"{value.origin}: {', '.join(unused)} without effect{scope}{see}"] if unused else []
    for key in conf:
        if key not in readers.KNOWN_KEYS:
            question = suggest(key, {known: known for known in readers.KNOWN_KEYS})
            notes.append(f"{value.origin}: {key} is not known" + (f", {question}" if question else ""))
    return notes


def _note_ignored(values: Mapping[str, Value], conf: Mapping[str, str], notes: list[str]) -> None:
    notes += list_conf_remarks(values["rdzv-conf"], conf, " here", readers.IGNORED_KEYS)
    if not values["local-addr"].is_default:
        _note_unused(notes, [values["interface"]], f"beside {values['local-addr']}")


def _note_unused(notes: list[str], values: Iterable[Value], reason: str) -> None:
    given = [str(value) for value in values if not value.is_default and not value.is_detected]
    if given:
        notes.append(f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect {reason}")


def _list_cluster_options(values: Mapping[str, Value]) -> list[Value]:
    return [values[name] for name in _CLUSTER_OPTIONS if values[name].is_flag]


def resolve_settings(values: Mapping[str, Value], network: StoreConfig | None, nodes: NodeRange) -> dict[str, Setting]:
    """Return the fields of the agreement's Settings that options set; the others keep the agreement's own default.

    On one machine, which waits for no other node, only some have an effect. torchrun's names inside --rdzv-conf mean
    the same as two of the options, which override them; its close_timeout is how long the agent that serves the store
    stays for the others, once the job has ended. `nodes`: minimum and maximum. Raises UsageError.
    """
    rows = [option for option in ROWS if option.section == "rendezvous.settings"]
    given = [option for option in rows if not values[option.name].is_default]
    found: dict[str, Any] = {option.field_name: values[option.name].read() for option in given}
    if network is None:
        return {option.field_name: found[option.field_name] for option in given if option.name not in _CLUSTER_OPTIONS}
    if "grow" in found:
        found["grow"], delay_s = found["grow"]
        found |= {} if delay_s is None else {"grow_delay_s": delay_s}
    conf, origin = values["rdzv-conf"].read(), values["rdzv-conf"].origin
    labels = {key: f"{origin}: {key}={conf[key]}" for key in readers.TIME_FIELDS if key in conf}
    times = {readers.TIME_FIELDS[key]: readers.parse_seconds_text(conf[key], label) for key, label in labels.items()}
    found = {**times, **found}
    least, most = nodes
    target = found.get("target_nodes", 0)
    if target and not least <= float(target) <= (float("inf") if most is None else most):
        bounds = f"{least}:{'' if most is None else most}" if least != most else str(least)
        raise UsageError(f"{values['target-nodes']} is outside of --nnodes {bounds}")
    return found
