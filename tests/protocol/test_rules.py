"""Each rule of the agreement is there for a schedule that breaks without it.

A rule is taken out, its schedule is played, and what happens must be something else: the record differs, or the
checker complains. A row that passes without its rule would show that the rule, or the transcript, is of no use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rendezvous.events import ExtendWatchdog
from rendezvous.leader.election import Election
from rendezvous.leader.guarded_writer import GuardedWriter
from rendezvous.member import join, stale_watch
from rendezvous.member.lease import LeaseKeeper
from rendezvous.member.outage import Outage
from rendezvous.peers.liveness import PeerLiveness
from rendezvous.policy import charge, commands, decide, quarantine
from rendezvous.policy.view import View
from rendezvous.settings import Settings
from rendezvous.state.watch_cache import WatchCache
from rendezvous.testing import transcript

TRANSCRIPTS = Path(__file__).parent / "transcripts"
Patch = pytest.MonkeyPatch


def _nobody_is_proven_gone(patch: Patch) -> None:
    patch.setattr(PeerLiveness, "get_gone_since", lambda self, member_id, address: math.inf)


def _a_broken_connection_is_a_proof(patch: Patch) -> None:
    def gone_since(self: PeerLiveness, member_id: str, address: str) -> float:
        return self.unreachable_since.get(member_id, math.inf)

    patch.setattr(PeerLiveness, "get_gone_since", gone_since)


def _failures_are_charged_at_once(patch: Patch) -> None:
    patch.setattr(charge, "must_await_cause", lambda *arguments: False)


def _a_round_ends_before_it_is_stopped(patch: Patch) -> None:
    patch.setattr(View, "has_stopped", lambda self, member_id: True)


def _writes_do_not_name_the_leader(patch: Patch) -> None:
    def anybody(self: GuardedWriter, *arguments: Any) -> None:
        self.leader_guard = self.leader_guard._replace(relation=">", operand=-1)
        write(self, *arguments)

    write = GuardedWriter.write
    patch.setattr(GuardedWriter, "write", anybody)


def _strangers_may_lead(patch: Patch) -> None:
    patch.setattr(Election, "may_lead", lambda self, job, seal, now: True)


def _doubtful_members_are_lost(patch: Patch) -> None:
    patch.setattr(View, "list_doubtful", lambda self, now: [])


def _unaware_members_are_gone(patch: Patch) -> None:
    patch.setattr(View, "list_unaware", lambda self, now: [])


def _watchdog_from_the_answer(patch: Patch) -> None:
    renewed = LeaseKeeper.extend_lease

    def later(self: LeaseKeeper, sent_at: float, ttl_s: float) -> None:
        renewed(self, sent_at + 3.0, ttl_s)  # as if the renewal had been sent when the late one was applied

    patch.setattr(LeaseKeeper, "extend_lease", later)


def _no_tidings(patch: Patch) -> None:
    patch.setattr(stale_watch.StaleWatchDetector, "advance", lambda self, job, now: None)


def _nobody_looks(patch: Patch) -> None:
    patch.setattr(WatchCache, "resync", lambda self, now, looked: None)
    patch.setattr(LeaseKeeper, "note_resync", lambda self, sent_at: None)


def _nobody_is_isolated(patch: Patch) -> None:
    patch.setattr(Settings, "isolation_s", math.inf)


def _departures_are_not_gathered(patch: Patch) -> None:
    patch.setattr(View, "is_leaving", lambda self, member_id: member_id == sorted(self.members)[0])


def _finished_members_are_pending(patch: Patch) -> None:
    patch.setattr(View, "is_pending", lambda self, member_id: member_id in self.active)


def _nobody_is_quarantined(patch: Patch) -> None:
    patch.setattr(quarantine, "find_quarantines", lambda losses, first_failures, settings: {})


def _poison_is_not_told_apart(patch: Patch) -> None:
    patch.setattr(quarantine, "find_poisoned_ranks", lambda first_failures: set())


def _any_command_will_do(patch: Patch) -> None:
    patch.setattr(join, "describe_difference", lambda run_id, theirs, ours: "")


def _nobody_answers_beats(patch: Patch) -> None:
    patch.setattr(Outage, "acknowledge", lambda self, job, seal, now: None)


def _beats_need_no_answers(patch: Patch) -> None:
    ask = Outage.send_probe

    def hold_at_once(self: Outage, *arguments: Any) -> None:
        ask(self, *arguments)
        self._awaited_ids.clear()
        self.count_acknowledgements(arguments[1].plan_token)

    patch.setattr(Outage, "send_probe", hold_at_once)


def _outages_have_no_limit(patch: Patch) -> None:
    patch.setattr(Outage, "is_endured", lambda self, now: self._member.lease.is_store_away)
    patch.setattr(LeaseKeeper, "hold_until", _hold_for_ever)


def _hold_for_ever(self: LeaseKeeper, until: float) -> None:
    self._member.emit(ExtendWatchdog(until - self._member.settings.kill_margin_s))
    self._held_until = max(self._held_until, until)


def _members_do_not_come_back(patch: Patch) -> None:
    patch.setattr(LeaseKeeper, "handle_end", lambda self, now: False)


def _requests_are_not_read(patch: Patch) -> None:
    patch.setattr(commands, "choose_request", lambda view: None)
    patch.setattr(decide, "choose_request", lambda view: None)


def _nobody_takes_over_on_request(patch: Patch) -> None:
    patch.setattr(Election, "find_takeover_request", lambda self, job: None)


def _with(**changes: Any) -> Callable[[Patch], None]:
    """A rule that a setting can switch off."""

    def change(settings: Settings) -> None:
        for name, value in changes.items():
            object.__setattr__(settings, name, value)

    return lambda patch: patch.setattr(Settings, "__post_init__", change)


@pytest.mark.parametrize(
    ("name", "take_out"),
    [
        ("peers_of_a_killed_node_fail_first", _a_round_ends_before_it_is_stopped),
        ("first_failure_is_the_verdict", _failures_are_charged_at_once),
        ("leader_dies_and_its_seal_comes_late", _writes_do_not_name_the_leader),
        ("rack_cut_from_the_store", _strangers_may_lead),
        ("rack_cut_from_the_store", _nobody_answers_beats),
        ("healed_one_after_the_other", _doubtful_members_are_lost),
        ("removed_and_nothing_tells_why", _unaware_members_are_gone),
        ("healed_one_after_the_other", _members_do_not_come_back),
        ("middlebox_resets_all_connections", _a_broken_connection_is_a_proof),
        ("leader_is_killed", _nobody_is_proven_gone),
        ("killed_node_is_proven_gone", _nobody_is_proven_gone),
        ("killed_agent_with_a_hanging_process", _a_broken_connection_is_a_proof),
        ("unprovable_node_is_lost_by_its_lease", _a_broken_connection_is_a_proof),
        ("keep_alive_applied_late", _watchdog_from_the_answer),
        ("stop_not_heard_while_the_watch_lags", _no_tidings),
        ("stop_not_heard_in_a_silent_cut", _nobody_looks),
        ("stop_not_heard_behind_a_firewall", _no_tidings),
        ("own_key_deleted_while_the_watch_lags", _no_tidings),
        ("reaches_the_store_but_no_peer", _nobody_is_isolated),
        ("leader_reaches_no_peer", _nobody_is_isolated),
        ("all_leave_within_a_tenth_of_a_second", _departures_are_not_gathered),
        ("finished_node_is_lost", _finished_members_are_pending),
        ("crash_loop_under_new_names", _nobody_is_quarantined),
        ("poison_on_one_node", _nobody_is_quarantined),
        ("poisoned_batch", _poison_is_not_told_apart),
        ("two_users_one_run_id", _any_command_will_do),
        ("outage_of_a_minute", _nobody_answers_beats),
        ("rack_cut_from_the_store", _members_do_not_come_back),
        ("outage_with_one_node_cut_off", _beats_need_no_answers),
        ("outage_beyond_its_limit", _outages_have_no_limit),
        ("drain_and_undrain", _requests_are_not_read),
        ("stop_by_command", _requests_are_not_read),
        ("takeover_by_command", _nobody_takes_over_on_request),
        ("thirty_one_of_thirty_two", _nobody_is_proven_gone),
        ("growth_at_a_checkpoint", _with(growth="delay")),
        ("port_taken_is_not_charged", _with(port_taken_rounds=0)),
        ("target_nodes_are_waited_for", _with(target_nodes=0)),
    ],
)
def test_a_schedule_ends_otherwise_without_its_rule(
    name: str, take_out: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    text = (TRANSCRIPTS / f"{name}.txt").read_text()
    assert transcript.VIOLATION not in text
    take_out(monkeypatch)
    assert transcript.run(text) != text
