"""The sentence of any reason: the agreement's kinds, and those of the launcher, whose names have a slash.

A kind begins with the package that makes it. What the planner finds is a text so far, in a reason of the place where it
is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rendezvous.sentences import Sentence

SENTENCES: Mapping[str, Sentence] = {
    # --- why this node leaves ---
    "agent/signal": "stopped by {signal}",
    "agent/preemption-signal": "{signal} announces a preemption",
    "agent/slurm-end": "{signal} announces the end of the Slurm job",
    "agent/preemption-file": "{path} announces a preemption",
    "agent/supervisor-lost": "{error}",
    "agent/fork-server-failed": "{error}",
    "torchrun/ended": "torchrun has ended",
    "torchrun/workers-finished": "the workers of torchrun have finished",
    "torchrun/told-to-end": "torchrun was told to end",
    "torchrun/no-port": "{error}",
    # --- what a cloud announces of this machine, after the cloud's name ---
    "hardware/notice": "{source} {notice}",
    "hardware/spot-interruption": "announces a spot interruption ({action})",
    "hardware/rebalance": (
        "recommends replacing this machine, as an interruption is likely (rebalance recommendation)"
    ),
    "hardware/maintenance": "announces scheduled maintenance ({code})",
    "hardware/preemption": "announces the preemption of this machine",
    "hardware/host-maintenance": "announces host maintenance ({event})",
    "hardware/eviction": "announces the eviction of this machine",
    "hardware/deletion": "announces the deletion of this machine",
    "hardware/reboot": "announces a reboot of this machine",
    "hardware/move": "announces that this machine moves to another host",
    "hardware/pause": "announces that this machine pauses for some seconds",
    "hardware/event": "announces an event of this machine ({event})",
    "hardware/over": "{what}, for a time that is past",
    # --- why no restart would help ---
    "agent/gave-up": lambda text: text or "a worker gave up",
    # --- how a worker failed, the same when it fails in the same way again ---
    "logs/failure": "{failure_class}: {why}",
    "logs/claim": "{claim}",
    "diagnose/node-leaves": "this node was told to leave",
    "diagnose/no-program": "the program does not exist",
    "diagnose/no-memory": "not enough memory to start it",
    "diagnose/machine-limit": "this machine allows no more processes or files",
    "diagnose/not-started": "it could not be started",
    "diagnose/port-taken": "another process listens on the worker port",
    "diagnose/killed-for-memory": "the kernel killed it",
    "diagnose/illegal-access": "an illegal access on its GPU",
    "diagnose/gpu-error": "the kernel reports an error of its GPU",
    "diagnose/peer-lost": "it lost a peer",
    "diagnose/file-too-large": "a file exceeded the size limit",
    "diagnose/bad-arguments": "bad arguments",
    "diagnose/native-crash": "it crashed in native code",
    "diagnose/exception": "{type}",
    "logs/signal": "{signal}",
    "logs/exit-code": "exit code {exit_code}",
    # --- how a round ended ---
    "meshctl/error": "{error}",
    # --- the size of the job, and its plan ---
    "placement/size": "{text}",
    "placement/no-size": "{text}",
    "placement/all-slots": (lambda ranks: f"world of {ranks:,} rank{'s' * (ranks > 1)}: all slots of the only machine"),
    "placement/not-joined": "this machine has not joined yet",
    "placement/joined": lambda nodes, count: (
        f"joined: {', '.join(nodes)}" + (f" and {count - len(nodes)} more" if count > len(nodes) else "")
    ),
    "placement/none-joined": "no node has joined",
    "placement/unreadable-node": "{node} cannot take part: {error}",
    "placement/loopback-address": (
        "{node} publishes the address {address}, which is the loopback of every machine: give it --local-addr"
    ),
    "placement/unusable-node": "{text}",
    "placement/spare": "{text}",
    "placement/duplicate-name": "{count} nodes have the name {name}: give each its own --node-name",
    "placement/previous-unreadable": (
        "the assignments of the previous round cannot be read, so no rank keeps its place: {error}"
    ),
    "placement/plan": "{text}",
    "placement/remark": "{text}",
    "placement/impossible": "{error}",
}
