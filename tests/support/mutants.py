"""Faults planted in the machine of agreement, one at a time, to see who notices: `python -m tests.support.mutants`.

Each is a mistake that one could make: a comparison turned round, a guard dropped, an age counted from the wrong end. It
is planted in a copy of the tree, and three layers look for it: the simulation, seed after seed until one breaks an
invariant; the transcripts; the unit tests. What they found stands in docs/internals/mutations.md. A fault that changes
nothing that anybody could see is no entry here.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import click

from tests.support.documents.pages import ROOT

TRANSCRIPTS = ("tests/protocol/test_transcripts.py", "tests/protocol/test_leading.py")
UNITS = ("tests/unit/rendezvous",)
LIMIT_S = 3000.0  # for one layer: a fault may be an endless loop


class Mutant(NamedTuple):
    """`old` stands once in the module of rendezvous/ and becomes `new`."""

    name: str
    module: str
    old: str
    new: str


class Found(NamedTuple):
    mutant: Mutant
    seed: str  # the first that shows it and the invariant that it breaks, or how many do not
    transcripts: str
    units: str


MUTANTS = (
    # The lease and the watchdog.
    Mutant(
        "the watchdog ends with the lease, without its margin",
        "member/lease",
        "state.requests.emit(ExtendWatchdog(lease.membership_until - state.settings.kill_margin_s))",
        "state.requests.emit(ExtendWatchdog(lease.membership_until))",
    ),
    Mutant(
        "a renewal counts from its answer",
        "member/lease",
        "extend_lease(state, requests.sent_at, answer.ttl_s)",
        "extend_lease(state, now, answer.ttl_s)",
    ),
    Mutant(
        "a renewal counts though the leader was none any more",
        "member/lease",
        "    elif answer.is_confirmed:\n        extend_lease(",
        "    else:\n        extend_lease(",
    ),
    Mutant(
        "a read with a renewal does not tell that the own key is gone",
        "member/lease",
        "answer.create_revision != own_revision:",
        "answer.create_revision == -1:",
    ),
    Mutant(
        "the watchdog does not end when what was read is too old",
        "state/state",
        "return max(min(self.ends_at, self.view_until), self.held_until)",
        "return max(self.ends_at, self.held_until)",
    ),
    Mutant(
        "a look counts from its answer, not from when it was sent",
        "member/stale_watch",
        "lease.note_resync(state, sent_at)",
        "lease.note_resync(state, sent_at + 2.0)",
    ),
    Mutant(
        "registering again renews the new lease",
        "member/lease",
        "extend_lease(state, granted_at, granted.ttl_s)  #",
        "extend_lease(state, state.requests.sent_at, granted.ttl_s)  #",
    ),
    Mutant(
        "a repeated grant counts from the last request",
        "member/lease",
        "on_lease(answer, since)",
        "on_lease(answer, state.requests.sent_at)",
    ),
    Mutant(
        "renewals are asked for twice as seldom",
        "member/lease",
        "lease.keep_alive_at = sent_at + state.settings.keep_alive_interval_s if",
        "lease.keep_alive_at = sent_at + 3.5 * state.settings.keep_alive_interval_s if",
    ),
    Mutant(
        "registering again does not compare the seal",
        "member/lease",
        'Compare(job.round, "mod", "=", lease.held_seal)',
        'Compare(job.round, "mod", ">", -1)',
    ),
    # An outage of the store.
    Mutant(
        "an outage is held out for a lease longer than its limit",
        "member/lease",
        "until = min(until, lease.renewed_at + settings.outage_limit_s)",
        "until = min(until, lease.renewed_at + settings.outage_limit_s + settings.lease_ttl_s)",
    ),
    Mutant(
        "a member holds from when it hears that the beat holds",
        "member/outage",
        "lease.hold_until(state, outage.acknowledged_at[probe] + settings.lease_ttl_s)",
        "lease.hold_until(state, now + settings.lease_ttl_s)",
    ),
    Mutant(
        "the leader holds from when all have answered",
        "member/outage",
        "lease.hold_until(state, outage.probed_at + state.settings.lease_ttl_s)",
        "lease.hold_until(state, max(outage.acknowledged_at.values()) + 1.0 + state.settings.lease_ttl_s)",
    ),
    Mutant(
        "words that come after their beat count",
        "member/outage",
        "in_time = now <= outage.probed_at + settings.probe_s",
        "in_time = now <= outage.probed_at + 3 * settings.probe_s",
    ),
    Mutant(
        "words of an earlier beat count",
        "member/outage",
        "if plan_token == seal.plan_token and probe == outage.probe_number:",
        "if plan_token == seal.plan_token:",
    ),
    Mutant(
        "a beat does not ask spares",
        "member/outage",
        "roster = {*active, *(spares.member_ids if spares else ())} - {state.member_id}",
        "roster = {*active} - {state.member_id}",
    ),
    Mutant(
        "a beat does not ask members whose keys are gone",
        "member/outage",
        "return record is not None and state.peers.is_gone(",
        "return record is None or state.peers.is_gone(",
    ),
    Mutant(
        "whoever gave its word omits others a lease too early",
        "member/outage",
        "outage.no_omission_before = now + settings.lease_ttl_s + settings.probe_s + settings.kill_margin_s",
        "outage.no_omission_before = now + settings.probe_s + settings.kill_margin_s",
    ),
    Mutant(
        "a member says that the store is away when it is not",
        "member/outage",
        "return state.settings.continues_without_store and state.lease.is_store_away and is_short",
        "return state.settings.continues_without_store and is_short",
    ),
    Mutant(
        "nobody is doubtful after an outage",
        "policy/view",
        "        if now >= self.no_omission_before:\n            return []",
        "        if now >= self.no_omission_before - 3.0:\n            return []",
    ),
    # Being fenced, lapsing, coming back.
    Mutant(
        "whoever is removed ends its workers in peace",
        "machine",
        'local_round.stop_workers(self._state, "fence", Reason.of("no-member"), "isolation", now)',
        'local_round.stop_workers(self._state, "grace", Reason.of("no-member"), "isolation", now)',
    ),
    Mutant(
        "a lapse forgets the workers",
        "machine",
        '        local_round.stop_workers(state, "fence", Reason.of("lease-ended"), "isolation", now)\n'
        "        since = now",
        "        since = now",
    ),
    Mutant(
        "a lost key is a removal, whatever became of the lease",
        "machine",
        'if is_lease_gone and purpose != "lead" and not lease.handle_end(state, now):',
        'if is_lease_gone and purpose not in ("lead", "farewell") and not lease.handle_end(state, now):',
    ),
    Mutant(
        "a new membership remembers what the old one was told of",
        "state/watch_cache",
        "        self.unwatch_all()\n        self.keys = KeyCache()",
        "        self.unwatch_all()",
    ),
    Mutant(
        "a new membership goes on with the old requests",
        "state/request_queue",
        "        self.drop_requests()\n        self._last_status",
        "        self._last_status",
    ),
    Mutant(
        "a new membership keeps the status of the old one",
        "state/state",
        "        self.status = Status(round=0)\n",
        '        self.status = getattr(self, "status", Status(round=0))\n',
    ),
    Mutant(
        "an agent comes back before its old workers are gone",
        "machine",
        "        elif round_state.alive_round is not None:\n"
        "            state.requests.wake_by(round_state.gone_by)\n        elif",
        "        elif",
    ),
    Mutant(
        "a frozen agent acts on what came meanwhile before it looks at its lease",
        "machine",
        "and now >= state.lease.membership_until:\n            self._lose_membership(now)  #",
        "and now < 0.0:\n            self._lose_membership(now)  #",
    ),
    # The round on a node.
    Mutant(
        "workers are started though the watchdog is about to end",
        "member/local_round",
        "if now >= state.lease.membership_until - state.settings.kill_margin_s:",
        "if now >= state.lease.ends_at:",
    ),
    Mutant(
        "an assignment read under an older seal is believed",
        "member/local_round",
        "if seal is None or seal.plan_token != sealed.plan_token or is_stopped or round_state.alive_round is not None:",
        "if seal is None or round_state.alive_round is not None:",
    ),
    Mutant(
        "a stop of the round before ends the next one",
        "member/local_round",
        "is_stopped = seal is not None and stop is not None and stop.round >= seal.round\n",
        "is_stopped = seal is not None and stop is not None and stop.round >= seal.round - 1\n",
    ),
    Mutant(
        "a member reports that it has stopped when it is told to",
        "member/local_round",
        "        round_state.gone_by = now +",
        "        round_state.status = replace(round_state.status, is_stopped=True)\n"
        "        round_state.gone_by = now +",
    ),
    Mutant(
        "an exit after the stop is a failure",
        "member/local_round",
        'round_state.move("failed for good" if is_told else "failed"):',
        'round_state.move("failed for good"):',
    ),
    Mutant(
        "an outcome can be replaced by a later one",
        "member/local_round",
        'if not round_state.status.outcome and round_state.move("failed for good"',
        'if round_state.move("failed for good"',
    ),
    Mutant(
        "when a failure was first told is forgotten with the next report",
        "member/local_round",
        "state.round.failed_revision = stored.failed_revision or state.cache.keys.get_revision(key)",
        "state.round.failed_revision = 0",
    ),
    # Leading.
    Mutant(
        "whoever puts itself up as leader does not name its own key",
        "leader/election",
        '        Compare(own_key, "create", "=", state.membership.revision),\n',
        "",
    ),
    Mutant(
        "all successors take over at once",
        "leader/election",
        "take_over_at = gone_since + successors.index(state.member_id) * state.settings.successor_delay_s",
        "take_over_at = gone_since",
    ),
    Mutant(
        "anybody takes over from a leader that is gone",
        "leader/election",
        "if gone_since == math.inf or state.member_id not in successors or state.leaving.request is not None:",
        "if gone_since == math.inf or state.leaving.request is not None:",
    ),
    Mutant(
        "a broken connection to the leader is a proof",
        "leader/election",
        "gone_since = state.peers.get_gone_since(leader.member_id, leader.presence_address)",
        "gone_since = state.peers.unreachable_since.get(leader.member_id, math.inf)",
    ),
    Mutant(
        "a former spare belongs to the roster",
        "leader/election",
        "(spares is not None and spare_id in spares.member_ids)",
        '(spares is not None and spare_id != "")',
    ),
    Mutant(
        "an outsider waits for the outage's limit, but not for a lease more",
        "leader/takeover",
        "if now >= takeover.empty_since + limit_s:",
        "if now >= takeover.empty_since + limit_s - 2 * settings.lease_ttl_s:",
    ),
    Mutant(
        "an outsider goes on counting when the roster is back",
        "leader/takeover",
        "    if roster & present.keys():\n        takeover.empty_since = math.inf\n        return",
        "    if roster & present.keys():\n        return",
    ),
    Mutant(
        "one new agent on a node of the round is enough for an outsider",
        "leader/takeover",
        "if round_nodes and round_nodes <= present_nodes:",
        "if round_nodes & present_nodes:",
    ),
    Mutant(
        "a proof holds for another incarnation",
        "peers/liveness",
        "return since if last.is_provable and last.address == address else math.inf",
        "return since if last.is_provable else math.inf",
    ),
    Mutant(
        "a connection through a proxy can prove a loss",
        "peers/liveness",
        "return since if last.is_provable and last.address == address else math.inf",
        "return since if last.address == address else math.inf",
    ),
    Mutant(
        "who connects again is still proven gone",
        "peers/liveness",
        "                self._gone_since.pop(member_id, None)\n            case PeerDown",
        "            case PeerDown",
    ),
    # Deciding.
    Mutant(
        "a member that has not stopped is given up after the grace",
        "policy/decide",
        "until = view.stopped_at + settings.compute_gone_within_s(stop.mode)",
        "until = view.stopped_at + settings.grace_s(stop.mode) + settings.stop_limit_s",
    ),
    Mutant(
        "whoever cannot be reached is removed after one lease",
        "policy/decide",
        "return sorted(m for m, at in since.items() if m in view.members and now >= at + settings.isolation_s)",
        "return sorted(m for m, at in since.items() if m in view.members and now >= at + settings.lease_ttl_s)",
    ),
    Mutant(
        "a leader that reaches nobody removes everybody",
        "policy/decide",
        "return 2 * view.reached_count < view.others_count",
        "return view.reached_count < 0",
    ),
    Mutant(
        "the next round is sealed while some members have not stopped",
        "policy/decide",
        "unstopped = [m for m in view.active if m in view.members and not view.has_stopped(m)]",
        "unstopped = [m for m in view.failed() if m in view.members and not view.has_stopped(m)]",
    ),
    Mutant(
        "a pause is counted from nowhere",
        "policy/decide",
        "until = view.stopped_at + settings.compute_backoff_s(budget.short_rounds)",
        "until = view.stopped_at + settings.compute_backoff_s(budget.short_rounds - 1)",
    ),
    Mutant(
        "the job has succeeded when all that are left have",
        "policy/decide",
        'view.active and all(view.get_outcome(m) == "succeeded" for m in view.active):',
        'view.active and all(view.get_outcome(m) == "succeeded" for m in view.active if m in view.members):',
    ),
    Mutant(
        "a status of an earlier round counts",
        "policy/view",
        "status = self._find_status(member_id)\n        return status is not None and status.is_stopped",
        "view = self.statuses.get(member_id)\n        return view is not None and view.status.is_stopped",
    ),
    Mutant(
        "a job is stopped at once on request, though members may come back",
        "policy/decide",
        "        if perhaps_held := view.list_perhaps_held(now):",
        "        if len(perhaps_held := view.list_perhaps_held(now)) > 99:",
    ),
    # Sealing and writing.
    Mutant(
        "a plan of an earlier request is sealed",
        "leader/commit",
        "if commit.plan_request is not None and event.id == commit.plan_request[0]:",
        "if commit.plan_request is not None:",
    ),
    Mutant(
        "successors may be on one node",
        "leader/commit",
        "        if member_id in view.members and node not in used_nodes:\n            used_nodes.add(node)",
        "        if member_id in view.members:",
    ),
    Mutant(
        "a seal does not compare the one that it replaces",
        "leader/commit",
        "still_current, limit = guard_unchanged(state, leadership.job.round),",
        "still_current, limit = (),",
    ),
    Mutant(
        "writes do not name the leader's own key",
        "leader/guarded_write",
        "compares = (make_leader_guard(leadership), own_guard, Compare(",
        "compares = (make_leader_guard(leadership), Compare(",
    ),
    Mutant(
        "the last port is used again",
        "leader/commit",
        "return (status.status.worker_port if status is not None else 0) or member.member.worker_port",
        "return member.member.worker_port",
    ),
    # Budget, charge, quarantine.
    Mutant(
        "one restart more than is allowed",
        "policy/charge",
        "return is_final or budget.count_spent(now, settings.restart_window_s) >= settings.max_restarts",
        "return is_final or budget.count_spent(now, settings.restart_window_s) > settings.max_restarts",
    ),
    Mutant(
        "a charge counts from the failure before it",
        "policy/budget",
        "charged_at=(*self.charged_at, now),",
        "charged_at=(*self.charged_at, failed_at),",
    ),
    Mutant(
        "a charge never becomes final",
        "policy/budget",
        "if self.provisional_round and now - self.provisional_since > settle_s:",
        "if self.provisional_round and now - self.provisional_since > settle_s + 60.0:",
    ),
    Mutant(
        "any loss takes the last charge back",
        "policy/charge",
        "if budget.provisional_round and min(departed_at) - budget.provisional_since <= settings.settle_s:",
        "if budget.provisional_round:",
    ),
    Mutant(
        "ages in a seal count from when the leader began, not from when it saw the last seal",
        "policy/budget",
        "charged_at=tuple(seen_at - age for age in seal.charge_ages_s),",
        "charged_at=tuple(seen_at + age for age in seal.charge_ages_s),",
    ),
    Mutant(
        "a failure is judged before a loss can explain it",
        "policy/charge",
        "settled_at = failed_at + settings.settle_s\n",
        "settled_at = failed_at + settings.settle_s / 10\n",
    ),
    Mutant(
        "the failure that was written last is the first",
        "policy/charge",
        "status.is_peer_loss, view.statuses[member_id].failed_revision, member_id",
        "status.is_peer_loss, -view.statuses[member_id].failed_revision, member_id",
    ),
    Mutant(
        "a connection that was lost to another node is a first failure",
        "policy/charge",
        "if status.is_peer_loss or first not in view.nodes:",
        "if first not in view.nodes:",
    ),
    Mutant(
        "a node sits out one loss too late",
        "policy/quarantine",
        "if 0 < limit <= count:",
        "if 0 < limit < count:",
    ),
    Mutant(
        "a quarantine does not become longer",
        "policy/quarantine",
        "duration_s = min(settings.quarantine_first_s * 2.0**doublings, settings.quarantine_max_s)",
        "duration_s = settings.quarantine_first_s",
    ),
    Mutant(
        "a poisoned rank counts against its nodes",
        "policy/quarantine",
        "return {rank for rank, rank_nodes in nodes.items() if rank >= 0 and len(rank_nodes) > 1}",
        "return {rank for rank, rank_nodes in nodes.items() if rank >= 0 and len(rank_nodes) > 99}",
    ),
    Mutant(
        "who sits out is used first",
        "policy/candidates",
        "    if not quarantined or size.world_size:\n        return MemberChoice(usable, size, quarantined)\n",
        "",
    ),
    Mutant(
        "marks are forgotten with the window, not with the longest quarantine",
        "policy/quarantine",
        "since = now - settings.quarantine_window_s - settings.quarantine_max_s",
        "since = now - settings.quarantine_first_s",
    ),
    Mutant(
        "short rounds are never forgotten",
        "policy/budget",
        "return replace(self, short_rounds=self.short_rounds + 1 if is_short else 0)",
        "return replace(self, short_rounds=self.short_rounds + 1 if is_short else self.short_rounds)",
    ),
    Mutant(
        "a port that is taken is free for ever",
        "policy/charge",
        "budget = replace(budget, port_taken_rounds=budget.port_taken_rounds + 1)",
        "budget = replace(budget, port_taken_rounds=0)",
    ),
    # Growing, leaving, drains, takeovers, the copy of the store.
    Mutant(
        "a job grows as soon as somebody has come",
        "policy/candidates",
        "until = max(view.sealed_at, arrived_at) + settings.grow_delay_s",
        "until = view.sealed_at",
    ),
    Mutant(
        "any checkpoint is a reason to grow, however old",
        "policy/candidates",
        "if view.saved_at > arrived_at:",
        "if view.saved_at > -math.inf:",
    ),
    Mutant(
        "a departure is not announced",
        "member/leave",
        "is_announced = now >= announce_by or (",
        "is_announced = True or (",
    ),
    Mutant(
        "a drained node joins",
        "member/join",
        "    elif is_drained(state):\n        reason",
        "    elif now < 0.0:\n        reason",
    ),
    Mutant(
        "a takeover on request is not consumed",
        "leader/election",
        "        deletions = (Delete(takeover_request.key),)\n",
        "",
    ),
    Mutant(
        "an old word about a key replaces a newer one",
        "state/key_cache",
        "        if item.mod_revision > newest:",
        "        if item.mod_revision != self.get_revision(item.key):",
    ),
    Mutant(
        "a read does not tell of keys that are gone",
        "state/key_cache",
        "            self.remove(key, found.revision)\n",
        "            pass\n",
    ),
    Mutant(
        "a watch that has ended is not made up for",
        "state/watch_cache",
        "            self.lost_watches.add(event.key)\n            self._requests.pause",
        "            self._requests.pause",
    ),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seeds", default=150, show_default=True, help="How many seeds to simulate with each.")
@click.option("--from", "begin", default=0, show_default=True, help="The first seed.")
@click.option("--processes", default=2, show_default=True, help="How many mutants at a time.")
@click.option("--layers", default="simulation,transcripts,units", show_default=True, help="Which to ask.")
@click.argument("words", nargs=-1)
def main(seeds: int, begin: int, processes: int, layers: str, words: tuple[str, ...]) -> None:
    """Plant one fault after the other, those whose names hold WORDS or all, and tell who notices it."""
    chosen = [each for each in MUTANTS if not words or any(word in f"{each.module}: {each.name}" for word in words)]
    with ThreadPoolExecutor(processes) as pool:
        found = pool.map(lambda each: examine(each, begin, seeds, layers.split(",")), chosen)
        for each in found:
            row = (each.mutant.module, each.mutant.name, each.seed, each.transcripts, each.units)
            print(f"| {' | '.join(row)} |", flush=True)


def examine(mutant: Mutant, begin: int, seeds: int, layers: list[str]) -> Found:
    """Plant it in a copy of the tree and ask each layer."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        plant(mutant, tree)
        seed = transcripts = units = "not asked"
        if "simulation" in layers:
            seed = _simulate(tree, begin, seeds)
        if "transcripts" in layers:
            transcripts = _test(tree, TRANSCRIPTS)
        if "units" in layers:
            units = _test(tree, UNITS)
        return Found(mutant, seed, transcripts, units)


def plant(mutant: Mutant, tree: Path) -> None:
    """Copy what the tests need, with the fault in it."""
    names = ("launcher", "rendezvous", "tests/__init__.py", "tests/protocol", "tests/support", "tests/unit")
    copied = subprocess.run(["tar", "-c", *names, "pyproject.toml"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x"], cwd=tree, input=copied.stdout, check=True)
    path = tree / "rendezvous" / f"{mutant.module}.py"
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise click.ClickException(f"{mutant.name}: what it changes is {text.count(mutant.old)} times in {path.name}")
    path.write_text(text.replace(mutant.old, mutant.new))


def _simulate(tree: Path, begin: int, seeds: int) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--first", "--seeds", f"{begin}:{begin + seeds}"]
    done = _run(command, tree)
    if done is None:
        return "no end"
    if done.returncode == 0:
        return f"not in {seeds}"
    first = done.stderr.splitlines()[0] if done.stderr else ""
    seed, _, what = first.removeprefix("seed ").partition(": ")
    return f"{seed} ({what.split(':')[0] if not what.startswith('Traceback') else 'exception'})"


def _test(tree: Path, files: tuple[str, ...]) -> str:
    done = _run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not server", "-p", "no:cacheprovider", *files], tree
    )
    if done is None:
        return "no end"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split("::")[-1].split(" - ")[0] if lines else "no" if done.returncode == 0 else "fails"


def _run(command: list[str], tree: Path) -> subprocess.CompletedProcess[str] | None:
    environment = {"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    main()
