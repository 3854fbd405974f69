"""The contract of a member: what comes out for what went in, one event at a time.

Most of it is in transcripts/, whose words tests/support/protocol/member_transcript.py explains. To accept a change, run
with UPDATE_TRANSCRIPTS=1 and read the difference as you would code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from rendezvous import __version__, events, records
from rendezvous.errors import LeaseNotFound, SettingsError, StoreError
from rendezvous.events import TO_LEADER, Event, Exit, Log, SendNote, SendToPeer, Start, StartRound, StopRound, Tick
from rendezvous.peers.messages import NOTE_MAX
from rendezvous.reasons import Reason
from rendezvous.state.state import LeaseState
from rendezvous.stores.contract import Get, GetResult, TxnResult
from tests.support.protocol.follower import JOB, Follower, asked
from tests.support.protocol.member_harness import Bench, none, only, running
from tests.support.protocol.member_transcript import play

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


def read(path: Path) -> list[str]:
    return path.read_text().strip().split("\n\n")


@pytest.mark.parametrize(
    "transcript",
    [
        pytest.param(block, id=f"{path.stem}: {block.partition('.')[0].partition(chr(10))[0].strip('# ')}")
        for path in TRANSCRIPTS
        for block in read(path)
        if not block.startswith("##")
    ],
)
def test_the_transcript_is_what_happens(transcript: str) -> None:
    played = play(transcript)
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        for path in TRANSCRIPTS:
            path.write_text(path.read_text().replace(transcript, played))
        return
    assert played == transcript


def test_an_unawaited_answer_changes_nothing_and_a_long_attempt_is_refused() -> None:
    bench = running()
    for event in (
        events.StoreReply(999, None),
        events.StoreOutcomeUnknown(999),
        events.StoreRejected(999, LeaseNotFound("gone")),
    ):
        assert bench.step(event) == []
    with pytest.raises(SettingsError, match=f"the attempt is '{10**15}', it must be a number"):
        Bench(options={"attempt": 10**15})


@pytest.mark.parametrize("value", [b"x" * 65, b"\xff"])
def test_what_cannot_be_the_name_of_a_job_is_not_used_as_one(value: bytes) -> None:
    bench = Bench()
    bench.store.put(records.make_current_key("p", "r"), value)
    end = only(bench.tell(Start()), Exit)
    assert (end.exit_code, end.reason) == (2, Reason.of("not-a-job-key", key="/p/r/current"))


def decode_versions(decode: Callable[..., Any]) -> Callable[..., Any]:
    """`decode`, for the version of a record alone."""

    def decode_version(kind: type, data: bytes, what: str) -> Any:
        assert kind is records._Version
        return decode(kind, data, what)

    return decode_version


@pytest.mark.parametrize("secret", [b"", b"quiet"])
@pytest.mark.parametrize("version", ["0.0.9", "99.1"])
def test_a_job_of_another_version_is_refused_with_both_and_nothing_of_it_is_decoded(
    version: str, secret: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(options={"secret": secret})
    bench.store.put(records.make_current_key("p", "r"), b"job")
    for name in ("spec", "ctl/verdict", "ctl/drained/node", "ctl/leader"):
        bench.store.put(f"/p/r/job/{name}", f'{{"version":"{version}","mesh":[7]}}'.encode())
    monkeypatch.setattr(records.codec, "decode", decode_versions(records.codec.decode))
    end = only(bench.tell(Start()), Exit)
    other = Reason.of("other-version", run="r", theirs=version, node="node", ours=__version__)
    assert (end.exit_code, end.reason) == (2, other)
    assert bench.store.get("/p/r/job/members/", prefix=True).items == ()


def test_no_round_is_started_when_what_was_read_last_is_nearly_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog ends with that as it does with the lease: such workers would be killed as they begin."""
    bench = Bench()
    bench.step(Start())
    while not [ask for ask in bench.asks if ask.kind == "read assignment"]:
        bench.settle_one()
    margin_s = bench.protocol.settings.kill_margin_s
    with monkeypatch.context() as patch:
        patch.setattr(LeaseState, "membership_until", property(lambda self: bench.now + margin_s / 2))
        assert none(bench.answer(bench.asks[0]), StartRound)
    bench.now += bench.protocol.settings.retry_delay_s
    assert only(bench.tell(Tick()), StartRound).round == 1


def test_an_older_key_ends_the_agent_at_whatever_revision() -> None:
    bench = running()
    seal = bench.store.get(bench.job.round).first
    assert seal is not None
    older = structs.replace(seal, mod_revision=2, value=b"{}")
    bench.lose(bench.job.control)
    bench.now += 1.0
    bench.step(Tick())
    (ask,) = (ask for ask in bench.asks if ask.kind.endswith(" again"))
    bench.asks.remove(ask)
    actions = bench.step(events.StoreReply(ask.id, TxnResult(True, 99, (GetResult(99, (older,)),))))
    assert only(actions, StopRound).mode == "fence"
    went_back = Reason.of("key-went-back", key=seal.key, revision=2, was=seal.mod_revision)
    assert only(actions, Exit) == actions[-1] == Exit(75, Reason.of("store-went-back", why=went_back), None)


def test_later_outsiders_read_the_store_seldom_and_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rendezvous.leader.takeover.OBSERVERS_MAX", 0)
    member = Follower("outsider", outage_limit_s=20.0)
    member.store.lease_revoke(member.lease)
    member.settle()
    looks = asked(member.pass_time(40.0), "look for roster")
    assert 4 <= len(looks) <= 9
    assert not any(Get(JOB.make_assignments_prefix(1, "plan"), True) in look.success for look in looks)
    monkeypatch.undo()  # those before it have gone
    member.pass_time(20.0)
    assert not member.leads
    member.pass_time(15.0)
    assert member.leads


class Unserved(Follower):
    """From some time on the store serves it no read of the control keys, and all else."""

    is_refusing = False

    def _outcome(self, ask: events.StoreRequest) -> Event:
        reads = ask.request.success if isinstance(ask.request, events.Txn) and not ask.request.compares else ()
        if self.is_refusing and Get(JOB.control, True) in reads:
            return events.StoreRejected(ask.id, StoreError("too much"))
        return super()._outcome(ask)


def test_after_a_watch_has_ended_a_view_is_stale_until_it_is_read_again() -> None:
    member = Unserved(lease_ttl_s=5.0, resync_ttls=2.0, view_ttls=7.0)
    member.is_refusing = True
    member.lose(JOB.control)
    actions = member.pass_time(36.0)
    assert only(actions, StopRound).mode == "fence"
    lost = Reason.of("membership-lost", why=Reason.of("view-expired"))
    assert lost in [action.reason for action in actions if isinstance(action, Log)]


@pytest.mark.parametrize("text", ["x" * (NOTE_MAX + 1), '"' * (NOTE_MAX - 1), "\u00e9" * (NOTE_MAX // 2)])
def test_a_note_that_no_line_can_hold_is_not_sent(text: str) -> None:
    assert none(Follower().tell(SendNote(TO_LEADER, text)), SendToPeer)


def test_a_leader_alone_knows_all_members_and_a_member_is_of_its_job() -> None:
    bench = running()
    spare = records.Member(member_id="zz", node_name="spare", boot_id="b", description="{}")
    bench.store.put(bench.job.make_member_key("zz"), records.encode(spare))
    bench.settle()
    assert bench.protocol.list_members() == {bench.protocol.member_id: "node", "zz": "spare"}
    assert not bench.protocol.has_taken_over
    member = Follower(successors=("me",))
    assert (member.protocol.list_members(), member.protocol.read_records()) == ({}, None)
    assert not member.protocol.has_taken_over
    past = [member.job.make_history_key(number) for number in (1, 2)]
    for key in past:
        member.store.put(key, b"of rounds that others led")
    member.store.lease_revoke(member.lease)
    member.settle()
    member.pass_time(3.0)
    assert member.protocol.is_leader
    assert member.protocol.has_taken_over
    records_now = member.protocol.read_records()
    assert records_now is not None
    keys = {item.key for item in records_now[1]}
    assert keys >= {*past, member.job.round, member.job.spec, member.job.leader}
    # Without a secret the job's key is what peers have to know.
    bench = running()
    own = events.SetIdentity(bench.job.root, bench.protocol.member_id)
    assert only(bench.made, events.SetIdentity) == own


def test_a_seal_that_is_written_again_has_the_same_assignments() -> None:
    bench, written = Bench(), []
    bench.step(Start())
    for _ in range(2):
        while not bench.asks or bench.asks[0].kind != "seal":
            assert bench.settle_one()
        ask = bench.asks.popleft()
        assert isinstance(ask.request, events.Txn)
        written.append(ask.request.success[0])
        bench.step(events.StoreOutcomeUnknown(ask.id))
        bench.now += 1.0
        bench.step(Tick())
    assert written[0] == written[1]
    assert written[0].key.startswith(bench.job.all_assignments)


def test_every_member_knows_who_leads_and_a_leader_the_first_failure_of_a_round() -> None:
    bench, follower = running(), Follower()
    for member in (bench, follower):
        assert member.protocol.leader is not None
    assert bench.protocol.leader.member_id == bench.protocol.member_id
    assert bench.protocol.find_failure(1) == ""
    bench.step(events.RoundFailed(1, 1, False, "a worker's failure", rank=0))
    bench.settle()
    assert (bench.protocol.find_failure(1), bench.protocol.find_failure(2)) == ("a worker's failure", "")
    assert follower.protocol.find_failure(1) == ""
