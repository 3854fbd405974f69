"""Who is connected, since when not, of whom nothing is left; and the words that members tell each other."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from rendezvous.events import PeerDown, PeerGone, PeerUp
from rendezvous.peers import messages
from rendezvous.peers.liveness import PeerLiveness
from rendezvous.peers.messages import KnownRevision, OutageAck, OutageConfirmed, OutageProbe

HERE = "10.0.0.2:7000"


def attendance(*events: PeerUp | PeerDown | PeerGone, trusts_refusals: bool = True) -> PeerLiveness:
    """A register that saw these events, one per second."""
    register = PeerLiveness(trusts_refusals)
    for at, event in enumerate(events):
        register.take(event, float(at))
    return register


UP, DOWN, GONE = PeerUp("b", HERE, True), PeerDown("b"), PeerGone("b")


def test_who_was_reached_is_unreachable_since_the_connection_ended_and_nobody_else() -> None:
    register = attendance(DOWN, GONE)
    assert "b" not in register.connected
    assert register.unreachable_since == {}
    assert not register.is_gone("b", HERE)
    assert attendance(UP, DOWN).unreachable_since == {"b": 1.0}
    register = attendance(UP, DOWN, UP)
    assert "b" in register.connected
    assert register.unreachable_since == {}


PROOFS = {
    "proven": ((UP, DOWN, GONE), HERE, True, 2.0),
    "said twice": ((UP, DOWN, GONE, GONE), HERE, True, 2.0),
    "merely unreachable": ((UP, DOWN), HERE, True, math.inf),
    "back again": ((UP, DOWN, GONE, UP), HERE, True, math.inf),
    "still connected": ((UP, GONE), HERE, True, math.inf),
    "it advertises another address": ((UP, DOWN, GONE), "10.0.0.3:7000", True, math.inf),
    "the connection was not direct": ((replace(UP, is_provable=False), DOWN, GONE), HERE, True, math.inf),
    "refusals are not trusted": ((UP, DOWN, GONE), HERE, False, math.inf),
}


@pytest.mark.parametrize(("events", "address", "trusts_refusals", "since"), PROOFS.values(), ids=PROOFS)
def test_a_member_is_gone_if_proven(
    events: tuple[PeerUp, ...], address: str, trusts_refusals: bool, since: float
) -> None:
    assert attendance(*events, trusts_refusals=trusts_refusals).get_gone_since("b", address) == since


def test_peers_under_ever_new_names_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rendezvous.peers.liveness.PEERS_MAX", 3)
    register = attendance(*(PeerUp(f"m{index}", HERE, True) for index in range(9)), PeerUp("x" * 65, HERE, True))
    assert sorted(register.connected) == ["m0", "m1", "m2"]
    register.take(PeerDown("m0"), 9.0)
    register.forget_except([])
    assert (sorted(register.connected), register.unreachable_since) == (["m1", "m2"], {})


@pytest.mark.parametrize(
    "message", [OutageProbe(3, "t"), OutageAck(3, "t"), OutageConfirmed(3, "t"), KnownRevision(9, True)]
)
def test_what_is_told_is_understood(message: messages.Message) -> None:
    understood = messages.decode_message(messages.encode_message(message))
    assert understood == message
    assert type(understood) is type(message)


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "[]", "{}", "null", "[" * 400, '["HoldOn"]', '["HoldOn",1]', '["HoldOn",1,2]', '["HoldOn","1","t"]',
        '["HoldOn",true,"t"]', '["HoldOn",-1,"t"]', '["HoldOn",1e3,"t"]', f'["HoldOn",{2**62},"t"]',
        f'["HoldOn",1,"{"t" * 65}"]', f'["HoldOn",1,"{"t" * 600}"]', '["Known",1,"t"]', '["Known",1,true]' + " " * 600,
        '["Known",1,1]', '["Unheard",1,"t"]', '[["HoldOn"],1,"t"]',
    ],
)  # fmt: skip
def test_what_is_no_message_is_dropped(text: str) -> None:
    assert messages.decode_message(text) is None
