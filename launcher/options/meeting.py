"""What torchrun's rendezvous options mean: how many nodes there are, how they find each other, what the run is called.

With a store in the network (`network` says when) the nodes meet there, and rank 0's node says afresh in every round
where it listens; but not where a static rendezvous has numbered the nodes beforehand (`static`). On one machine nobody
has to be found: the agreement runs on a store inside the agent. The options still say where rank 0 listens and what the
run is called, and torchrun 2.13's rules for that are kept: --standalone overrides the others; a static rendezvous hands
MASTER_ADDR and MASTER_PORT to the workers unchanged, the address of the endpoint before --master-addr; c10d uses
neither. One rule is not kept: torchrun forgets an --rdzv-id when it falls back to a local rendezvous, here it always
names the run, except with --standalone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from launcher.errors import UsageError
from launcher.options import Given, did_you_mean
from launcher.options.network import IGNORED, KNOWN, Network, network, read_conf, remarks
from launcher.options.reading import address, count, host, name, port, whole_number
from launcher.options.terms import without_effect_alone
from rendezvous.values import NamedTuple

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Meeting(NamedTuple):
    """The fields of `Config` that these options make. `network` None: one machine.

    `node_rank` None: the rounds say who is who. `node_count` 0: these options do not say how many nodes take part.
    """

    standalone: bool
    backend: str
    endpoint: str | None
    conf: Mapping[str, str]
    network: Network | None
    run_id: str | None
    master_addr: str | None
    master_port: int | None
    node_rank: int | None = 0
    node_count: int = 0


def node_range(given: Given, *, has_mesh: bool) -> tuple[int, int | None]:
    """N, MIN:MAX or MIN:. Not given: one node; with a mesh, whose size is what counts, any number that fits it.

    Raises UsageError.
    """
    if given.is_default:
        return 1, None if has_mesh else 1
    first, colon, last = (part.strip() for part in given.text.partition(":"))
    least, most = whole_number(first), whole_number(last if colon else first)
    if least is None or (most is None and not (colon and not last)):
        raise UsageError(f"{given} is neither a number of nodes nor MIN:MAX", "on one machine leave it out")
    if least < 1:
        raise UsageError(f"{given}: at least 1 node is needed")
    if most is not None and least > most:
        raise UsageError(f"{given}: the least, {least}, is more than the most, {most}")
    return least, most


def is_local(endpoint: Given, least: int) -> bool:
    """torchrun's habit on one machine, where that is enough: an endpoint whose port nobody else can know."""
    return least == 1 and endpoint.text.endswith(":0")


def require_one(given: Mapping[str, Given], notes: list[str], least: int, most: int | None) -> int:
    """This machine is all there will be: one node. Raises UsageError if more are needed."""
    nodes = given["nnodes"]
    if least > 1:
        if given["standalone"].text == "1":
            raise UsageError(f"{nodes} and {given['standalone']} exclude each other", "--standalone is one node")
        raise UsageError(f"{nodes}: the nodes need a place to meet", "--rdzv-endpoint HOST names one of them")
    if most != 1 and not nodes.is_default:
        notes.append(f"{nodes}: only this machine can join, the job starts at once on 1 node")
    return 1


def meet(
    given: Mapping[str, Given], notes: list[str], *, standalone: bool, nodes: tuple[int, int | None], is_alone: bool
) -> Meeting:
    """Apply the rules above, adding a note for every option that has no effect. Raises UsageError.

    `nodes`: the least and the most. `is_alone`: it is one, by what is given or by default.
    """
    backend, run_id = given["rdzv-backend"], given["rdzv-id"]
    masters = [given["master-addr"], given["master-port"]]
    rank = [given["node-rank"]] if count(given["node-rank"]) else []
    store_port = [given["store-port"]]
    if not store_port[0].is_default:
        port(store_port[0], store_port[0].text)
    conf = read_conf(given["rdzv-conf"])
    if standalone:
        notes += remarks(given["rdzv-conf"], conf, " on one node", KNOWN)
        others = [value for value in (backend, run_id, given["rdzv-endpoint"]) if value.text != "c10d"]
        _unused(notes, [*others, *rank, *masters, *store_port], f"beside {given['standalone']}")
        _unused(notes, without_effect_alone(given), "on one machine")
        return Meeting(True, "c10d", None, conf, None, None, None, None)
    _require_backend(backend)
    name(run_id)
    meets_in = network(given, conf, is_alone=is_alone, notes=notes)
    if meets_in is not None:
        _remark_several(given, conf, notes)
        _unused(notes, [*rank, *masters, *store_port], "where nodes meet in a store: the round says who is who")
        text = "etcd" if meets_in.backend == "etcd" else backend.text
        endpoint = given["rdzv-endpoint"].text
        return Meeting(False, text, endpoint, conf, meets_in, run_id.text_if_given or "none", None, None, None)
    if _is_static_of_several(given, nodes):
        return _static(given, conf, nodes, notes)
    notes += remarks(given["rdzv-conf"], conf, " on one node", KNOWN)
    _unused(notes, [*store_port, *without_effect_alone(given)], "on one machine")
    is_file = backend.text == "c10d" and conf.get("store_type", "").lower() == "file"
    is_named = not given["rdzv-endpoint"].is_default and not is_file
    here = address(given["rdzv-endpoint"], given["rdzv-endpoint"].text) if is_named else None
    master_addr, master_port = None, None
    if backend.text == "c10d":
        _unused(notes, [*rank, *masters], f"with {backend}")
        if here is not None and here[0] not in _LOOPBACK:
            _unused(notes, [given["rdzv-endpoint"]], "on one node: its rendezvous is inside the agent")
    elif rank:
        raise UsageError(f"{rank[0]}: a job of one node has only node rank 0")
    elif here is not None:
        master_addr, master_port = here
        if master_port is None:
            raise UsageError(f"{given['rdzv-endpoint']}: a static rendezvous needs HOST:PORT")
        _unused(notes, masters, f"beside {given['rdzv-endpoint']}")
    else:
        master_addr = None if masters[0].is_default else host(masters[0], masters[0].text)
        master_port = None if masters[1].is_default else port(masters[1], masters[1].text)
    if master_addr is not None:
        _unused(notes, [given["local-addr"]], "on one node when the master's address is given")
    # torchrun calls a run "none" unless it draws a name, which it does for a purely local rendezvous.
    is_local = backend.text == "static" and master_port is None
    return Meeting(
        standalone=False,
        backend=backend.text,
        endpoint=given["rdzv-endpoint"].text_if_given,
        conf=conf,
        network=None,
        run_id=run_id.text_if_given or (None if is_local else "none"),
        master_addr=master_addr,
        master_port=master_port or None,  # 0 asks for any free port
    )


def _remark_several(given: Mapping[str, Given], conf: Mapping[str, str], notes: list[str]) -> None:
    notes += remarks(given["rdzv-conf"], conf, " here", IGNORED)
    if not given["local-addr"].is_default:
        _unused(notes, [given["interface"]], f"beside {given['local-addr']}")


def _is_static_of_several(given: Mapping[str, Given], nodes: tuple[int, int | None]) -> bool:
    if given["nnodes"].is_default or nodes[1] == 1 or given["rdzv-backend"].text != "static":
        return False
    from launcher.options.static import is_static  # not on the way to the first worker of one machine

    return is_static(given, nodes[0])


def _static(
    given: Mapping[str, Given], conf: Mapping[str, str], nodes: tuple[int, int | None], notes: list[str]
) -> Meeting:
    from launcher.options.static import static

    found = static(given, conf, nodes, notes)
    _remark_several(given, conf, notes)
    if not given["rdzv-endpoint"].is_default:
        masters = [given["master-addr"], given["master-port"]]
        _unused(notes, masters, f"beside {given['rdzv-endpoint']}")
    return Meeting(
        standalone=False,
        backend="static",
        endpoint=given["rdzv-endpoint"].text_if_given,
        conf=conf,
        network=found.network,
        run_id=given["rdzv-id"].text_if_given or "none",
        master_addr=found.master_addr,
        master_port=found.master_port,
        node_rank=found.node_rank,
        node_count=found.node_count,
    )


def _unused(notes: list[str], values: Iterable[Given], why: str) -> None:
    given = [str(value) for value in values if not value.is_default and not value.is_detected]
    if given:
        notes.append(f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect {why}")


def _require_backend(given: Given) -> None:
    known = ("static", "c10d", "etcd", "etcd-v2")
    if given.text not in known:
        raise UsageError(
            f"{given}: no such rendezvous backend",
            did_you_mean(given.text, {name: name for name in known}) or "on one node leave it out",
        )
