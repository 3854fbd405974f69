"""The options of the agreement: torchrun's rendezvous options, and limits and times of ours, such as --grow.

They set the number of nodes, how these find each other, and the run's name.

With a store in the network (see `network`) the nodes meet there, and rank 0's node publishes a new port in every round;
but not where a static rendezvous has numbered the nodes beforehand (`static`). On one machine no node has to be found:
the agreement runs on a store inside the agent. The options still set where rank 0 listens and the run's name, and
torchrun 2.13's rules for that apply: --standalone overrides the others; a static rendezvous passes MASTER_ADDR and
MASTER_PORT to the workers unchanged, the address of the endpoint before --master-addr; c10d uses neither. One rule
differs: torchrun drops an --rdzv-id when it falls back to a local rendezvous, here it always names the run, except
with --standalone.

The limits and times of the agreement that options set become fields of its `Settings`. Only options that are set are
here; the others keep the agreement's own default, which is there with its reason. torchrun's names inside --rdzv-conf
mean the same as two of the options, which override them; its close_timeout is how long the agent that serves the store
stays for the others, once the job has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from launcher.config.options.command_line import Value, suggest
from launcher.config.options.network import (
    IGNORED_KEYS,
    KNOWN_KEYS,
    TIME_KEYS,
    StoreConfig,
    list_conf_remarks,
    parse_conf,
    resolve_network,
)
from launcher.config.options.readers import (
    make_choice_parser,
    parse_address,
    parse_count,
    parse_host,
    parse_integer,
    parse_name,
    parse_port,
    parse_seconds,
    parse_seconds_text,
)
from launcher.model.errors import UsageError
from rendezvous.values import NamedTuple

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class RendezvousOptions(NamedTuple):
    """The fields of `Config` that these options set. `network` None: one machine.

    `node_rank` None: the rounds assign the ranks. `node_count` 0: these options do not set the number of nodes.
    """

    standalone: bool
    backend: str
    endpoint: str | None
    conf: Mapping[str, str]
    network: StoreConfig | None
    run_id: str | None
    master_addr: str | None
    master_port: int | None
    node_rank: int | None = 0
    node_count: int = 0


def parse_node_range(value: Value, *, has_mesh: bool) -> tuple[int, int | None]:
    """Parse N, MIN:MAX or MIN:. Not set: one node; with a mesh, whose size counts, any number that fits it.

    Raises UsageError.
    """
    if value.is_default:
        return 1, None if has_mesh else 1
    first, colon, last = (part.strip() for part in value.text.partition(":"))
    least, most = parse_integer(first), parse_integer(last if colon else first)
    if least is None or (most is None and not (colon and not last)):
        raise UsageError(f"{value} is neither a number of nodes nor MIN:MAX", "on one machine leave it out")
    if least < 1:
        raise UsageError(f"{value}: at least 1 node is needed")
    if most is not None and least > most:
        raise UsageError(f"{value}: the least, {least}, is more than the most, {most}")
    return least, most


def is_local_endpoint(endpoint: Value, nodes_min: int) -> bool:
    """torchrun's convention on one machine, if that is enough: an endpoint whose port no other node can know."""
    return nodes_min == 1 and endpoint.text.endswith(":0")


def require_one_node(values: Mapping[str, Value], notes: list[str], nodes_min: int, nodes_max: int | None) -> int:
    """Check that one node, this machine, is enough. Raises UsageError if more are needed."""
    nodes = values["nnodes"]
    if nodes_min > 1:
        if values["standalone"].text == "1":
            raise UsageError(f"{nodes} and {values['standalone']} exclude each other", "--standalone is one node")
        raise UsageError(f"{nodes}: the nodes need a place to meet", "--rdzv-endpoint HOST names one of them")
    if nodes_max != 1 and not nodes.is_default:
        notes.append(f"{nodes}: only this machine can join, the job starts at once on 1 node")
    return 1


def resolve_rendezvous(
    values: Mapping[str, Value], notes: list[str], *, standalone: bool, nodes: tuple[int, int | None], is_alone: bool
) -> RendezvousOptions:
    """Apply the rules above, adding a note for every option that has no effect. Raises UsageError.

    `nodes`: minimum and maximum. `is_alone`: it is one, by an option or by default.
    """
    backend, run_id = values["rdzv-backend"], values["rdzv-id"]
    masters = [values["master-addr"], values["master-port"]]
    rank = [values["node-rank"]] if parse_count(values["node-rank"]) else []
    store_port = [values["store-port"]]
    if not store_port[0].is_default:
        parse_port(store_port[0], store_port[0].text)
    conf = parse_conf(values["rdzv-conf"])
    if standalone:
        notes += list_conf_remarks(values["rdzv-conf"], conf, " on one node", KNOWN_KEYS)
        others = [value for value in (backend, run_id, values["rdzv-endpoint"]) if value.text != "c10d"]
        _note_unused(notes, [*others, *rank, *masters, *store_port], f"beside {values['standalone']}")
        _note_unused(notes, list_cluster_options(values), "on one machine")
        return RendezvousOptions(True, "c10d", None, conf, None, None, None, None)
    _require_backend(backend)
    parse_name(run_id)
    meets_in = resolve_network(values, conf, is_alone=is_alone, notes=notes)
    if meets_in is not None:
        _note_ignored(values, conf, notes)
        _note_unused(notes, [*rank, *masters, *store_port], "where nodes meet in a store: the round says who is who")
        text = "etcd" if meets_in.backend == "etcd" else backend.text
        endpoint = values["rdzv-endpoint"].text
        return RendezvousOptions(
            False, text, endpoint, conf, meets_in, run_id.text_if_given or "none", None, None, None
        )
    if (found := _find_static_cluster(values, conf, nodes, notes)) is not None:
        return found
    notes += list_conf_remarks(values["rdzv-conf"], conf, " on one node", KNOWN_KEYS)
    _note_unused(notes, [*store_port, *list_cluster_options(values)], "on one machine")
    is_file = backend.text == "c10d" and conf.get("store_type", "").lower() == "file"
    is_named = not values["rdzv-endpoint"].is_default and not is_file
    here = parse_address(values["rdzv-endpoint"], values["rdzv-endpoint"].text) if is_named else None
    master_addr, master_port = None, None
    if backend.text == "c10d":
        _note_unused(notes, [*rank, *masters], f"with {backend}")
        if here is not None and here[0] not in _LOOPBACK:
            _note_unused(notes, [values["rdzv-endpoint"]], "on one node: its rendezvous is inside the agent")
    elif rank:
        raise UsageError(f"{rank[0]}: a job of one node has only node rank 0")
    elif here is not None:
        master_addr, master_port = here
        if master_port is None:
            raise UsageError(f"{values['rdzv-endpoint']}: a static rendezvous needs HOST:PORT")
        _note_unused(notes, masters, f"beside {values['rdzv-endpoint']}")
    else:
        master_addr = None if masters[0].is_default else parse_host(masters[0], masters[0].text)
        master_port = None if masters[1].is_default else parse_port(masters[1], masters[1].text)
    if master_addr is not None:
        _note_unused(notes, [values["local-addr"]], "on one node when the master's address is given")
    # torchrun names a run "none" unless it draws a name, as for a purely local rendezvous.
    is_local = backend.text == "static" and master_port is None
    return RendezvousOptions(
        standalone=False,
        backend=backend.text,
        endpoint=values["rdzv-endpoint"].text_if_given,
        conf=conf,
        network=None,
        run_id=run_id.text_if_given or (None if is_local else "none"),
        master_addr=master_addr,
        master_port=master_port or None,  # 0 means any free port
    )


def _note_ignored(values: Mapping[str, Value], conf: Mapping[str, str], notes: list[str]) -> None:
    notes += list_conf_remarks(values["rdzv-conf"], conf, " here", IGNORED_KEYS)
    if not values["local-addr"].is_default:
        _note_unused(notes, [values["interface"]], f"beside {values['local-addr']}")


def _find_static_cluster(
    values: Mapping[str, Value], conf: Mapping[str, str], nodes: tuple[int, int | None], notes: list[str]
) -> RendezvousOptions | None:
    """Return the nodes that the user has numbered; None without a static rendezvous."""
    if values["nnodes"].is_default or nodes[1] == 1 or values["rdzv-backend"].text != "static":
        return None
    from launcher.config.options.static import is_static, resolve_static  # not needed on one machine

    if not is_static(values, nodes[0]):
        return None
    found = resolve_static(values, conf, nodes, notes)
    _note_ignored(values, conf, notes)
    if not values["rdzv-endpoint"].is_default:
        masters = [values["master-addr"], values["master-port"]]
        _note_unused(notes, masters, f"beside {values['rdzv-endpoint']}")
    return RendezvousOptions(
        standalone=False,
        backend="static",
        endpoint=values["rdzv-endpoint"].text_if_given,
        conf=conf,
        network=found.network,
        run_id=values["rdzv-id"].text_if_given or "none",
        master_addr=found.master_addr,
        master_port=found.master_port,
        node_rank=found.node_rank,
        node_count=found.node_count,
    )


def _note_unused(notes: list[str], values: Iterable[Value], reason: str) -> None:
    given = [str(value) for value in values if not value.is_default and not value.is_detected]
    if given:
        notes.append(f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect {reason}")


def _require_backend(value: Value) -> None:
    known = ("static", "c10d", "etcd", "etcd-v2")
    if value.text not in known:
        raise UsageError(
            f"{value}: no such rendezvous backend",
            suggest(value.text, {name: name for name in known}) or "on one node leave it out",
        )


Setting = float | str | bool

# Those that have an effect on one machine too.
_STANDALONE_OPTIONS = ("restart-window", "min-round-time", "start-timeout")
_CONF_FIELDS = {
    "timeout": "start_timeout_s",
    "join_timeout": "start_timeout_s",
    "last_call_timeout": "join_grace_s",
    "close_timeout": "farewell_s",
}


def _make_bool_parser(true_word: str, false_word: str) -> Callable[[Value], bool]:
    return lambda given: make_choice_parser(true_word, false_word)(given) == true_word


# option -> field of Settings, and the parser of its text
_SETTINGS: Mapping[str, tuple[str, Callable[[Value], Setting]]] = {
    "target-nodes": ("target_nodes", parse_count),
    "start-timeout": ("start_timeout_s", parse_seconds),
    "join-grace": ("join_grace_s", parse_seconds),
    "rejoin-timeout": ("rejoin_timeout_s", parse_seconds),
    "grow": ("grow", make_choice_parser("never", "delay", "checkpoint")),
    "grow-delay": ("grow_delay_s", parse_seconds),
    "restart-window": ("restart_window_s", parse_seconds),
    "min-round-time": ("min_round_time_s", parse_seconds),
    "store-outage": ("continues_without_store", _make_bool_parser("continue", "stop")),
    "presence-proof": ("presence_proof", _make_bool_parser("on", "off")),
    "on-finished": ("opens_next_job", _make_bool_parser("next", "exit")),
}
SETTINGS_OPTIONS = tuple(_SETTINGS)


def parse_settings(
    values: Mapping[str, Value], conf: Mapping[str, str], nodes: tuple[int, int | None]
) -> dict[str, Setting]:
    """Return the settings that these options set: field -> value. `nodes`: minimum and maximum. Raises UsageError."""
    times = {
        _CONF_FIELDS[key]: parse_seconds_text(conf[key], f"{values['rdzv-conf'].origin}: {key}={conf[key]}")
        for key in TIME_KEYS
        if key in conf
    }
    found: dict[str, Setting] = {**times, **_parse_options(values, SETTINGS_OPTIONS)}
    least, most = nodes
    target = found.get("target_nodes", 0)
    if target and not least <= float(target) <= (float("inf") if most is None else most):
        bounds = f"{least}:{'' if most is None else most}" if least != most else str(least)
        raise UsageError(f"{values['target-nodes']} is outside of --nnodes {bounds}")
    if found.get("grow", "delay") != "delay" and "grow_delay_s" in found:
        raise UsageError(f"{values['grow-delay']} and {values['grow']} contradict each other", "give one of them")
    return found


def parse_standalone_settings(values: Mapping[str, Value]) -> dict[str, Setting]:
    """Return the same on one machine, which waits for no other node. Raises UsageError for invalid values in any."""
    _parse_options(values, SETTINGS_OPTIONS)
    return _parse_options(values, _STANDALONE_OPTIONS)


def parse_lease_ttl(value: Value) -> float | None:
    """Return how long an unreachable node stays a member; None if not set. Raises UsageError."""
    if value.is_default:
        return None
    ttl_s = parse_seconds(value)
    if ttl_s == 0:
        raise UsageError(f"{value}: a lease of no length cannot be kept", "leave it out to run without")
    return ttl_s


def _parse_options(values: Mapping[str, Value], names: Iterable[str]) -> dict[str, Setting]:
    rows = [(values[name], *_SETTINGS[name]) for name in names]
    return {field: read(value) for value, field, read in rows if not value.is_default}


def list_cluster_options(values: Mapping[str, Value]) -> list[Value]:
    """Return options that are set and concern other nodes only."""
    names = (
        *(name for name in SETTINGS_OPTIONS if name not in _STANDALONE_OPTIONS),
        "interface",
        "port-range",
        "rdzv-prefix",
        "attempt",
    )
    return [values[name] for name in names if not values[name].is_default and values[name].is_flag]
