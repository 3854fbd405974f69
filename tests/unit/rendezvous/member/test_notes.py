"""Notes of the program above: who gets them, and a person's request that the program answers."""

from __future__ import annotations

import pytest

from rendezvous import records
from rendezvous.events import (
    TO_ALL,
    TO_LEADER,
    TO_ROUND,
    AnswerCommand,
    NoteReceived,
    PassOn,
    PeerMessage,
    SendNote,
    SendToPeer,
)
from rendezvous.peers.messages import NOTE_MAX, Note, encode_message
from rendezvous.records import Command
from tests.support.protocol.follower import Follower
from tests.support.protocol.member_harness import none, only, running


@pytest.mark.parametrize("to", [TO_LEADER, TO_ROUND, TO_ALL])
def test_a_note_of_the_leader_to_itself_comes_back_at_once(to: str) -> None:
    bench = running()
    own_id = bench.protocol.member_id
    assert only(bench.tell(SendNote(to, "look")), NoteReceived) == NoteReceived(own_id, "look")


def test_a_member_reaches_the_leader_and_answers_another_member() -> None:
    member = Follower()
    assert only(member.tell(SendNote(TO_LEADER, "look")), SendToPeer) == SendToPeer("L", encode_message(Note("look")))
    assert none(member.tell(SendNote(TO_ROUND, "look")), SendToPeer, NoteReceived), "only the leader reaches all"
    received = member.tell(PeerMessage("L", encode_message(Note("seen"))))
    assert only(received, NoteReceived) == NoteReceived("L", "seen")


@pytest.mark.parametrize("text", ["x" * (NOTE_MAX + 1), '"' * (NOTE_MAX - 1), "\u00e9" * (NOTE_MAX // 2)])
def test_a_note_that_no_line_can_hold_is_not_sent(text: str) -> None:
    member = Follower()
    assert none(member.tell(SendNote(TO_LEADER, text)), SendToPeer)


def test_a_note_to_all_reaches_spares_too() -> None:
    bench = running()
    spare = records.Member(member_id="zz", node_name="spare", boot_id="b", description="{}")
    bench.store.put(bench.job.make_member_key("zz"), records.encode(spare))
    bench.settle()
    sent = bench.tell(SendNote(TO_ALL, "look"))
    assert only(sent, SendToPeer) == SendToPeer("zz", encode_message(Note("look")))
    assert none(bench.tell(SendNote(TO_ROUND, "look")), SendToPeer), "it has no ranks"
    assert bench.protocol.list_members() == {bench.protocol.member_id: "node", "zz": "spare"}
    assert bench.protocol.count_spares() == 1
    follower = Follower().protocol
    assert follower.list_members() == {}, "the leader alone knows all"
    assert follower.count_spares() == -1


def test_a_leader_knows_whether_another_may_have_led_before() -> None:
    assert not running().protocol.has_taken_over
    member = Follower(successors=("me",))
    assert not member.protocol.has_taken_over
    member.store.lease_revoke(member.lease)
    member.settle()
    member.pass_time(3.0)
    assert member.protocol.is_leader
    assert member.protocol.has_taken_over


def test_a_request_is_passed_on_once_and_its_answer_written() -> None:
    bench = running()
    key = bench.job.make_command_key("t1")
    bench.store.put(key, records.encode(Command(kind="why")))
    assert only(bench.settle(), PassOn) == PassOn("t1", "why")
    bench.store.put(bench.job.make_command_key("t2"), records.encode(Command(kind="drain", target="elsewhere")))
    assert none(bench.settle(), PassOn), "others are done meanwhile"
    assert bench.store.get(bench.job.make_command_key("t2")).first is None
    bench.tell(AnswerCommand("t1", "rank 5 is late"))
    found = bench.store.get(key).first
    assert found is not None
    assert records.decode(Command, found.value, found.key).answer == "rank 5 is late"
