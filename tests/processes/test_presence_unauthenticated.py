"""Who may join the conversation: secrets, foreign jobs, rubbish, those who say nothing, and very many at once."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

import pytest

from rendezvous.events import ConnectTo, PeerDown, PeerMessage, PeerUp, SendToPeer, SetIdentity
from rendezvous.peers import connections
from rendezvous.peers import dialer as dialling_module
from rendezvous.peers.connection import HANDSHAKE_BYTES_MAX, ConnectionEnd, PeerConnection
from rendezvous.peers.dial_attempt import Target
from rendezvous.peers.dialer import LOOK_UPS_MAX, Dialer
from rendezvous.peers.handshake import NONCE_BYTES, Handshake, PeerIdentity
from tests.support.protocol.presence import JOB, LIMIT_S, Member, boottime
from tests.support.waiting import wait_until

SECRET = b"what only we know"


def connect(member: Member) -> socket.socket:
    return socket.create_connection(member.listener.getsockname(), LIMIT_S)


def line(words: object) -> bytes:
    return json.dumps(words).encode() + b"\n"


def greet(member: Member, member_id: str = "stranger", *, secret: bytes = b"") -> socket.socket:
    """A connection made by hand that has gone through the whole greeting."""
    own = PeerIdentity(JOB, member_id, "127.0.0.1:9")
    greeting = Handshake(own, expected=member.member_id, secret=secret, nonce=os.urandom(NONCE_BYTES))
    end = connect(member)
    end.sendall(b"".join(map(line, greeting.open())))
    with end.makefile("rb") as lines:
        for answer in greeting.take(json.loads(lines.readline())):
            end.sendall(line(answer))
    return end


def hello(wanted: str) -> bytes:
    own = PeerIdentity(JOB, "stranger", "127.0.0.1:9")
    return b"".join(map(line, Handshake(own, expected=wanted, secret=b"", nonce=bytes(NONCE_BYTES)).open()))


def is_hung_up_on(end: socket.socket) -> bool:
    """Whether the other side ends the connection, sooner or later."""
    end.settimeout(LIMIT_S)
    with suppress(ConnectionError):
        while end.recv(4096):
            pass
    return True


def rest(lines: BinaryIO) -> bytes:
    """What the other side still says before it hangs up; with something of ours unread, its kernel resets."""
    said = b""
    with suppress(ConnectionResetError):
        while answer := lines.readline():
            said += answer
    return said


def assert_still_serves(member: Member, secret: bytes = b"") -> None:
    """Nothing was told of any stranger, and who belongs here is still welcome."""
    assert member.events == []
    with Member("friend", secret=secret) as friend:
        friend.attend(member)
        member.wait_for_up(friend)


def test_holders_of_the_secret_find_each_other() -> None:
    with Member("leader", secret=SECRET) as leader:
        assert_still_serves(leader, SECRET)


@pytest.mark.parametrize(
    ("theirs", "ours"), [(b"a guess", SECRET), (b"", SECRET), (SECRET, b"")], ids=["wrong", "none", "none of ours"]
)
def test_without_the_same_secret_nobody_is_believed(theirs: bytes, ours: bytes) -> None:
    with Member("leader", secret=ours) as leader, Member("intruder", secret=theirs) as intruder:
        intruder.attend(leader)
        leader.attend(intruder)
        if ours:
            for _ in range(20):  # as often as they like
                with connect(leader) as end:
                    end.sendall(hello("leader") + line(["proof", theirs.hex()]))
                    assert is_hung_up_on(end)
        assert intruder.events == []
        assert_still_serves(leader, ours)


def test_whoever_beats_before_greeting_is_no_member() -> None:
    with Member("leader") as leader:
        with connect(leader) as end:
            end.sendall(b'["beat"]\n' + hello("leader") + line(["proof", ""]))
            assert is_hung_up_on(end)
        assert_still_serves(leader)


def test_a_member_of_another_job_is_not_of_this_one() -> None:
    with Member("leader") as leader, Member("other", job=JOB + "other/") as other:
        other.attend(leader)
        leader.attend(other)
        assert_still_serves(leader)
        assert other.events == []


@pytest.mark.parametrize("secret", [b"", SECRET], ids=["without a secret", "with a secret"])
def test_a_listener_outside_the_job_learns_nothing_that_lets_it_enter(secret: bytes) -> None:
    """Whoever may write to the store, or has the port of an agent that has gone, can have members dial it."""
    other = PeerIdentity(JOB + "other/", "leader", "127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as listener, Member("friend", secret=secret) as friend:
        listener.settimeout(LIMIT_S)
        friend.presence.carry_out(ConnectTo("leader", f"127.0.0.1:{listener.getsockname()[1]}"))
        end, _ = listener.accept()
        with end, end.makefile("rb") as lines:
            heard = lines.readline()
            greeting = Handshake(other, expected="", secret=b"", nonce=os.urandom(NONCE_BYTES))
            for answer in greeting.take(json.loads(heard)):
                end.sendall(line(answer))
            assert rest(lines) == b""
        assert json.loads(heard)[:-2] == ["hello", "dialler", "friend", friend.address, "leader"]
        assert json.loads(heard)[-1] == ""
        assert friend.events == []


def test_a_leader_that_changes_often_is_not_dialled_more_often() -> None:
    now, dials = 0.0, 0

    def take(connection: PeerConnection, ending: ConnectionEnd | None) -> None:
        nonlocal dials
        dials += 1
        connection.is_connecting = False  # something listens there
        dialling.handle_end(connection, ConnectionEnd.PEER)
        connection.sock.close()

    dialling = Dialer(
        "127.0.0.1:9",
        on_dial=take,
        report_gone=lambda _: None,
        call_soon=lambda what, *words: what(*words),
        clock=lambda: now,
    )
    for number in range(1000):
        now = number / 100
        dialling.connect_to(f"m{number}", "127.0.0.1:9")
        dialling.dial()
    assert 2 <= dials <= 12
    now += 60.0
    dialling.connect_to("the next leader", "127.0.0.1:9")
    assert dialling.next_at == now


def test_few_names_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[list[Target]], None]] = []
    monkeypatch.setattr(dialling_module, "resolve", lambda address, take: asked.append(take))
    dialling = Dialer(
        "127.0.0.1:9", on_dial=lambda *_: None, report_gone=lambda _: None, call_soon=lambda what, *words: what(*words),
        clock=boottime,
    )  # fmt: skip
    for number in range(100):
        dialling.connect_to(f"m{number}", f"host{number}:9")
        dialling.dial()
    assert len(asked) == LOOK_UPS_MAX
    for take in asked:
        take([])
    dialling.connect_to("m", "host:9")
    dialling.dial()
    assert len(asked) == LOOK_UPS_MAX + 1


def test_a_proof_that_was_overheard_is_of_no_use_again() -> None:
    own = PeerIdentity(JOB, "stranger", "127.0.0.1:9")
    with Member("leader", secret=SECRET) as leader:
        greeting = Handshake(own, expected="leader", secret=SECRET, nonce=b"0" * NONCE_BYTES)
        hello = b"".join(map(line, greeting.open()))
        with connect(leader) as end, end.makefile("rb") as lines:
            end.sendall(hello)
            proof = b"".join(map(line, greeting.take(json.loads(lines.readline()))))
            end.sendall(proof)
            leader.wait_for(PeerUp("stranger", own.address, True))
        leader.wait_for(PeerDown("stranger"))
        leader.events.clear()
        with connect(leader) as end:
            end.sendall(hello + proof)
            with end.makefile("rb") as lines:
                lines.readline()
                assert rest(lines) == b""
        assert not [event for event in leader.events if isinstance(event, PeerUp)]


def test_who_is_no_member_believes_nobody() -> None:
    """Between two memberships there is no job, and a code made with its empty key would prove nothing."""
    own = PeerIdentity("", "stranger", "127.0.0.1:9")
    hello = ["hello", "dialler", own.member_id, own.address, "", "0" * 2 * NONCE_BYTES, ""]
    with Member("leader") as leader:
        leader.presence.carry_out(SetIdentity("", ""))
        with connect(leader) as end, end.makefile("rb") as lines:
            end.sendall(line(hello))
            assert rest(lines) == b""
        assert leader.events == []


def test_a_proof_cannot_be_sent_back_to_who_made_it() -> None:
    """What the dialled side shows is not what the dialler has to show."""
    own = PeerIdentity(JOB, "stranger", "127.0.0.1:9")
    greeting = Handshake(own, expected="leader", secret=b"", nonce=os.urandom(NONCE_BYTES))
    with Member("leader", secret=SECRET) as leader, connect(leader) as end, end.makefile("rb") as lines:
        end.sendall(b"".join(map(line, greeting.open())))
        answer = json.loads(lines.readline())
        end.sendall(line(["proof", answer[-1]]))
        assert rest(lines) == b""
        assert leader.events == []


RUBBISH = {
    "no JSON": b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "zeros": bytes(10_000) + b"\n",
    "no list": b'{"hello": 1}\n',
    "empty list": b"[]\n",
    "deep": b"[" * 15_000 + b"\n",
    "a number of 10,000 digits": b"[" + b"9" * 10_000 + b"]\n",
    "no end": b"x" * (HANDSHAKE_BYTES_MAX + 1),
    "not UTF-8": b'["hello", "\xff\xfe"]\n',
    "proof first": line(["proof", ""]),
    "tell first": line(["tell", "x"]),
    "wrong types": line(["hello", "dialler", 1, None, "leader", "0" * 32, ""]),
    "short number": line(["hello", "dialler", "stranger", "h:1", "leader", "0", ""]),
    "another member": line(["hello", "dialler", "stranger", "h:1", "somebody", "0" * 32, ""]),
    "itself": line(["hello", "dialler", "leader", "h:1", "leader", "0" * 32, ""]),
    "the dialled side's words": line(["hello", "dialled", "stranger", "h:1", "leader", "0" * 32, ""]),
    "long text": line(["hello", "dialler", "s" * 3000, "h:1", "leader", "0" * 32, ""]),
    "surrogate": b'["hello","dialler"'
    + b',"\\ud800","h:1","leader","\\ud800'
    + b"0" * 31
    + b'",""]\n["proof","\\ud800"]\n',
}


@pytest.mark.parametrize("data", RUBBISH.values(), ids=RUBBISH)
def test_rubbish_ends_the_connection_and_nothing_else(data: bytes) -> None:
    with Member("leader", secret=SECRET) as leader, connect(leader) as end:
        try:
            end.sendall(data)
            with end.makefile("rb") as lines:
                while lines.readline():  # a hello may be answered before the proof is found wanting
                    pass
        except ConnectionError:
            pass
        assert_still_serves(leader, SECRET)


def test_a_member_that_sends_rubbish_is_lost_and_not_proven_gone() -> None:
    with Member("leader") as leader, greet(leader) as end:
        leader.wait_for(PeerUp("stranger", "127.0.0.1:9", True))
        end.sendall(b"rubbish\n")
        leader.wait_for(PeerDown("stranger"))
        assert is_hung_up_on(end)


def test_who_says_nothing_or_one_letter_at_a_time_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_LIMIT_S", 0.3)
    with Member("leader") as leader, connect(leader) as silent, connect(leader) as slow:
        slow.settimeout(0.02)

        def is_over() -> bool:
            try:
                slow.sendall(b" ")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_until(is_over)
        assert is_hung_up_on(silent)
        assert_still_serves(leader)


def test_however_many_say_nothing_who_belongs_here_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNAUTHENTICATED_MAX", 50)
    with Member("leader") as leader:
        silent = [connect(leader) for _ in range(200)]
        assert_still_serves(leader)
        wait_until(lambda: len(leader.presence._unauthenticated) <= 50)
        for end in silent:
            end.close()


def test_who_does_not_read_is_given_up_and_holds_up_nobody() -> None:
    with Member("leader") as leader, greet(leader, "deaf"), Member("friend") as friend:
        leader.wait_for(PeerUp("deaf", "127.0.0.1:9", True))
        friend.attend(leader)
        leader.wait_for_up(friend)
        for _ in range(200):
            leader.presence.carry_out(SendToPeer("deaf", "x" * 30_000))
        leader.presence.carry_out(SendToPeer("friend", "still here?"))
        friend.wait_for(PeerMessage("leader", "still here?"))
        leader.wait_for(PeerDown("deaf"))


def test_three_hundred_members_come_and_go_and_nothing_is_left_open() -> None:
    with Member("leader") as leader:
        before = len(os.listdir("/proc/self/fd"))
        ends = [greet(leader, f"m{number}") for number in range(300)]
        ups = {f"m{number}" for number in range(300)}
        wait_until(lambda: {event.member_id for event in leader.events if isinstance(event, PeerUp)} == ups)
        for number in range(300):
            leader.presence.carry_out(SendToPeer(f"m{number}", str(number)))
        for number, end in enumerate(ends):
            with end.makefile("rb") as lines:
                assert read_until(lines.readline, ["tell", str(number)])
            end.sendall(line(["bye"]))
            end.close()
        wait_until(lambda: sum(isinstance(event, PeerDown) for event in leader.events) == 300)
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # an earlier test's may go meanwhile


def read_until(readline: Callable[[], bytes], words: list[object]) -> bool:
    while received := readline():
        if json.loads(received) == words:
            return True
    return False


def test_the_newest_of_two_connections_is_kept_and_no_end_is_reported() -> None:
    with Member("leader") as leader, greet(leader) as first:
        leader.wait_for(PeerUp("stranger", "127.0.0.1:9", True))
        with greet(leader) as second:
            assert is_hung_up_on(first)
            leader.presence.carry_out(SendToPeer("stranger", "hello"))
            with second.makefile("rb") as lines:
                assert read_until(lines.readline, ["tell", "hello"])
            assert [type(event) for event in leader.events] == [PeerUp]


def test_an_agent_that_becomes_another_member_connects_anew() -> None:
    with Member("leader") as leader, Member("first") as member:
        member.attend(leader)
        leader.wait_for_up(member)
        member.presence.carry_out(SetIdentity(JOB, "second"))
        leader.wait_for(PeerUp("second", member.address, True))
        leader.wait_for(PeerDown("first"))
        assert leader.of("first")[-1] == PeerDown("first")  # it said goodbye: nothing is to be proven
        assert member.of("leader") == [
            PeerUp("leader", leader.address, True),
            PeerDown("leader"),
            PeerUp("leader", leader.address, True),
        ]


def test_attending_somebody_else_ends_the_connection_with_a_goodbye() -> None:
    with Member("old") as old, Member("new") as new, Member("follower") as follower:
        follower.attend(old)
        old.wait_for_up(follower)
        follower.attend(new)
        new.wait_for_up(follower)
        old.wait_for(PeerDown("follower"))
        follower.presence.carry_out(ConnectTo("", ""))
        new.wait_for(PeerDown("follower"))
        assert len(old.events) == 2


def test_a_member_that_is_not_there_yet_is_found_when_it_comes() -> None:
    with Member("follower") as follower:
        reserved = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        follower.presence.carry_out(ConnectTo("leader", address))
        with Member("leader") as leader:
            follower.presence.carry_out(ConnectTo("leader", leader.address))
            follower.wait_for_up(leader)
        reserved.close()


def test_a_member_whose_address_is_a_name_is_found() -> None:
    with Member("leader") as leader, Member("follower") as follower:
        follower.presence.carry_out(ConnectTo("leader", f"localhost:{leader.listener.getsockname()[1]}"))
        leader.wait_for_up(follower)


def test_members_meet_over_ipv6() -> None:
    with Member("leader", host="::1") as leader, Member("follower", host="::1") as follower:
        assert leader.address.startswith("[::1]:")
        follower.attend(leader)
        leader.wait_for_up(follower)
        follower.wait_for_up(leader)


def test_a_connection_from_another_address_than_advertised_proves_nothing() -> None:
    with Member("leader") as leader, Member("follower", address="192.0.2.1:7") as follower:
        follower.attend(leader)
        leader.wait_for(PeerUp("follower", "192.0.2.1:7", False))
        follower.presence.close()
        leader.wait_for(PeerDown("follower"))
        assert leader.presence._dialer._attempts == {}


class NoFilesLeft(socket.socket):
    def accept(self) -> tuple[socket.socket, Any]:
        raise OSError(errno.EMFILE, "too many open files")


def test_accepting_is_tried_again_soon_after_descriptors_ran_out() -> None:
    with NoFilesLeft() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        board = connections.PeerConnections(
            listener=listener,
            address="127.0.0.1:9",
            secret=b"",
            submit=lambda event: None,
            clock=lambda: 100.0,
            silence_s=60.0,
        )
        board._sweep(100.0)
        board._accept()
        assert listener not in board._selector.get_map()
        board._sweep(100.5)
        assert listener in board._selector.get_map()
        board.close()
