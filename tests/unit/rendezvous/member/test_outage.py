"""The store is away: who gives its word to whom, what holds a watchdog beyond the lease, and the way back."""

from __future__ import annotations

from typing import Any

import pytest

from rendezvous import records
from rendezvous.events import (
    Exit,
    ExtendWatchdog,
    KeepAlive,
    PeerDown,
    PeerGone,
    PeerMessage,
    PeerUp,
    RoundFailed,
    RoundStopped,
    RoundSucceeded,
    SendToPeer,
    Start,
    StartRound,
    StopRound,
    StoreOutcomeUnknown,
    StoreReply,
    StoreRequest,
    Tick,
)
from rendezvous.peers.messages import OutageAck, OutageConfirmed, OutageProbe, decode_message, encode_message
from rendezvous.records import Member, Seal, StoreOwner
from tests.support.protocol.follower import JOB, Follower, asked
from tests.support.protocol.member_harness import Bench, none, only, running
from tests.support.reasons import because


class Cut(Follower):
    """A follower whose store has just gone away, at 100 s; its lease was renewed then, and ends at 105 s."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.pass_time(0.5)
        self.lose_store()

    def lose_store(self) -> None:
        self.wait(1.0)
        self.kept_at = self.now
        self.is_away = True

    def ask(self, beat: int, plan_token: str = "plan", by: str = "L") -> list[Any]:
        return self.tell(PeerMessage(by, encode_message(OutageProbe(beat, plan_token))))

    def hold(self, beat: int, plan_token: str = "plan", by: str = "L") -> list[Any]:
        return self.tell(PeerMessage(by, encode_message(OutageConfirmed(beat, plan_token))))

    def beats(self, count: int, beat_s: float = 1.0) -> list[Any]:
        """The leader and everybody else do their part, once per beat."""
        made: list[Any] = []
        for beat in range(1, count + 1):
            made += [*self.ask(beat), *self.hold(beat), *self.pass_time(beat_s)]
        return made

    def lose_lease(self) -> None:
        """The lease ends in the store, which shows only when it is back."""
        own = self.store.get(JOB.make_member_key(self.id)).first
        assert own is not None
        self.store.lease_revoke(own.lease)


def words(actions: list[Any]) -> list[tuple[str, Any]]:
    """What was told to whom."""
    return [(action.member_id, decode_message(action.text)) for action in actions if isinstance(action, SendToPeer)]


# --- giving one's word


def test_a_member_acknowledges_only_when_it_cannot_reach_the_store_itself() -> None:
    member = Cut()
    assert words(member.ask(7)) == [], "its last renewal was answered"
    assert words(member.pass_time(1.0)) == [("L", OutageAck(7, "plan"))]
    assert words(member.ask(8)) == [("L", OutageAck(8, "plan"))]


def test_a_member_that_reaches_the_store_again_acknowledges_no_more() -> None:
    member = Cut()
    member.pass_time(1.5)
    member.is_away = False
    member.pass_time(0.5)
    assert words(member.ask(1)) == []


def test_a_member_gives_no_word_for_a_beat_that_is_over() -> None:
    member = Cut()
    member.pass_time(1.5)
    member.is_away = False
    member.pass_time(0.5)
    member.ask(1)
    member.pass_time(3.0)
    member.is_away = True
    assert words(member.pass_time(3.0)) == []


@pytest.mark.parametrize(
    ("plan_token", "by", "settings"),
    [
        ("other", "L", {}),
        ("plan", "S", {}),
        ("plan", "L", {"continues_without_store": False}),
        ("plan", "L", {"outage_limit_s": 1.0}),
    ],
    ids=["another round", "not the leader", "outages are not held out", "it has lasted too long"],
)
def test_no_word_is_given(plan_token: str, by: str, settings: dict[str, Any]) -> None:
    member = Cut(**settings)
    member.pass_time(1.5)
    assert words(member.ask(1, plan_token, by)) == []


def test_a_member_that_has_acknowledged_replaces_no_leader_for_a_while() -> None:
    member = Cut(lease_ttl_s=5.0, probe_s=1.0, kill_margin_s=1.0)
    member.pass_time(1.5)
    member.ask(1)
    assert member.state.outage.no_omission_before == member.now + 5.0 + 1.0 + 1.0


# --- the watchdog


def test_without_the_word_of_all_the_workers_end_with_the_lease() -> None:
    member = Cut()
    for beat in range(12):
        actions = [*member.ask(beat), *member.pass_time(0.5)]
        if member.now >= member.kept_at + 5.0:
            assert only(actions, StopRound).mode == "fence"
            return
        assert none(actions, StopRound, ExtendWatchdog)
    pytest.fail("they never ended")


def test_the_watchdog_is_held_from_when_the_word_was_given() -> None:
    member = Cut()
    member.pass_time(1.5)
    member.ask(1)
    given_at = member.now
    member.pass_time(1.0)
    assert only(member.hold(1), ExtendWatchdog).until == given_at + 5.0 - 1.0


@pytest.mark.parametrize(("beat", "plan_token", "by"), [(2, "plan", "L"), (1, "other", "L"), (1, "plan", "S")])
def test_the_watchdog_is_held_by_nothing_else(beat: int, plan_token: str, by: str) -> None:
    member = Cut()
    member.pass_time(1.5)
    member.ask(1)
    assert none(member.hold(beat, plan_token, by), ExtendWatchdog)


def test_a_round_lives_through_a_minute_without_a_store_on_default_times() -> None:
    member = Cut()
    member.pass_time(1.5)
    assert none(member.beats(60), StopRound)
    assert member.state.round.alive_round == 1
    assert member.protocol.member_id == member.id


def test_an_outage_ends_at_its_limit() -> None:
    member = Cut(outage_limit_s=20.0)
    member.pass_time(1.5)
    actions = member.beats(17)
    assert none(actions, StopRound)
    assert max(action.until for action in actions if isinstance(action, ExtendWatchdog)) == member.kept_at + 20.0 - 1.0
    assert only(member.beats(4), StopRound).mode == "fence"


def test_nothing_is_written_while_the_lease_is_over() -> None:
    member = Cut()
    member.pass_time(1.5)
    member.beats(6)
    member.tell(RoundFailed(1, 3, False, "first"))
    asks = [action.request for action in member.beats(4) if isinstance(action, StoreRequest)]
    assert asks
    assert all(isinstance(request, KeepAlive) for request in asks)


# --- the way back


def test_a_lease_that_has_lived_on_in_the_store_is_simply_renewed() -> None:
    member = Cut()
    member.pass_time(1.5)
    lease = member.state.lease.id
    assert lease is not None
    for _ in range(10):
        member.beats(1)
        member.store.lease_keep_alive(lease)  # as a server does that has been away: it begins all leases anew
    member.is_away = False
    actions = member.pass_time(0.5)
    assert none(actions, StopRound)
    assert asked(actions, "register again") == []
    assert member.state.lease.ends_at >= member.now + 4.0


def back(member: Cut) -> list[Any]:
    """The store is back, and the leases have ended there."""
    member.lose_lease()
    member.is_away = False
    return member.pass_time(1.0)


def test_a_confirmed_member_registers_on_a_new_lease_and_the_round_goes_on() -> None:
    member = Cut()
    member.pass_time(1.5)
    member.beats(10)
    before = member.store.get(JOB.make_member_key(member.id)).first
    assert before is not None
    actions = back(member)
    assert none(actions, StopRound)
    (request,) = asked(actions, "register again")
    assert {(c.key, c.target, c.operand) for c in request.compares} == {
        (JOB.make_member_key(member.id), "create", 0),
        (JOB.round, "mod", member.state.cache.keys.get_revision(JOB.round)),
        (JOB.verdict, "create", 0),
        ("/p/r/current", "mod", member.store.get("/p/r/current").items[0].mod_revision),
    }
    own = member.store.get(JOB.make_member_key(member.id)).first
    assert own is not None
    assert own.lease != before.lease
    assert member.state.membership.revision == own.create_revision > before.create_revision
    assert records.decode(Member, own.value, own.key).member_id == member.id
    assert none(member.pass_time(12.0), StopRound), "and the new lease is renewed"


@pytest.mark.parametrize("what", ["round", "verdict", "current"])
def test_workers_are_killed_and_a_new_member_joins_if_the_others_went_on(what: str) -> None:
    member = Cut()
    member.pass_time(1.5)
    member.beats(10)
    if what == "round":
        member.record(
            JOB.round, Seal(round=2, plan_token="next", world_size=1, coordinator="c:2", reason=because("enough"))
        )
    else:
        member.put(JOB.verdict if what == "verdict" else "/p/r/current", b"another")
    assert only(back(member), StopRound).mode == "fence"
    assert member.protocol.member_id != member.id


def test_a_lease_that_is_gone_is_the_end_where_nothing_holds_the_member() -> None:
    member = Cut()
    member.silence(JOB.make_member_key(member.id))
    assert only(back(member), StopRound).mode == "fence"
    member.tell(RoundStopped(1, 4001))
    assert member.protocol.member_id != member.id


def test_a_registration_whose_answer_was_lost_is_found() -> None:
    member = Cut()
    member.pass_time(1.5)
    member.beats(10)
    member.lose_lease()
    member.is_away = False
    member.wait(0.5)
    member.now += 0.5
    member.step(Tick())
    while not (asks := [ask for ask in member.asks if ask.kind == "register again"]):
        assert member.settle_one()
    member.serve(asks[0].request)
    member.asks.remove(asks[0])
    member.step(StoreOutcomeUnknown(asks[0].id))
    assert none(member.pass_time(1.0), StopRound)
    assert member.protocol.member_id == member.id


def test_a_registration_answered_after_its_lease_has_expired_is_taken_in() -> None:
    member = Cut()
    member.pass_time(1.5)
    member.beats(10)
    member.lose_lease()
    member.is_away = False
    first = wait_for_registration(member)
    member.step(StoreOutcomeUnknown(first.id))  # the store is away again, before it has seen the request
    second = wait_for_registration(member)
    reply = StoreReply(second.id, member.serve(second.request))
    member.is_away = True
    for probe in range(11, 19):  # and for longer than the new lease lives
        member.ask(probe)
        member.hold(probe)
        member.pass_time(1.0)
    member.step(reply)
    assert member.state.membership.revision == reply.answer.found[0].items[0].create_revision


def wait_for_registration(member: Cut) -> StoreRequest:
    """The next request to register again, which stays without a reply."""
    for _ in range(100):
        found = [ask for ask in member.asks if ask.kind == "register again"]
        if found:
            member.asks.remove(found[0])
            return found[0]
        if not member.settle_one():
            member.now += 0.1
            member.step(Tick())
    raise AssertionError("it does not register again")


def test_a_held_member_whose_key_somebody_deleted_is_fenced() -> None:
    member = Cut()
    member.pass_time(1.5)
    lease = member.state.lease.id
    assert lease is not None
    for _ in range(10):
        member.beats(1)
        member.store.lease_keep_alive(lease)
    member.store.delete(JOB.make_member_key(member.id))
    member.is_away = False
    assert only(member.pass_time(0.5), StopRound).mode == "fence"
    assert member.store.get(JOB.make_member_key(member.id)).first is None


# --- the leader's part


class Leader(Cut):
    """The member on the bench leads; L and S have ranks, too."""

    def lose_store(self) -> None:
        self.store.delete(JOB.leader)
        self.settle()
        self.wait(1.0)
        for member_id, address in (("L", "10.0.0.9:7000"), ("S", "10.0.0.8:7000")):
            self.tell(PeerUp(member_id, address, True))
        super().lose_store()
        assert self.leads

    def word(self, member_id: str, beat: int) -> list[Any]:
        return self.tell(PeerMessage(member_id, encode_message(OutageAck(beat, "plan"))))

    def questions(self, actions: list[Any]) -> list[tuple[str, int]]:
        return [(to, message.probe) for to, message in words(actions) if isinstance(message, OutageProbe)]


def test_a_leader_probes_all_and_confirms_once_all_have_acknowledged() -> None:
    leader = Leader()
    actions = leader.pass_time(1.0)
    assert leader.questions(actions) == [("L", 1), ("S", 1)]
    asked_at = leader.now
    assert words(leader.word("L", 1)) == []
    assert none(leader.word("X", 1), ExtendWatchdog, SendToPeer), "whoever that is"
    actions = leader.word("S", 1)
    assert words(actions) == [("L", OutageConfirmed(1, "plan")), ("S", OutageConfirmed(1, "plan"))]
    assert only(actions, ExtendWatchdog).until == asked_at + 5.0 - 1.0
    assert leader.questions(leader.pass_time(1.0)) == [("L", 2), ("S", 2)]


def test_a_beat_without_everybody_s_word_in_time_is_void() -> None:
    leader = Leader(probe_s=1.0)
    leader.pass_time(1.0)
    leader.word("L", 1)
    leader.pass_time(1.5)
    assert words(leader.word("S", 1)) == []
    assert none(leader.word("L", 1), ExtendWatchdog)


def test_a_word_that_a_frozen_leader_finds_when_it_goes_on_is_too_late() -> None:
    leader = Leader(probe_s=1.0)
    leader.pass_time(1.0)
    leader.word("L", 1)
    leader.now += 1.2
    assert not [message for _, message in words(leader.word("S", 1)) if isinstance(message, OutageConfirmed)]


def test_a_leader_that_alone_cannot_reach_the_store_ends_with_its_lease() -> None:
    leader = Leader()
    stops = [action for action in leader.pass_time(5.0) if isinstance(action, StopRound)]
    assert [stop.mode for stop in stops] == ["fence"]


def test_nobody_waits_for_the_word_of_a_member_that_is_proven_gone() -> None:
    leader = Leader()
    leader.tell(PeerDown("S"))
    leader.tell(PeerGone("S"))
    assert leader.questions(leader.pass_time(1.0)) == [("L", 1)]
    assert words(leader.word("L", 1)) == [("L", OutageConfirmed(1, "plan"))]


def test_a_single_node_acknowledges_itself() -> None:
    bench: Bench = running()
    bench.is_away = True
    for _ in range(120):
        assert none(bench.wait(0.5), StopRound)
    bench.is_away = False
    assert none(bench.wait(0.5), StopRound)
    assert bench.state.round.alive_round == 1


def test_a_leader_with_a_write_under_way_asks_nobody() -> None:
    leader = Leader()
    leading = leader.state.leadership
    assert leading is not None
    leading.is_loaded = False
    assert leader.questions(leader.pass_time(2.0)) == []


# --- a store that an agent served does not return

OWNER = StoreOwner(prefix="p", run_id="r", node_name="head", presence_address="10.0.0.9:1")


def acknowledgements(actions: list[Any]) -> list[OutageAck]:
    texts = [action.text for action in actions if isinstance(action, SendToPeer)]
    return [message for text in texts if isinstance(message := decode_message(text), OutageAck)]


@pytest.mark.parametrize("is_served", [True, False])
def test_a_member_says_whether_it_is_done_and_ends_when_all_are(is_served: bool) -> None:
    member = Cut(options={"store_owner": OWNER if is_served else None})
    member.pass_time(1.5)
    assert [ack.is_done for ack in acknowledgements(member.ask(1))] == [False]
    member.hold(1)
    member.tell(RoundSucceeded(1))
    assert [ack.is_done for ack in acknowledgements(member.ask(2))] == [True]
    assert none(member.hold(2), Exit), "others are not"
    member.ask(3)
    member.tell(PeerMessage("L", encode_message(OutageConfirmed(3, "plan", is_over=True))))
    ended = [action.exit_code for action in member.tell(RoundStopped(1, 4001)) if isinstance(action, Exit)]
    assert ended == ([0] if is_served else [])


@pytest.mark.parametrize(
    ("is_served", "is_own_done", "are_others_done", "is_over"),
    [
        (True, True, True, True),
        (True, True, False, False),
        (True, False, True, False),
        (False, True, True, False),
    ],
)
def test_the_leader_ends_the_job_without_the_store_once_all_are_done(
    is_served: bool, is_own_done: bool, are_others_done: bool, is_over: bool
) -> None:
    bench = Bench(options={"store_owner": OWNER if is_served else None})
    other = Member(member_id="other", node_name="other", boot_id="", description="", presence_address="10.0.0.8:1")
    bench.step(Start())
    while not bench.store.get(records.make_current_key("p", "r")).first:
        assert bench.settle_one()
    bench.store.put(bench.job.make_member_key("other"), records.encode(other))
    made = bench.settle()
    assert only(made, StartRound).world_size == 2
    if is_own_done:
        bench.tell(RoundSucceeded(1))
        bench.tell(RoundStopped(1, 4001))
    bench.is_away = True
    probes: list[OutageProbe] = []
    for _ in range(6):
        sent = [action.text for action in bench.wait(0.5) if isinstance(action, SendToPeer)]
        probes += [message for text in sent if isinstance(message := decode_message(text), OutageProbe)]
        if probes:
            break
    ack = OutageAck(probes[-1].probe, probes[-1].plan_token, is_done=are_others_done)
    made = bench.tell(PeerMessage("other", encode_message(ack)))
    texts = [action.text for action in made if isinstance(action, SendToPeer)]
    assert OutageConfirmed(ack.probe, ack.plan_token, is_over=is_over) in map(decode_message, texts)
    assert [end.exit_code for end in made if isinstance(end, Exit)] == ([0] if is_over else [])
