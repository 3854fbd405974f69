"""The sentence of each kind of reason: what people read, once, and that every reason that is made has one."""

from __future__ import annotations

import ast
import inspect
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.model import sentences as launcher_sentences
from launcher.model.errors import describe as describe_any
from launcher.model.errors import give_hint as give_any_hint
from rendezvous import sentences
from rendezvous.reasons import Reason
from rendezvous.sentences import HINTS, SENTENCES, describe, give_hint

ROOT = Path(__file__).parents[2]
TABLES = {**SENTENCES, **launcher_sentences.SENTENCES}
A, AB = (Reason.of("nodes", names=names, count=len(names)) for names in (("a",), ("a", "b")))
ENOUGH, LOST = Reason.of("store-error", error="2 nodes are enough"), Reason.of("lost", nodes=A, round=4)
USED = Reason.of("restarts-used", used=3, allowed=3)


def because(kind: str, /, **values: Any) -> Reason:
    return Reason.of(kind, **values)


ADD_NODES = "add nodes, or ask for fewer nodes or a smaller mesh"
RAISE_NNODES = "raise --nnodes to 2 or more, or ask for a smaller mesh"
NAMES = because("placement/names", names=("a", "b"), count=5)
FIXED, SMALL = because("placement/fixed-size", mesh="dp=2,tp=8"), because("placement/too-small", ranks=8)
SHORT = because("placement/nodes-missing", mesh="dp=2,tp=8", nodes=2, devices=8, present=1, most=0)
SAME_RANK = because("placement/same-node-rank", node="a", other="b", rank=1)
UNSPLIT = because("placement/unsplit", ranks=210, nodes=30, now_ranks=252, now_nodes=32, cost=3920.0, now_cost=9328.0)


EXAMPLES = [
    (A, "node a"),
    (because("nodes", names=("a", "b", "c", "d"), count=7), "nodes a, b, c, d and 3 more"),
    (because("running", round=4, ranks=1, is_spare=False), "round 4 runs 1 rank"),
    (because("running", round=4, ranks=2, is_spare=True), "round 4 runs 2 ranks; this node is a spare"),
    (because("spare", round=4), "round 4 runs without this node, which is a spare"),
    (because("sealed", round=4, why=ENOUGH), "round 4: 2 nodes are enough"),
    (because("all-succeeded"), "all workers succeeded"),
    (because("gone", nodes=A), "node a gone: no process listens there any more"),
    (LOST, "node a lost in round 4"),
    (because("isolated", nodes=AB, for_s=10.0, round=0), "nodes a, b cut off: store reachable, but no peer for 10 s"),
    (
        because("leader-isolated", node="a", reached=1, others=4, round=4),
        "a leads, but reaches only 1 of 4 other nodes in round 4",
    ),
    (because("leader-leaves"), "this node leaves, and another one takes over"),
    (because("failed", nodes=AB, round=4), "a worker failed on nodes a, b in round 4"),
    (because("failed-while-leaving", leaving=A, why=LOST), "node a leaving, and node a lost in round 4"),
    (because("leaving", nodes=A, round=4), "node a leaving in round 4"),
    (because("gathering-departures", round=4), "waiting for more nodes to leave round 4"),
    (because("stopping", round=4, why=LOST, nodes=A), "stopping round 4 (node a lost in round 4): waiting for node a"),
    (because("not-stopped", nodes=A, round=4), "node a did not stop round 4 in time"),
    (because("not-stopped-here", round=4), "this node did not stop round 4 in time"),
    (
        because("round-awaits-return", nodes=A, round=4),
        "waiting for node a to register again after a store outage in round 4",
    ),
    (
        because("next-round-awaits-return", nodes=A),
        "waiting for node a to register again after a store outage before the next round",
    ),
    (
        because("next-round-awaits-unaware", nodes=A),
        "waiting before the next round: node a lost the membership while connected, and workers may still run there",
    ),
    (
        because("stop-awaits-unaware", nodes=A),
        "waiting before the job is stopped: node a lost the membership while connected, and workers may "
        "still run there",
    ),
    (
        because("stop-awaits-held", nodes=A),
        "waiting before the job is stopped: after a store outage, workers may run without a membership on node a",
    ),
    (because("growing", round=4, size=ENOUGH), "growing after round 4: 2 nodes are enough"),
    (because("could-grow", size=ENOUGH), "could grow: 2 nodes are enough"),
    (because("could-grow-at-checkpoint", size=ENOUGH), "could grow at the next checkpoint: 2 nodes are enough"),
    (because("awaiting-nodes", size=ENOUGH), "waiting for nodes: 2 nodes are enough"),
    (because("awaiting-more-nodes", why=ENOUGH), "waiting for more nodes: 2 nodes are enough"),
    (
        because("awaiting-return", size=ENOUGH).add(because("stop-ends-job"), because("giving-up", in_s=30)),
        "waiting for nodes to return: 2 nodes are enough; meshctl stop ends the job; giving up in 30 s",
    ),
    (because("stop-ends-job"), "meshctl stop ends the job"),
    (because("giving-up", in_s=30), "giving up in 30 s"),
    (because("nodes-lost", nodes=AB), "lost: nodes a, b"),
    (because("nodes-left", nodes=A), "left: node a"),
    (because("no-world", size=ENOUGH), "no valid job size: 2 nodes are enough"),
    (because("too-few-joined", within_s=60.0, size=ENOUGH), "too few nodes joined within 60 s: 2 nodes are enough"),
    (because("too-few-returned", within_s=60.0, size=ENOUGH), "too few nodes returned within 60 s: 2 nodes are enough"),
    (because("target-nodes", joined=2, target=4), "2 of 4 target nodes have joined"),
    (because("target-nodes-after", after_s=60.0, why=ENOUGH), "after 60 s 2 nodes are enough"),
    (because("no-node-joined", for_s=30.0), "no node has joined for 30 s"),
    (because("late", round=4), "joined after round 4 had started"),
    (because("spare-leaves"), "leaving"),
    (
        because("quarantined", cause="losses", times=3, window_s=1800.0, duration_s=60.0),
        "lost 3 times within 1800 s, quarantined for 60 s",
    ),
    (
        because("quarantined", cause="blame", times=1, window_s=1800.0, duration_s=60.0),
        "its workers blamed it once within 1800 s, quarantined for 60 s",
    ),
    (because("node-quarantined", node="a", why=LOST), "a: node a lost in round 4"),
    (because("checking-cause", round=4), "round 4 failed; checking whether a lost node is the cause"),
    (because("backoff", round=4, before=2), "round 4 was short, like 2 before it: pausing"),
    (
        because("worker-failed", node="a", round=4, use=USED),
        "a worker failed on a in round 4, 3 of 3 restarts used",
    ),
    (USED, "3 of 3 restarts used"),
    (because("restarts-used", used=0, allowed=0), "no restarts allowed"),
    (because("restart-useless", why=because("store-error", error="no data")), "a restart would not help: no data"),
    (because("restart-declined", nodes=A), "workers are not restarted on node a"),
    (
        because("same-failure", rank=5, failure_class="memory: E", times=3),
        "rank 5 (memory: E) failed in the same way 3 times in a row",
    ),
    (because("stuck", rounds=3, step=1200), "no progress: 3 rounds in a row did not get beyond step 1200"),
    (
        because("short-rounds", rounds=10, least_s=5.0, is_futile=False),
        "no progress: 10 rounds in a row lasted less than 5 s",
    ),
    (
        because("short-rounds", rounds=10, least_s=5.0, is_futile=True),
        "no progress: 10 rounds in a row lasted less than 5 s, or ended with the loss of a node that is lost "
        "repeatedly",
    ),
    (because("all-drained"), "every node is drained"),
    (because("stop-requested", by=""), "stopped on request"),
    (because("stop-requested", by="ann"), "stopped at the request of ann"),
    (because("store-host-leaves", node="a"), "node a serves the job's store and leaves"),
    (
        because("store-host-leaves-because", node="a", why=because("agent/signal", signal="SIGTERM")),
        "node a serves the job's store and leaves: stopped by SIGTERM",
    ),
    (because("not-drained", target="a", drained=()), "a is not drained; drained: none"),
    (because("has-leader", node="a"), "this job already has a leader, on node a"),
    (because("unknown-request", request="dance"), "unknown request 'dance'"),
    (because("not-a-node"), "a node to drain must be given by its name or its member id"),
    (
        because("store-host-not-drained", node="a"),
        "a serves the job's store, which ends with it: meshctl stop ends the job",
    ),
    (
        because("ambiguous-node", node="a", member_ids=("1", "2")),
        "2 nodes are called a: give a member id, 1 or 2",
    ),
    (
        because("join-timeout", run="exp", within_s=60.0, why=because("store-silent")),
        "could not join run exp within 60 s: the store does not answer",
    ),
    (
        because("not-joined", run="none", why=because("store-silent")),
        "could not join this run: the store does not answer",
    ),
    (because("nothing-tried"), "no request to the store has been answered"),
    (because("store-error", error="it is full"), "it is full"),
    (because("store-silent"), "the store does not answer"),
    (
        because("finished-job-remains", why=LOST),
        "agents of the finished job are still running (node a lost in round 4)",
    ),
    (
        because("awaiting-finished-job", why=because("attempt", attempt=2)),
        "waiting for the agents of the finished job to exit: attempt 2",
    ),
    (because("attempt", attempt=2), "attempt 2"),
    (because("earlier-attempt", attempt=2, run="exp", theirs=3), "this is attempt 2, but run exp is at attempt 3"),
    (because("not-a-job-key", key="/k"), "the value of /k is not a job key, so it was not written by meshrun"),
    (because("unreadable", error="/k cannot be read"), "/k cannot be read"),
    (
        because("other-version", run="exp", theirs="0.2", node="a", ours="0.1"),
        "run exp uses meshrun 0.2, node a has meshrun 0.1",
    ),
    (
        because("already-ended", run="exp", why=because("all-succeeded")),
        "run exp has already ended: all workers succeeded",
    ),
    (
        because("already-ended-otherwise", run="exp", why=because("all-succeeded")),
        "run exp has already ended: all workers succeeded; it was started with other arguments for the script",
    ),
    (because("drained", node="a"), "node a was drained"),
    (because("drained-from-run", node="a", run="exp"), "node a is drained from run exp"),
    (
        because("other-arguments", run="exp"),
        "run exp was started with other arguments for the script; this node keeps its own",
    ),
    (
        because("other-secret", run="exp", has_secret=True),
        "run exp has a job secret, and this agent has none",
    ),
    (
        because("other-options", run="exp", is_served=False).add(
            because("option-differs", option="--mesh", theirs="dp=2", ours="dp=*"),
            because("option-not-here", option="--grow", theirs="never"),
            because("option-only-here", option="--unit", ours="4"),
        ),
        "run exp has other options than this agent; --mesh is dp=2 there and dp=* here; "
        "--grow is never there and not given here; --unit is not given there and 4 here",
    ),
    (because("option-differs", option="--mesh", theirs="dp=2", ours="dp=*"), "--mesh is dp=2 there and dp=* here"),
    (because("option-not-here", option="--grow", theirs="never"), "--grow is never there and not given here"),
    (because("option-only-here", option="--unit", ours="4"), "--unit is not given there and 4 here"),
    (
        because("other-command", run="exp", is_served=True),
        "this agent runs another command than the first node of run exp",
    ),
    (
        because("membership-lost", why=because("lease-expired")),
        "lost the membership: the lease could not be renewed in time; joining again",
    ),
    (because("lease-expired"), "the lease could not be renewed in time"),
    (because("view-expired"), "the store could not be read for too long"),
    (because("lease-ended"), "the lease has ended"),
    (because("lease-ended-early"), "the store ended the lease early"),
    (because("no-member"), "no longer a member"),
    (because("removed"), "this node was removed from the job"),
    (
        because("job-removed", run="exp"),
        "run exp was removed from the store, or another job was started under its name",
    ),
    (
        because("round-lost", round=4),
        "round 4 is no longer in the store: its keys were deleted, or the store was restored",
    ),
    (because("job-ended-meanwhile"), "the job ended during the store outage"),
    (because("round-lost-meanwhile"), "the store lost the job's round during the outage"),
    (because("others-continued-meanwhile"), "the other nodes continued without this one during the store outage"),
    (
        because("place-taken-meanwhile"),
        "another node took this one's place, or another job this one's, during the store outage",
    ),
    (
        because("registered-again"),
        "the store is back: this node registered again, and the round continues",
    ),
    (
        because("takeover-put-off", round=4, limit_s=605.0),
        "round 4 has no leader, and this node does not belong to it: other nodes take over once none of its nodes was "
        "seen for 605 s; if all of them are surely dead, meshctl takeover does it now",
    ),
    (
        because("leader-unreachable", node="a", address="10.0.0.1:7"),
        "the leader, a, cannot be reached at 10.0.0.1:7: while that port is closed to this node, the loss of this node "
        "is noticed only when its lease ends, and a store outage stops its workers",
    ),
    (because("foreign-member", key="/k", member_id="m"), "/k has the record of another member, m; it is ignored"),
    (because("record-ignored", error="/k is not JSON"), "/k is not JSON; it is ignored"),
    (
        because("decision-unreadable"),
        "the last decision cannot be read: no decisions are made until its key is removed",
    ),
    (
        because("store-away", round=4),
        "the store does not answer; workers continue while no node of round 4 reaches it",
    ),
    (because("store-ended", node=""), "the store has ended, and the job with it"),
    (because("store-ended", node="a"), "the store, which a served, has ended, and the job with it"),
    (
        because("store-host-stays", up_to_s=10.0),
        "staying up to 10 s, since other nodes use this node's store",
    ),
    (because("node-succeeded"), "all workers of this node succeeded"),
    (because("succeeded-without-store"), "all workers of this node succeeded, and the store is gone"),
    (
        because("ending-without-store"),
        "ending with success: all workers of this node succeeded, and the store did not return",
    ),
    (
        because("ending-unless-store-returns", in_s=10.0),
        "all workers of this node succeeded: ending with success in 10 s unless the store returns",
    ),
    (because("store-replaced"), "the store was restored or replaced"),
    (
        because("store-went-back", why=because("revision-went-back", revision=3, was=9)),
        "the store was restored to an earlier state, or replaced by another: it is at revision 3, and was at "
        "revision 9",
    ),
    (because("revision-went-back", revision=3, was=9), "it is at revision 3, and was at revision 9"),
    (because("key-went-back", key="/k", revision=3, was=9), "/k is at revision 3 in it, and was at revision 9"),
    (
        because("round-went-back", round=3, is_stopped=False, had_round=4, was_stopped=True),
        "it has round 3 running, and had round 4 stopped",
    ),
    (because("store-failing", error="it is full", hint=""), "it is full"),
    (because("store-failing", error="it is full", hint="disarm it"), "it is full (disarm it)"),
    (because("store-answers-again"), "the store answers again"),
    (
        because("store-slow", write_s=2.44),
        "writes to the store take 2.4 s, and joining and restarts need several of them",
    ),
    (because("longer-lease-waits", lease_ttl_s=15.0), "if nodes lose their membership, set --lease-ttl 15"),
    (because("store-fast-again"), "writes to the store are fast again"),
    (because("plan-put-off", error="out of memory"), "the next round cannot be planned yet: out of memory"),
    # The launcher's.
    (because("agent/signal", signal="SIGINT"), "stopped by SIGINT"),
    (because("agent/preemption-signal", signal="SIGUSR1"), "SIGUSR1 announces a preemption"),
    (because("agent/slurm-end", signal="SIGUSR1"), "SIGUSR1 announces the end of the Slurm job"),
    (because("agent/preemption-file", path="/f"), "/f announces a preemption"),
    (
        because("hardware/notice", source="AWS", notice=because("hardware/preemption")),
        "AWS announces the preemption of this machine",
    ),
    (because("hardware/spot-interruption", action="stop"), "announces a spot interruption (stop)"),
    (
        because("hardware/rebalance"),
        "recommends replacing this machine, as an interruption is likely (rebalance recommendation)",
    ),
    (because("hardware/maintenance", code="instance-stop"), "announces scheduled maintenance (instance-stop)"),
    (because("hardware/preemption"), "announces the preemption of this machine"),
    (because("hardware/host-maintenance", event="MIGRATE"), "announces host maintenance (MIGRATE)"),
    (because("hardware/eviction"), "announces the eviction of this machine"),
    (because("hardware/deletion"), "announces the deletion of this machine"),
    (because("hardware/reboot"), "announces a reboot of this machine"),
    (because("hardware/move"), "announces that this machine moves to another host"),
    (because("hardware/pause"), "announces that this machine pauses for some seconds"),
    (because("hardware/event", event="Boom"), "announces an event of this machine (Boom)"),
    (
        because("hardware/over", what=because("hardware/reboot")),
        "announces a reboot of this machine, for a time that is past",
    ),
    (because("agent/supervisor-lost", error="it was killed"), "it was killed"),
    (because("agent/fork-server-failed", error="no such module"), "no such module"),
    (because("agent/gave-up", text=""), "a worker gave up"),
    (because("agent/gave-up", text="no data"), "no data"),
    (
        because("logs/failure", failure_class="memory", why=because("logs/no-memory")),
        "memory: not enough memory to start it",
    ),
    (because("logs/claim", claim="gave up"), "gave up"),
    (because("logs/node-leaves"), "this node was told to leave"),
    (because("logs/no-program"), "the program does not exist"),
    (because("logs/no-memory"), "not enough memory to start it"),
    (because("logs/machine-limit"), "this machine allows no more processes or files"),
    (because("logs/not-started"), "it could not be started"),
    (because("logs/port-taken"), "another process listens on the worker port"),
    (because("logs/killed-for-memory"), "the kernel killed it"),
    (because("logs/illegal-access"), "an illegal access on its GPU"),
    (because("logs/gpu-error"), "the kernel reports an error of its GPU"),
    (because("logs/peer-lost"), "it lost a peer"),
    (because("logs/file-too-large"), "a file exceeded the size limit"),
    (because("logs/bad-arguments"), "bad arguments"),
    (because("logs/native-crash"), "it crashed in native code"),
    (because("logs/exception", type="KeyError"), "KeyError"),
    (because("logs/signal", signal="SIGKILL"), "SIGKILL"),
    (because("logs/exit-code", exit_code=3), "exit code 3"),
    (because("meshctl/error", error="KeyError: 1"), "KeyError: 1"),
    (because("torchrun/ended"), "torchrun has ended"),
    (because("torchrun/workers-finished"), "the workers of torchrun have finished"),
    (because("torchrun/told-to-end"), "torchrun was told to end"),
    (because("torchrun/no-port", error="no port is free"), "no port is free"),
    (because("placement/all-slots", ranks=1), "world of 1 rank: all slots of the only machine"),
    (because("placement/all-slots", ranks=1024), "world of 1,024 ranks: all slots of the only machine"),
    (because("placement/not-joined"), "this machine has not joined yet"),
    (NAMES, "a, b and 3 more"),
    (
        because("placement/world", ranks=1, nodes=1, present=1, why=FIXED, is_most=False),
        "world of 1 rank on 1 of 1 node: mesh dp=2,tp=8 has a fixed size",
    ),
    (
        because("placement/world", ranks=1024, nodes=2, present=3, why=FIXED, is_most=True),
        "world of 1,024 ranks on 2 of 3 nodes: mesh dp=2,tp=8 has a fixed size on at most 2 nodes",
    ),
    (FIXED, "mesh dp=2,tp=8 has a fixed size"),
    (because("placement/most-allowed", size="dp=4"), "dp=4 is the most that is allowed"),
    (
        because("placement/largest", size="dp=4", rules=()),
        "dp=4 is the largest whole number of replicas",
    ),
    (
        because("placement/largest", size="dp=4", rules=("--within pp=leaf", "--whole leaf")),
        "dp=4 is the largest whole number of replicas with --within pp=leaf and --whole leaf",
    ),
    (because("placement/joined", nodes=NAMES), "joined: a, b and 3 more"),
    (because("placement/none-joined"), "no node has joined"),
    (because("placement/no-node"), "no node is present"),
    (because("placement/too-few-nodes", least=3, present=1), "at least 3 nodes must be active, 1 is usable"),
    (
        because("placement/too-few-active", mesh="dp=2,tp=8", ranks=16, nodes=2, least=3),
        "mesh dp=2,tp=8 makes a world of 16 ranks on 2 nodes, but at least 3 must be active",
    ),
    (
        because("placement/one-node-too-small", mesh="tp=4", ranks=4, devices=1, nnodes=0),
        "mesh tp=4 needs 4 devices, 1 is present on 1 node",
    ),
    (SHORT, "mesh dp=2,tp=8 needs at least 2 nodes with 8 devices; 1 is present"),
    (
        because("placement/nodes-missing", mesh="dp=2,tp=8", nodes=2, devices=8, present=2, most=1),
        "mesh dp=2,tp=8 needs at least 2 nodes with 8 devices; at most 1 may be active",
    ),
    (because("placement/odd-nodes", nodes=NAMES), "others have another number of devices: a, b and 3 more"),
    (
        because("placement/no-slice", mesh="dp=*", level="leaf", hosts=4),
        "mesh dp=* needs complete leaves of 4 hosts; none is present",
    ),
    (
        because("placement/slices-missing", mesh="dp=*", slices=1, level="leaf", hosts=4, present=0, most=0),
        "mesh dp=* needs at least 1 complete leaf of 4 hosts; 0 are present",
    ),
    (
        because("placement/slices-missing", mesh="dp=*", slices=2, level="leaf", hosts=4, present=2, most=3),
        "mesh dp=* needs at least 2 complete leaves of 4 hosts; at most 3 nodes may be active",
    ),
    (
        because("placement/uneven", mesh="dp=3", ranks=2, level="", axis="", low=1, high=1, larger=0),
        "mesh dp=3 does not consist of units of 2 ranks",
    ),
    (
        because("placement/uneven", mesh="dp=*", ranks=16, level="leaf", axis="dp", low=1, high=9, larger=0),
        "mesh dp=* does not consist of whole leaves of 16 ranks for dp of 1 to 9, which is what is possible",
    ),
    (because("placement/no-fit", mesh="tp=8", nodes=2, has_rules=False), "mesh tp=8 fits on no 2 of the nodes present"),
    (
        because("placement/no-fit", mesh="tp=8", nodes=2, has_rules=True),
        "mesh tp=8 fits on no 2 of the nodes present with these rules",
    ),
    (
        because("placement/domain-too-small", ranks=16, axes="tp", level="host", mesh="tp=16", room=8, rules=()),
        "16 ranks of tp must sit on one host for mesh tp=16, the largest host has room for 8",
    ),
    (
        because("placement/too-few-domains", mesh="dp=2,tp=8", times=2, ranks=8, axes="tp", level="leaf", room=1),
        "mesh dp=2,tp=8 needs 2 times 8 ranks of tp, each in one leaf; there is room for 1",
    ),
    (
        because("placement/unit-too-large", unit=16, most=8, fitting=("1", "8")),
        "--unit 16 fits on no node: the largest has 8 devices",
    ),
    (
        because("placement/unit-uneven", unit=6, mesh="tp=8", fitting=("1", "8")),
        "--unit 6: 6 consecutive ranks are no even part of mesh tp=8, counted from its last axis",
    ),
    (
        because("placement/unit-leaves-idle", unit=3, devices=4),
        "--unit 3 does not divide the 4 devices of a host, and none may stay idle",
    ),
    (
        because("placement/unknown-level", option="--within tp=leaf", level="leaf", known=("zone", "host")),
        "--within tp=leaf: no node reports its leaf; the known levels are zone, host",
    ),
    (
        because("placement/inside-whole", option="--within tp=leaf", level="leaf", whole="pod"),
        "--within tp=leaf: a leaf is inside a pod, which is used as a whole in the order of its hosts",
    ),
    (because("placement/missing-node-ranks", ranks="1", count=1, nodes=8), "node rank 1 of 8 is missing"),
    (because("placement/missing-node-ranks", ranks="1, 5-7", count=4, nodes=8), "node ranks 1, 5-7 of 8 are missing"),
    (
        because("placement/worker-order", node="a", worker=2, slice="s", rank=1),
        "a is worker 2 of slice s and is given --node-rank 1: the numbers of a slice's hosts must follow their worker "
        "ids one by one",
    ),
    (
        because("placement/unused", why=SMALL, nodes=NAMES),
        "not usable, as 8 ranks must sit on one node: a, b and 3 more",
    ),
    (because("placement/more-unused", nodes=1), "not usable for similar reasons: 1 node more"),
    (SMALL, "8 ranks must sit on one node"),
    (because("placement/no-level", node="a", level="leaf"), "node a has no known leaf"),
    (
        because(
            "placement/slice-incomplete", level="leaf", domain="l", present=2, hosts=4, missing=0, indices="", names=()
        ),
        "leaf l has 2 of 4 hosts",
    ),
    (
        because(
            "placement/slice-incomplete",
            level="slice",
            domain="s",
            present=2,
            hosts=4,
            missing=2,
            indices="0, 2",
            names=("s-0",),
        ),
        "slice s has 2 of 4 hosts and lacks workers 0, 2 (s-0 and 1 more)",
    ),
    (
        because("placement/slice-oversized", level="leaf", domain="l", present=5, hosts=4),
        "leaf l has 5 hosts, a complete one has 4",
    ),
    (
        because("placement/slice-mixed", level="leaf", domain="l", devices=("8", "4")),
        "leaf l has hosts with 8, 4 devices",
    ),
    (
        because("placement/slice-numbers", level="leaf", domain="l", indices=("0", "0"), last=1),
        "leaf l has hosts with the indices 0, 0, not 0 to 1",
    ),
    (
        because("placement/slice-odd", level="leaf", domain="l", devices=8, usual=4),
        "leaf l has 8 devices per host, others 4",
    ),
    (
        because("placement/slice-size", node="a", hosts=8, slice="s", usual=4),
        "a reports 8 hosts for slice s, other nodes report 4",
    ),
    (
        because("placement/same-worker", node="a", other="b", worker=2, slice="s"),
        "a and b are both worker 2 of slice s",
    ),
    (
        because("placement/joined-twice", node="a", worker=2, slice="s"),
        "a has joined twice, as worker 2 of slice s: the later waits as a spare until the other has left",
    ),
    (because("placement/no-node-rank", node="a", last=7), "a has no node rank from 0 to 7"),
    (SAME_RANK, "a and b are both given --node-rank 1"),
    (
        because("placement/waits", why=SAME_RANK, node="a", other="b"),
        "a and b are both given --node-rank 1: a waits as a spare until b has left",
    ),
    (because("placement/unreadable-node", node="a", error="no JSON"), "a cannot take part: no JSON"),
    (
        because("placement/loopback-address", node="a", address="127.0.0.1"),
        "a publishes the address 127.0.0.1, which is the loopback of every machine: give it --local-addr",
    ),
    (
        because("placement/spare", ranks=16, sizes=("dp=2",), nodes=1),
        "the largest world is 16 ranks, dp=2 on 1 node",
    ),
    (
        because("placement/summary", nodes=28, present=31, ranks=224, sizes=("dp=7",)).add(
            because("placement/spares", nodes=NAMES)
        ),
        "28 of 31 nodes, 224 ranks, dp=7; spares: a, b and 3 more",
    ),
    (because("placement/spares", nodes=NAMES), "spares: a, b and 3 more"),
    (because("placement/idle-slots", slots=1), "1 slot of active nodes stays idle"),
    (because("placement/idle-slots", slots=2), "2 slots of active nodes stay idle"),
    (because("placement/cost", cost=3752.0, is_least=False), "the traffic's cost is 3,752"),
    (
        because("placement/cost", cost=2.5, is_least=True),
        "the traffic's cost is 2.5, and no layout of this world has less",
    ),
    (
        because("placement/slowest-link", axes="dp", link="leaf l0's uplink", share=0.714),
        "dp waits for leaf l0's uplink: 71 % of the time of a step's parts",
    ),
    (
        because("placement/step-time", step_s=0.534, axes="dp", link="leaf l0's uplink", part_s=0.0123),
        "a step's communication takes 0.534 s; dp waits for leaf l0's uplink: 12.3 ms of it",
    ),
    (because("placement/other-mesh"), "the previous plan was for another mesh, so no rank can keep its place"),
    (
        because("placement/moved", moved=8, ranks=1024).add(
            because("placement/without", nodes=NAMES), because("placement/with", nodes=NAMES)
        ),
        "8 of 1,024 ranks change their node; without a, b and 3 more; with a, b and 3 more",
    ),
    (because("placement/without", nodes=NAMES), "without a, b and 3 more"),
    (because("placement/with", nodes=NAMES), "with a, b and 3 more"),
    (because("placement/axes-together", axes=("tp",), level="host"), "tp stays on one host"),
    (because("placement/axes-together", axes=("pp", "cp"), level="leaf"), "pp and cp stay on one leaf"),
    (because("placement/axis-spread", axis="dp", domains=2, level="leaf"), "dp goes over 2 leaves"),
    (because("placement/leaves-domain", axis="tp", level="slice"), "tp leaves its slice"),
    (because("placement/uses-part", level="slice"), "uses parts of a slice"),
    (because("placement/uses-nodes", nodes=3), "uses 3 nodes"),
    (because("placement/remark", text="rates of rack are not used"), "rates of rack are not used"),
    (because("placement/duplicate-name", name="a", count=2), "2 nodes have the name a: give each its own --node-name"),
    (
        because("placement/previous-unreadable", error="no JSON"),
        "the assignments of the previous round cannot be read, so no rank keeps its place: no JSON",
    ),
    (
        because("placement/split-groups", axes="tp=7", devices=8, split=26, groups=36, ranks=7, then=UNSPLIT),
        "tp=7 does not divide the 8 devices of a node, so 26 of 36 groups of 7 ranks are split over nodes; --unit 7 "
        "keeps each on one: 210 ranks on 30 nodes instead of 252 on 32, J 3,920 instead of 9,328",
    ),
    (UNSPLIT, ": 210 ranks on 30 nodes instead of 252 on 32, J 3,920 instead of 9,328"),
    (
        because("placement/unsplit", ranks=7, nodes=1, now_ranks=14, now_nodes=2, cost=0.0, now_cost=9.0),
        ": 7 ranks on 1 node instead of 14 on 2",
    ),
    (
        because("placement/none-unsplit", why=SHORT),
        ", but then there is no valid world size: mesh dp=2,tp=8 needs at least 2 nodes with 8 devices; 1 is present",
    ),
    (
        because("placement/slices-differ", others=("2", "8"), usual=4),
        "slices of 2, 8 and of 4 hosts cannot be combined",
    ),
    (
        because("placement/level-costs-unused", levels=NAMES),
        "--level-costs: no effect for a, b and 3 more, which no node reports",
    ),
    (
        because("placement/too-many-levels", most=24, levels=NAMES),
        "24 levels are the most that are used; left out: a, b and 3 more",
    ),
    (
        because("placement/level-around", level="slice", domain="s", outer="leaf", domains=NAMES),
        "slice s touches leaf a, b and 3 more: a slice is taken to be around a leaf",
    ),
    (
        because("placement/level-strays", level="slice", domain="s", outer="zone", usual="z", nodes=NAMES),
        "all on slice s are taken to be in zone z, though a, b and 3 more reported another zone",
    ),
    (
        because("placement/level-unshared", nodes=NAMES, levels=NAMES),
        "no effect for a, b and 3 more: no two nodes share such a domain, and only these report one: a, b and 3 more",
    ),
    (
        because("placement/level-unknown", level="zone", nodes=NAMES),
        "the zone of a, b and 3 more is not known: such a node counts as a zone of its own",
    ),
]


@pytest.mark.parametrize(("reason", "sentence"), EXAMPLES, ids=lambda value: getattr(value, "kind", None))
def test_people_read(reason: Reason, sentence: str) -> None:
    assert describe_any(reason) == sentence


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (because("leader-isolated", node="a", reached=0, others=1, round=0), "a leads, but reaches no other nodes"),
        (because("target-nodes", joined=1, target=4), "1 of 4 target nodes has joined"),
        (
            because("placement/too-few-active", mesh="dp=1", ranks=1, nodes=1, least=2),
            "mesh dp=1 makes a world of 1 rank on 1 node, but at least 2 must be active",
        ),
        (
            because("placement/no-slice", mesh="dp=*", level="leaf", hosts=1),
            "mesh dp=* needs complete leaves of 1 host; none is present",
        ),
        (
            because("placement/slices-missing", mesh="dp=*", slices=2, level="leaf", hosts=1, present=1, most=0),
            "mesh dp=* needs at least 2 complete leaves of 1 host; 1 is present",
        ),
        (
            because("placement/no-fit", mesh="tp=8", nodes=1, has_rules=False),
            "mesh tp=8 fits on none of the nodes present",
        ),
        (
            because("placement/slice-odd", level="leaf", domain="l", devices=1, usual=4),
            "leaf l has 1 device per host, others 4",
        ),
        (
            because("placement/slice-size", node="a", hosts=1, slice="s", usual=4),
            "a reports 1 host for slice s, other nodes report 4",
        ),
        (because("placement/moved", moved=1, ranks=8), "1 of 8 ranks changes its node"),
        (
            because("placement/split-groups", axes="tp=3", devices=2, split=1, groups=1, ranks=3, then=UNSPLIT),
            "tp=3 does not divide the 2 devices of a node, so 1 of 1 group of 3 ranks is split over nodes; --unit 3 "
            "keeps each on one: 210 ranks on 30 nodes instead of 252 on 32, J 3,920 instead of 9,328",
        ),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_one_of_something(reason: Reason, sentence: str) -> None:
    assert describe_any(reason) == sentence


def test_every_sentence_is_shown_here() -> None:
    assert {reason.kind for reason, _ in EXAMPLES} == set(TABLES)


# --- what is made


def list_made(folder: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Where a reason is made, its kind, and the names of its values."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value
            if node.func.attr == "of" and isinstance(owner, ast.Name) and owner.id == "Reason":
                (kind,) = node.args
                assert isinstance(kind, ast.Constant), f"{path}:{node.lineno}: the kind must be a literal"
                names = frozenset(keyword.arg or "**" for keyword in node.keywords)
                yield f"{path.relative_to(ROOT)}:{node.lineno}", kind.value, names


def list_names(sentence: sentences.Sentence) -> frozenset[str]:
    """The values that a sentence has."""
    if callable(sentence):
        return frozenset(inspect.signature(sentence).parameters)
    return frozenset(name for _, name, _, _ in string.Formatter().parse(sentence) if name)


MADE = [*list_made("rendezvous"), *list_made("launcher")]


@pytest.mark.parametrize(("place", "kind", "names"), MADE, ids=lambda value: value if isinstance(value, str) else None)
def test_a_reason_has_the_values_of_its_sentence(place: str, kind: str, names: frozenset[str]) -> None:
    assert kind in TABLES, place
    assert names == list_names(TABLES[kind]), place


def test_no_sentence_is_for_a_reason_that_is_never_made() -> None:
    assert {kind for _, kind, _ in MADE} == set(TABLES)
    assert set(HINTS) <= set(SENTENCES)
    assert set(launcher_sentences.HINTS) <= set(launcher_sentences.SENTENCES)


def test_the_agreement_makes_no_reason_of_the_launcher() -> None:
    assert not [place for place, kind, _ in list_made("rendezvous") if kind not in SENTENCES]
    assert all("/" in kind for kind in launcher_sentences.SENTENCES)


# --- hints, and reasons of others

VERBS = ("add", "change", "choose", "give", "install", "lower", "make", "raise", "start", "use")


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        (
            because("other-version", run="exp", theirs="0.2", node="a", ours="0.1"),
            "install meshrun 0.2 on every node, or use another --rdzv-id",
        ),
        (
            because("other-command", run="exp", is_served=False),
            "give all nodes of a run the same program and options, and each run its own --rdzv-id",
        ),
        (
            because("other-options", run="exp", is_served=True),
            "give all nodes of a run the same program and options, and each run its own port",
        ),
        (
            because("other-secret", run="exp", has_secret=True),
            "give all nodes of a run the same job secret",
        ),
        (
            because("already-ended-otherwise", run="exp", why=LOST),
            "use another --rdzv-id for a new run, or restart this one with --on-finished rerun",
        ),
        (
            because("store-went-back", why=LOST),
            "start the agents again once all of the run have ended; next time stop them before a restore",
        ),
        (because("placement/one-node-too-small", mesh="m", ranks=4, devices=1, nnodes=0), ADD_NODES),
        (because("placement/one-node-too-small", mesh="m", ranks=4, devices=1, nnodes=2), RAISE_NNODES),
        (because("placement/nodes-missing", mesh="m", nodes=2, devices=8, present=2, most=1), RAISE_NNODES),
        (because("placement/slices-missing", mesh="m", slices=1, level="s", hosts=2, present=1, most=1), RAISE_NNODES),
        (
            because("placement/no-slice", mesh="m", level="leaf", hosts=4),
            "add nodes until a leaf is complete, or set another number of hosts with --whole",
        ),
        (because("placement/no-fit", mesh="m", nodes=2, has_rules=True), "change --within, or add nodes"),
        (because("placement/unit-uneven", unit=6, mesh="m", fitting=("1",)), "use --unit 1"),
        (
            because(
                "placement/domain-too-small", ranks=2, axes="tp", level="host", mesh="m", room=1, rules=("tp=host",)
            ),
            "make tp smaller, or leave out --within tp=host: more such nodes do not help",
        ),
        (
            because("placement/uneven", mesh="m", ranks=2, level="leaf", axis="", low=1, high=1, larger=0),
            "choose other sizes of the mesh, or another --whole: more nodes do not help",
        ),
        (LOST, ""),
    ],
)
def test_a_hint_says_what_to_do(reason: Reason, hint: str) -> None:
    assert give_any_hint(reason) == hint
    assert not hint or hint.split()[0] in VERBS


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (because("from-tomorrow", node="a", limit_s=2.5), "from-tomorrow node=a limit_s=2.5"),
        (because("lost", node="a"), "lost node=a"),
        (because("no-node-joined", for_s="soon"), "no-node-joined for_s=soon"),
        (because("quarantined", cause="x", times=1), "quarantined cause=x times=1"),
        (because("nodes", names=3, count="x"), "nodes names=3 count=x"),
        (because("other-version", run="x"), "other-version run=x"),
        (because("no-node-joined", for_s=10**400), f"no-node-joined for_s={10**400}"),
        (because("store-failing", error=5, hint=""), "store-failing error=5 hint="),
        (because("from-tomorrow").add(because("late", round=2)), "from-tomorrow; joined after round 2 had started"),
        (LOST.add(because("x")), "node a lost in round 4; x"),
    ],
)  # fmt: skip
def test_what_another_program_wrote_is_shown_as_it_is(reason: Reason, shown: str) -> None:
    assert describe(reason) == shown
    assert give_hint(reason) == ""


def test_what_another_program_wrote_of_the_launcher_is_shown_as_it_is() -> None:
    for text in (5, True, ("a",)):
        reason = because("agent/gave-up", text=text)
        assert describe_any(reason) == str(reason)


def test_reasons_are_told_with_those_that_were_added_to_them() -> None:
    added = because("late", round=2).add(because("spare-leaves"))
    assert describe(because("all-succeeded").add(added)) == (
        "all workers succeeded; joined after round 2 had started; leaving"
    )
