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
    "agent/notice": "{source} {notice}",
    "agent/supervisor-lost": "{error}",
    "agent/fork-server-failed": "{error}",
    "torchrun/ended": "torchrun has ended",
    "torchrun/workers-finished": "the workers of torchrun have finished",
    "torchrun/told-to-end": "torchrun was told to end",
    "torchrun/no-port": "{error}",
    # --- why no restart would help ---
    "agent/gave-up": lambda text: text or "a worker gave up",
    # --- how a worker failed, the same when it fails in the same way again ---
    "failure/class": "{failure_class}: {why}",
    "failure/claim": "{claim}",
    "failure/node-leaves": "this node was told to leave",
    "failure/no-program": "the program does not exist",
    "failure/no-memory": "not enough memory to start it",
    "failure/machine-limit": "this machine allows no more processes or files",
    "failure/not-started": "it could not be started",
    "failure/port-taken": "another process listens on the worker port",
    "failure/killed-for-memory": "the kernel killed it",
    "failure/illegal-access": "an illegal access on its GPU",
    "failure/gpu-error": "the kernel reports an error of its GPU",
    "failure/peer-lost": "it lost a peer",
    "failure/file-too-large": "a file exceeded the size limit",
    "failure/bad-arguments": "bad arguments",
    "failure/native-crash": "it crashed in native code",
    "failure/exception": "{type}",
    "failure/signal": "{signal}",
    "failure/exit-code": "exit code {exit_code}",
    # --- how a round ended ---
    "observe/ended": "{why}: {error}",
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
