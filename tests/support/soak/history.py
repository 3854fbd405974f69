"""What the store went through, revision by revision, and what in it may never be.

A watch on everything under the run's name, over the client that the agents use, so restarts of the server do not end
it. From the events alone it can be said whether rounds were numbered without a gap, whether each was stopped and left
by all before the next was sealed, whether ranks were dealt out once each, whether the budget was charged as it should
be, and whether there was one verdict.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from launcher.placement.adapter.description import NodeAssignment, decode_assignment
from rendezvous.errors import StoreError
from rendezvous.stores.contract import Batch
from rendezvous.stores.etcd.store import EtcdStore
from tests.support.waiting import wait_until


class Change(NamedTuple):
    """`record` None: the key was deleted. `key` is what follows the run's name."""

    revision: int
    key: str
    record: dict[str, Any] | None


class History:
    """Everything that happens under `/meshrun/<run id>/` from now on. Close it."""

    def __init__(self, endpoint: str, run_id: str) -> None:
        self._root = f"/meshrun/{run_id}/"
        self._store = EtcdStore([endpoint], call_limit_s=5.0)
        self._lock = threading.Lock()
        self._changes: list[Change] = []
        self._lost: list[StoreError] = []
        first = self._store.get(self._root, prefix=True)
        assert not first.items, f"{self._root} was used before"
        self._store.watch(
            self._root, prefix=True, start_revision=first.revision + 1, on_batch=self._take, on_lost=self._lost.append
        )

    def _take(self, batch: Batch) -> None:
        with self._lock:
            for event in batch.events:
                is_put = event.kind == "put"
                key = event.item.key.removeprefix(self._root)
                is_record = is_put and "/" in key
                record = json.loads(event.item.value) if is_record else {} if is_put else None
                self._changes.append(Change(batch.revision, key, record))

    def changes(self) -> list[Change]:
        """All so far."""
        with self._lock:
            return list(self._changes)

    def catch_up(self) -> None:
        """Wait until the watch has delivered what is in the store now."""
        revision = self._store.put(f"{self._root}seen", b"")
        wait_until(lambda: any(one.revision >= revision for one in self.changes()), 60, "the watch of the history")

    def close(self) -> None:
        assert not self._lost, self._lost
        self._store.close()


class Round(NamedTuple):
    """One seal: the record, when it was written, and who got what under its token."""

    number: int
    revision: int
    seal: dict[str, Any]
    shares: dict[str, NodeAssignment]


def rounds(changes: list[Change], job_key: str) -> list[Round]:
    """The rounds of one job, in the order in which they were sealed."""
    found = []
    dealt: dict[str, str] = {}
    for change in changes:
        if change.record is None or not change.key.startswith(f"{job_key}/"):
            continue
        key = change.key.removeprefix(f"{job_key}/")
        if key.startswith("assign/"):
            dealt[key] = change.record["content"]
        elif key == "ctl/round":
            start = f"assign/{change.record['round']}/{change.record['plan_token']}/"
            shares = {
                k.removeprefix(start): decode_assignment(v, change.record["coordinator"])
                for k, v in dealt.items()
                if k.startswith(start)
            }
            found.append(Round(change.record["round"], change.revision, change.record, shares))
    return found


def job_keys(changes: list[Change]) -> list[str]:
    """In the order in which they were opened."""
    found: list[str] = []
    for change in changes:
        key, _, rest = change.key.partition("/")
        if rest and key not in found:
            found.append(key)
    return found


def broken_rules(changes: list[Change]) -> list[str]:
    """What should never have been, in sentences; empty if all is well."""
    return [f"{key}: {sentence}" for key in job_keys(changes) for sentence in _broken(changes, key)]


def _broken(changes: list[Change], job_key: str) -> Iterator[str]:
    own = [
        change._replace(key=change.key.removeprefix(f"{job_key}/"))
        for change in changes
        if change.key.startswith(f"{job_key}/")
    ]
    sealed = rounds(changes, job_key)
    yield from _numbers(sealed)
    for round in sealed:
        yield from _ranks(round)
    for before, after in itertools.pairwise(sealed):
        yield from _stopped(own, before, after)
        yield from _charged(own, before, after)
    verdicts = [change.record for change in own if change.key == "ctl/verdict" and change.record is not None]
    if len(verdicts) > 1:
        yield f"S3: {len(verdicts)} verdicts: {verdicts}"
    ended_at = next((change.revision for change in own if change.key == "ctl/verdict"), None)
    if ended_at is not None and any(round.revision > ended_at for round in sealed):
        yield "S3: a round was sealed after the verdict"


def _numbers(sealed: list[Round]) -> Iterator[str]:
    numbers = [round.number for round in sealed]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"S7: the rounds that were sealed are {numbers}"


def _ranks(round: Round) -> Iterator[str]:
    size = round.seal["world_size"]
    ranks = sorted(rank for share in round.shares.values() for rank in share.ranks)
    if ranks != list(range(size)):
        yield f"S1: round {round.number} of {size} ranks dealt out {ranks}"
    said = {(share.world_size, f"{share.master_addr}:{share.master_port}") for share in round.shares.values()}
    if said != {(size, round.seal["coordinator"])}:
        yield f"S1: round {round.number}: the seal says {size} {round.seal['coordinator']}, its shares {said}"


def _between(own: list[Change], before: Round, after: Round) -> list[Change]:
    return [change for change in own if before.revision < change.revision < after.revision]


def _stopped(own: list[Change], before: Round, after: Round) -> Iterator[str]:
    """S2 as the store sees it: nobody of the round before had neither stopped nor gone."""
    meanwhile = _between(own, before, after)
    if not any(c.key == "ctl/stop" and c.record and c.record["round"] == before.number for c in meanwhile):
        yield f"S2: round {after.number} was sealed without a stop of round {before.number}"
    for member_id in before.shares:
        is_gone = any(c.key == f"members/{member_id}" and c.record is None for c in meanwhile)
        statuses = [c.record for c in meanwhile if c.key == f"status/{member_id}" and c.record]
        has_stopped = any(status["round"] == before.number and status["is_stopped"] for status in statuses)
        # One that was gone before the seal, which the seal did not know of yet.
        earlier = [c for c in own if c.key == f"members/{member_id}" and c.revision <= before.revision]
        if not (is_gone or has_stopped or (earlier and earlier[-1].record is None)):
            yield f"S2: round {after.number} was sealed before {member_id} had stopped round {before.number}"


def _charged(own: list[Change], before: Round, after: Round) -> Iterator[str]:
    """S5: one for a round that failed and lost nobody, none for a round without a failure, never more than one."""
    meanwhile = _between(own, before, after)
    charge = after.seal["restart_count"] - before.seal["restart_count"]
    if charge not in (0, 1):
        # A round that was charged for the time being may turn out to have lost a node before.
        refund = charge == -1 and before.seal.get("provisional_round", 0)
        if not refund:
            yield f"S5: {charge} restarts were charged for round {before.number}"
    statuses = [c.record for c in meanwhile if c.key.startswith("status/") and c.record]
    of_round = [status for status in statuses if status["round"] == before.number]
    has_failed = any(status["outcome"] == "failed" for status in of_round)
    lost_member = any(c.key.removeprefix("members/") in before.shares and c.record is None for c in meanwhile)
    has_left = any(status["leaving"] for status in of_round)
    if charge == 1 and not has_failed:
        yield f"S5: round {before.number} was charged and had no failure"
    if charge == 0 and has_failed and not lost_member and not has_left:
        taken = any(status["is_port_taken"] for status in of_round)
        if not taken:
            yield f"S5: round {before.number} failed, lost nobody, and was not charged"
