"""Each rule of the agreement is there for a schedule that breaks without it.

A rule is taken out, its schedule is played, and what happens must be something else: the record differs, or the
checker complains. A row that passes without its rule would show that the rule, or the transcript, is of no use.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import transcript
from tests.support.protocol.rules import SWITCHES, take_out

TRANSCRIPTS = Path(__file__).parent / "transcripts"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("peers_of_a_killed_node_fail_first", "a round ends before it is stopped"),
        ("first_failure_is_the_verdict", "failures are charged at once"),
        ("leader_dies_and_its_seal_comes_late", "writes do not name the leader"),
        ("rack_cut_from_the_store", "non-members of the roster may lead"),
        ("rack_cut_from_the_store", "nobody acknowledges probes"),
        ("healed_one_after_the_other", "doubtful members are lost"),
        ("removed_and_nothing_tells_why", "unaware members are gone"),
        ("healed_one_after_the_other", "members do not come back"),
        ("middlebox_resets_all_connections", "a broken connection is a proof"),
        ("leader_is_killed", "nobody is proven gone"),
        ("killed_node_is_proven_gone", "nobody is proven gone"),
        ("killed_agent_with_a_hanging_process", "a broken connection is a proof"),
        ("unprovable_node_is_lost_by_its_lease", "a broken connection is a proof"),
        ("keep_alive_applied_late", "the watchdog counts from the answer"),
        ("stop_not_heard_while_the_watch_lags", "the leader tells no revisions"),
        ("stop_not_heard_in_a_silent_cut", "nobody reads again"),
        ("stop_not_heard_behind_a_firewall", "the leader tells no revisions"),
        ("own_key_deleted_while_the_watch_lags", "the leader tells no revisions"),
        ("reaches_the_store_but_no_peer", "nobody is isolated"),
        ("leader_reaches_no_peer", "nobody is isolated"),
        ("all_leave_within_a_tenth_of_a_second", "departures are not gathered"),
        ("finished_node_is_lost", "finished members are pending"),
        ("crash_loop_under_new_names", "nobody is quarantined"),
        ("poison_on_one_node", "nobody is quarantined"),
        ("poisoned_batch", "a poisoned batch is not told apart"),
        ("two_users_one_run_id", "any command will do"),
        ("store_restored_below_a_job", "a store that goes back is believed"),
        ("outage_of_a_minute", "nobody acknowledges probes"),
        ("rack_cut_from_the_store", "members do not come back"),
        ("outage_with_one_node_cut_off", "probes need no acknowledgements"),
        ("outage_beyond_its_limit", "outages have no limit"),
        ("drain_and_undrain", "requests are not read"),
        ("stop_by_command", "requests are not read"),
        ("later_attempt_ends_the_earlier", "a later attempt asks nobody"),
        ("later_attempt_ends_the_earlier", "a later attempt waits for nobody"),
        ("frozen_attempt_is_replaced", "a later attempt waits for nobody"),
        ("takeover_by_command", "nobody takes over on request"),
        ("thirty_one_of_thirty_two", "nobody is proven gone"),
    ],
)
def test_a_schedule_ends_otherwise_without_its_rule(name: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = _read(name)
    take_out(monkeypatch, rule)
    assert transcript.run(text) != text


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("growth_at_a_checkpoint", "set grow=delay\n"),
        ("port_taken_is_not_charged", "set port_taken_rounds=0\n"),
        ("target_nodes_are_waited_for", "set target_nodes=0\n"),
    ],
)
def test_a_schedule_ends_otherwise_under_other_settings(name: str, change: str) -> None:
    text = _read(name)
    assert transcript.run(text.replace("start ", f"{change}start ", 1)).replace(change, "", 1) != text


def test_only_public_functions_are_taken_out() -> None:
    places = [place for switches in SWITCHES.values() for switch in switches for place in switch.places]
    assert [name for _, name in places if name.startswith("_")] == []


def _read(name: str) -> str:
    text = (TRANSCRIPTS / f"{name}.txt").read_text()
    assert transcript.VIOLATION not in text
    return text
