"""Why this agent cannot begin here, and what to do: another run has the store, or another agent has the node."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from launcher.agent.startup.served_store import Occupant
from launcher.config.config import RendezvousOptions
from launcher.model.errors import TemporaryError, UsageError
from rendezvous import __version__
from rendezvous.errors import MeshrunError
from rendezvous.records import StoreOwner, name_own_run, name_run
from rendezvous.stores.addresses import split_address


def refuse_run(occupant: Occupant, own: StoreOwner, endpoint: str, port_option: str) -> MeshrunError:
    """Return the error for a store at `endpoint` that is another run's: TemporaryError if that has its nodes.

    Else UsageError: it still waits for nodes, and this agent may be meant as one of them. `own`: what this agent would
    write if it served. `port_option`: which sets the store's port.
    """
    owner = occupant.owner
    theirs, ours, option = name_run(owner.run_id), name_run(own.run_id), "--rdzv-id"
    if theirs == ours:
        theirs, ours = f"{theirs} with prefix {owner.prefix}", f"{ours} with prefix {own.prefix}"
        option = "LAUNCHER_RDZV_PREFIX"
    apart = f"give this run another port with {port_option}"
    if occupant.has_begun:
        sentence = f"the store at {endpoint} belongs to {theirs}, which is running; this agent belongs to {ours}"
        return TemporaryError(sentence, f"{apart}, or start it when {theirs} has ended")
    return UsageError(
        f"another agent, on node {owner.node_name}, waits at {endpoint} for {theirs}; this agent belongs to {ours}, "
        f"and all nodes of a run need the same {option}",
        f"give all nodes the same {option}; if these are two runs, {apart}",
    )


def refuse_serving(options: RendezvousOptions, endpoint: str, is_named_by_scheduler: bool) -> UsageError:
    """Return the error for a node that is to serve the store at `endpoint`, which is no address of it."""
    host = split_address(endpoint)[0]
    if is_named_by_scheduler:
        return UsageError(
            f"{options.origins['rdzv_endpoint']} names this node {host}, but this node does not have that address",
            "set --local-addr to the address at which others reach this node, or --rdzv-endpoint to another node",
        )
    if options.node_rank is None:
        return UsageError(
            f"is_host=1, but {endpoint} is not on this node", "set --rdzv-endpoint to the node that has is_host=1"
        )
    origin = options.origins["node_rank"]
    whose = "--node-rank is not set, so it is 0" if origin == "default" else f"this is node rank 0 ({origin})"
    return UsageError(
        f"{whose}, but the master, {host}, is not on this node",
        "give each node a different --node-rank, or use --rdzv-backend c10d; if others reach this node at that "
        "address, set --local-addr to an address at which it can listen",
    )


def refuse_second_server(endpoint: str) -> UsageError:
    """Return the error for a node that was set to serve the store alone, where one answers already."""
    return UsageError(
        f"this node would serve the store at {endpoint}, but another server already does",
        "set --rdzv-conf is_host=0 to join the job of that server",
    )


def refuse_devices(there: str, variable: str) -> TemporaryError:
    """Return the error for accelerators that another agent of this host has.

    `there`: says so; `variable`: makes other ones visible, "" if none is known.
    """
    own = f"devices of its own with {variable}" if variable else "devices of its own"
    return TemporaryError(
        f"{there}, which this agent would also use", f"give each agent {own}, or a --node-name to share them"
    )


def refuse_listener(error: OSError, address: str, first: int, last: int) -> MeshrunError:
    """Return the error for a node that cannot listen at this address of its own, on a port from `first` to `last`."""
    if error.errno == errno.EADDRNOTAVAIL:
        hint = "set --local-addr to an address of this node, or LAUNCHER_INTERFACE to an interface"
        return UsageError(f"{address} is not an address of this node", hint)
    if error.errno == errno.EADDRINUSE:
        return TemporaryError(
            f"all ports from {first} to {last} on {address} are in use", "set --port-range to other ports"
        )
    return TemporaryError(f"cannot listen on {address}: {error.strerror}")


def refuse_version(theirs: str, endpoint: str, node: str, port_option: str) -> UsageError:
    """Return the error for a store at `endpoint` that an agent of another version of meshrun serves."""
    return UsageError(
        f"the store at {endpoint} uses meshrun {theirs}, but node {node} has meshrun {__version__}",
        f"install meshrun {theirs} on every node, or give this run another port with {port_option}",
    )


def refuse_node(
    run_id: str,
    node_name: str,
    agent: str,
    attempts: tuple[int, int],
    holders: Sequence[int],
    refused: Mapping[int, str],
    limit_s: float,
) -> MeshrunError:
    """Return the error for a node lock that is still held: by `agent`, a pid, or by what an earlier one has left.

    `attempts`: that agent's and this one's, 0 if not counted. `refused`: why a process could not be killed, "" for one
    that was.
    """
    theirs, ours = attempts
    if agent and theirs < ours:
        sentence = f"agent {agent} of attempt {theirs} of {name_own_run(run_id)} is still on this node, as {node_name}"
        return TemporaryError(f"{sentence}: it was asked to leave", f"check what it waits for, or kill pid {agent}")
    if agent and theirs > ours > 0:
        run = name_own_run(run_id)
        return UsageError(
            f"this is attempt {ours}, but {run} is at attempt {theirs}: its agent {agent} is on this node"
        )
    if agent:
        sentence = f"an agent of {name_own_run(run_id)} is already on this node, as {node_name}: pid {agent}"
        return TemporaryError(sentence, "stop it first, or give each agent on this node a different --node-name")
    left = f"an earlier agent of {name_own_run(run_id)} has left processes that"
    if not holders:
        return TemporaryError(
            f"{left} hold its lock and cannot be seen: they belong to another user or are in another pid namespace",
            "stop them there, as root if necessary",
        )
    if reasons := {pid: refused[pid] for pid in holders if refused.get(pid)}:
        who = ", ".join(f"pid {pid} ({reason})" for pid, reason in reasons.items())
        return TemporaryError(f"{left} could not be killed: {who}", "stop them as root")
    sentence = f"{left} were killed but still exist after {limit_s:g} s: pid {', '.join(map(str, holders))}"
    return TemporaryError(sentence, "check whether they hang in a driver: ps -o pid,stat,wchan,cmd")
