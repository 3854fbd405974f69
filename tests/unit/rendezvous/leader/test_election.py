"""Who leads after the leader: its successors once it is proven gone, the roster when its key is gone, others never.

The member on the bench is one of a round that L leads, see tests/support/protocol/follower.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from rendezvous.errors import StoreError
from rendezvous.events import (
    ConnectTo,
    Event,
    LeaveRequest,
    Log,
    MakePlan,
    PeerDown,
    PeerGone,
    PeerMessage,
    PeerUp,
    RoundStopped,
    SendToPeer,
    StopRound,
    StoreRejected,
    StoreRequest,
    Txn,
)
from rendezvous.peers.messages import KnownRevision, encode_message
from rendezvous.reasons import Reason
from rendezvous.records import Assignment, Command, LeaderRecord, Member, Status, Stop, Verdict
from rendezvous.stores.contract import Delete, Get, Put
from tests.support.protocol.follower import JOB, L_IS, Follower, asked
from tests.support.protocol.member_harness import none, only
from tests.support.reasons import because

# --- attending


def test_a_member_keeps_connections_to_the_leader_and_to_the_next_one() -> None:
    member = Follower()
    assert only(member.first, ConnectTo) == ConnectTo("L", L_IS)
    member.record(
        JOB.leader, LeaderRecord(member_id="S", node_name="node S", presence_address="10.0.0.8:7000"), member.lease
    )
    assert only(member.settle(), ConnectTo) == ConnectTo("S", "10.0.0.8:7000")


def test_the_loss_of_presence_alone_stops_nothing_and_elects_nobody() -> None:
    member = Follower(successors=("me",))
    member.tell(PeerUp("L", L_IS, True))
    member.tell(PeerDown("L"))
    actions = member.pass_time(12.0)
    assert none(actions, StopRound)
    assert not member.leads


# --- taking over


def test_the_first_successor_takes_over_at_once_from_a_leader_proven_gone() -> None:
    member = Follower(successors=("me", "S"))
    actions = member.lose_leader()
    (takeover,) = asked(actions, "take over")
    assert {(c.key, c.target) for c in takeover.compares} == {
        (JOB.leader, "mod"),
        (JOB.make_member_key("L"), "mod"),
        (JOB.make_member_key(member.id), "create"),
        (JOB.verdict, "create"),
        (JOB.round, "mod"),
        (JOB.spares, "mod"),
    }
    writes = [operation for operation in takeover.success if isinstance(operation, (Put, Delete))]
    assert {operation.key for operation in writes} == {JOB.leader, JOB.make_member_key("L")}
    assert member.leads
    assert member.store.get(JOB.make_member_key("L")).first is None


def test_a_new_leader_tells_the_planner_the_name_of_the_lost_node() -> None:
    member = Follower(successors=("me",))
    member.lose_leader()
    member.tell(RoundStopped(1, 4001))
    member.record(JOB.make_status_key("S"), Status(round=1, plan_token="plan", is_stopped=True))
    order = only(member.made + member.pass_time(5.0), MakePlan)
    assert order.names == {"L": "node L", "S": "node S", member.id: "node"}


def test_the_second_successor_waits_for_the_first() -> None:
    member = Follower(successors=("S", "me"), successor_delay_s=0.3)
    member.lose_leader()
    assert not member.leads
    member.wait(0.2)
    assert not member.leads
    member.wait(0.11)
    assert member.leads


@pytest.mark.parametrize(
    ("member", "loss"),
    [
        (("S",), {}),
        (("me",), {"is_provable": False}),
        (("me",), {"address": "10.0.0.7:7000"}),
    ],
    ids=["no successor", "the connection was not direct", "another address refused"],
)
def test_nobody_else_takes_over_before_the_lease_has_ended(member: tuple[str, ...], loss: dict[str, Any]) -> None:
    follower = Follower(successors=member)
    follower.lose_leader(**loss)
    follower.pass_time(3.0)
    assert not follower.leads


def test_who_is_about_to_leave_takes_nothing_over() -> None:
    member = Follower(successors=("me",))
    member.tell(LeaveRequest(because("SIGTERM"), 143))
    member.lose_leader()
    assert not member.leads


def test_a_leader_that_has_registered_again_meanwhile_is_not_deleted() -> None:
    member = Follower(successors=("me",))
    member.tell(PeerUp("L", L_IS, True))
    member.tell(PeerDown("L"))
    member.step(PeerGone("L"))
    while not (writes := [ask for ask in member.asks if ask.kind.startswith("take over")]):
        member.settle_one()
    record = member.store.get(JOB.make_member_key("L")).first
    assert record is not None
    member.put(JOB.make_member_key("L"), record.value, member.lease)
    member.answer(writes[0])
    assert not member.leads
    assert member.store.get(JOB.make_member_key("L")).first is not None


def test_a_job_that_has_ended_is_not_taken_over() -> None:
    member = Follower(successors=("me",))
    member.tell(PeerUp("L", L_IS, True))
    member.tell(PeerDown("L"))
    member.step(PeerGone("L"))
    while not (writes := [ask for ask in member.asks if ask.kind.startswith("take over")]):
        member.settle_one()
    member.record(JOB.verdict, Verdict(kind="failure", exit_code=3, round=1, reason=because("over")))
    member.answer(writes[0])
    assert not member.leads


# --- the key is gone


@pytest.mark.parametrize("role", ["active", "spare"])
def test_when_the_key_is_gone_the_roster_tries_within_a_second(role: str) -> None:
    member = Follower(role)
    member.store.delete(JOB.leader)
    member.settle()
    assert not member.leads, "not all at once"
    member.wait(1.0)
    assert member.leads


def test_when_the_leader_has_left_its_first_successor_leads_at_once() -> None:
    member = Follower(successors=("me", "S"))
    member.store.delete(JOB.leader)
    member.settle()
    assert member.leads


def test_the_leader_that_has_left_is_not_waited_for_as_a_successor() -> None:
    member = Follower(successors=("L", "me"))
    member.store.delete(JOB.leader)
    member.settle()
    assert member.leads


def test_the_second_successor_waits_for_the_first_when_a_leader_has_left() -> None:
    member = Follower(successors=("S", "me"), successor_delay_s=0.3)
    member.store.delete(JOB.leader)
    member.settle()
    member.wait(0.2)
    assert not member.leads
    member.wait(0.11)
    assert member.leads


@pytest.mark.parametrize("successors", [("S",), ("me",)], ids=["no successor", "a successor that leaves, too"])
def test_all_others_try_behind_the_successors(successors: tuple[str, ...]) -> None:
    member = Follower(successors=successors, successor_delay_s=3.0)
    if "me" in successors:
        member.tell(LeaveRequest(because("SIGTERM"), 143))
    member.store.delete(JOB.leader)
    member.settle()
    member.wait(2.9)
    assert not member.leads
    member.wait(1.2)
    assert member.leads


def outsider(**settings: Any) -> Follower:
    """Somebody who came late, as L and S vanish without a proof."""
    member = Follower("outsider", outage_limit_s=20.0, **settings)
    member.store.lease_revoke(member.lease)
    member.settle()
    return member


def test_a_non_member_takes_over_only_once_an_outage_would_be_over() -> None:
    member = outsider()
    said = [action.reason for action in member.pass_time(20.0) if isinstance(action, Log)]
    assert said == [Reason.of("takeover-put-off", round=1, limit_s=25.0)]
    assert not member.leads
    member.pass_time(8.0)
    assert member.leads


def test_a_member_that_comes_back_makes_a_waiting_non_member_start_over() -> None:
    member = outsider()
    member.pass_time(15.0)
    here = member.store.lease_grant(5.0).id
    member.record(JOB.make_member_key("S"), Member(member_id="S", node_name="s", boot_id="", description=""), here)
    member.pass_time(16.0)
    assert not member.leads
    member.pass_time(16.0)
    assert member.leads


def test_later_non_members_read_the_store_seldom_and_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rendezvous.leader.takeover.OBSERVERS_MAX", 0)
    member = outsider()
    looks = asked(member.pass_time(40.0), "look for roster")
    assert 4 <= len(looks) <= 9
    assert not any(Get(JOB.make_assignments_prefix(1, "plan"), True) in look.success for look in looks)
    monkeypatch.undo()  # those before it have gone
    member.pass_time(20.0)
    assert not member.leads
    member.pass_time(15.0)
    assert member.leads


def test_a_non_member_takes_over_at_once_if_workers_stop_in_an_outage() -> None:
    member = outsider(continues_without_store=False)
    member.pass_time(1.5)
    assert member.leads


def test_a_non_member_takes_over_once_each_node_has_a_new_agent() -> None:
    member = outsider()
    here = member.store.lease_grant(60.0).id
    member.record(
        JOB.make_member_key("L2"), Member(member_id="L2", node_name="node L", boot_id="", description=""), here
    )
    member.pass_time(4.0)
    assert not member.leads
    member.record(
        JOB.make_member_key("S2"), Member(member_id="S2", node_name="node S", boot_id="", description=""), here
    )
    member.pass_time(4.0)
    assert member.leads


def test_a_takeover_command_lets_a_non_member_lead_and_is_consumed() -> None:
    member = outsider()
    member.record(JOB.make_command_key("token"), Command(kind="takeover"))
    actions = [*member.settle(), *member.wait(1.0)]
    (campaign,) = asked(actions, "lead")
    assert Delete(JOB.make_command_key("token")) in campaign.success
    assert (JOB.make_command_key("token"), "mod") in {(c.key, c.target) for c in campaign.compares}
    assert member.leads


def test_an_unreadable_leader_is_none() -> None:
    member = Follower()
    member.put(JOB.leader, b"rubbish")
    member.settle()
    member.wait(1.0)
    assert member.leads


# --- a watch that is silent


def test_who_is_told_of_something_newer_reads_again_and_acts() -> None:
    member = Follower()
    member.silence(JOB.control)
    member.record(JOB.stop, Stop(round=1, reason=because("over there"), mode="kill"))
    assert none(member.wait(0.5), StopRound)
    revision = member.store.get(JOB.stop).revision
    assert none(
        member.tell(PeerMessage("S", encode_message(KnownRevision(revision, True)))), StopRound, StoreRequest
    ), "S does not lead"
    told = member.tell(PeerMessage("L", encode_message(KnownRevision(revision, True))))
    assert only(told, StopRound).reason == because("over there")


def test_who_is_told_that_it_is_no_member_looks_and_is_fenced() -> None:
    member = Follower()
    own = JOB.make_member_key(member.id)
    member.silence(own)
    member.store.delete(own)
    actions = member.tell(PeerMessage("L", encode_message(KnownRevision(0, False))))
    assert only(actions, StopRound).mode == "fence"


def test_without_a_word_a_silent_watch_is_found_out_within_some_leases() -> None:
    member = Follower()
    member.silence(JOB.control)
    member.record(JOB.stop, Stop(round=1, reason=because("over there"), mode="kill"))
    assert none(member.pass_time(5.0), StopRound)
    assert only(member.pass_time(6.0), StopRound).reason == because("over there")


class Unserved(Follower):
    """From some time on the store serves it no read of the control keys, and all else."""

    is_refusing = False

    def _outcome(self, ask: StoreRequest) -> Event:
        reads = ask.request.success if isinstance(ask.request, Txn) and not ask.request.compares else ()
        if self.is_refusing and Get(JOB.control, True) in reads:
            return StoreRejected(ask.id, StoreError("too much"))
        return super()._outcome(ask)


def test_after_a_watch_has_ended_a_view_is_stale_until_it_is_read_again() -> None:
    member = Unserved(lease_ttl_s=5.0, resync_ttls=2.0, view_ttls=7.0)
    member.is_refusing = True
    member.lose(JOB.control)
    actions = member.pass_time(36.0)
    assert only(actions, StopRound).mode == "fence"
    lost = Reason.of("membership-lost", why=Reason.of("view-expired"))
    assert lost in [action.reason for action in actions if isinstance(action, Log)]


def test_a_leader_tells_each_change_once_and_to_those_that_connect() -> None:
    member = Follower()
    member.store.delete(JOB.leader)
    member.settle()
    member.wait(1.0)
    assert member.leads
    member.tell(PeerUp("S", "10.0.0.8:7000", True))
    tells = [action for action in member.pass_time(4.0) if isinstance(action, SendToPeer)]
    assert [tell.member_id for tell in tells] == ["S"]
    member.tell(PeerUp("X", "10.0.0.7:7000", True))
    tells = [action for action in member.pass_time(1.5) if isinstance(action, SendToPeer)]
    assert {(tell.member_id, "false" in tell.text) for tell in tells} == {("X", True)}, "X is no member"


# --- after a store that ends leases early


def test_a_successor_of_a_connected_leader_waits_for_all_missing_members() -> None:
    """The leader was connected, so its lease ended early; S was connected to the leader alone, if to anybody."""
    member = Follower()
    member.tell(PeerUp("L", L_IS, True))
    member.store.lease_revoke(member.lease)
    member.pass_time(1.5)
    assert member.leads
    member.tell(RoundStopped(1, 4001))
    member.lease = member.store.lease_grant(60.0).id
    back = Member(member_id="L2", node_name="node L", boot_id="", description="")
    member.record(JOB.make_member_key("L2"), back, member.lease)
    assert not asked(member.settle(), "seal")
    assert asked(member.pass_time(5.0), "seal")


@pytest.mark.parametrize("is_parted_first", [False, True])
def test_a_leader_that_lost_its_lease_early_waits_for_connected_members(is_parted_first: bool) -> None:
    member = Follower()
    member.tell(PeerUp("L", L_IS, True))
    if is_parted_first:
        member.tell(PeerDown("L"))
    assert member.state.lease.id is not None
    member.store.lease_revoke(member.state.lease.id)
    member.store.lease_revoke(member.lease)
    member.settle()
    if not is_parted_first:
        member.tell(PeerDown("L"))
    member.tell(RoundStopped(1, 4001))
    actions = member.pass_time(2.0)
    assert member.leads
    assert not asked(actions, "seal")
    assert asked(member.pass_time(6.0), "seal")


def test_the_wait_for_a_connected_member_counts_from_its_disappearance() -> None:
    """Its lease was renewed until then."""
    member = Follower()
    own = Assignment(round=1, plan_token="plan", content="ranks", node="node boot")
    member.record(JOB.make_assignment_key(1, "plan", member.id), own)  # so that nobody waits for the membership before
    member.record(JOB.make_status_key("S"), Status(round=1, plan_token="plan", is_stopped=True))
    member.tell(PeerUp("L", L_IS, True))
    assert member.state.lease.id is not None
    member.store.lease_revoke(member.state.lease.id)
    member.settle()
    member.tell(PeerDown("L"))
    member.tell(RoundStopped(1, 4001))
    member.pass_time(3.0)
    member.store.lease_revoke(member.lease)
    assert not asked(member.pass_time(4.5), "seal")
    assert asked(member.pass_time(2.0), "seal")


def test_who_ran_out_of_time_and_leads_then_waits_for_nobody() -> None:
    member = Follower()
    member.tell(PeerUp("L", L_IS, True))
    member.store.lease_revoke(member.lease)
    member.now += 10.0
    member.tell(PeerDown("L"))
    assert asked(member.tell(RoundStopped(1, 4001)), "seal")
