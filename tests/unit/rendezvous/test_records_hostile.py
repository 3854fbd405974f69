"""Whatever lies in the store, a member goes on: a value is believed, or named and ignored, and nothing is raised.

A job of two nodes runs on the bench, with the real planner, and what a node is to start is read as its agent reads it.
One value in the store, or one field of it, becomes what nobody would write; then rounds are lost and sealed again.
`HYPOTHESIS_EXAMPLES=6000` makes it try so many.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from launcher.agent import command
from launcher.logs.layout import LogLayout
from launcher.model.mesh import parse
from launcher.model.node import Device, Slot
from launcher.placement.adapter.description import (
    Description,
    NodeAssignment,
    decode_assignment,
    encode_assignment,
    encode_description,
)
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from launcher.placement.limits import Costs, Limits
from launcher.ranks.spec_builder import WorkerSpecBuilder
from rendezvous import __version__, records
from rendezvous.errors import RecordError
from rendezvous.events import Action, Event, MakePlan, RoundFailed, RoundStopped, Start, StartRound, StopRound
from rendezvous.records import Command, Drain, Member, Seal, Status, Stop
from tests.support.protocol.member_harness import Bench
from tests.support.reasons import because

MESH = parse("dp=*")
NODE = Description(slot_count=2, address="10.0.0.1", role="default", name="node", machine="m1")
OTHER = Description(slot_count=2, address="10.0.0.2", role="default", name="other", machine="m2")


class Job(Bench):
    """A member that leads a round of its own node and of "other", which is played by records."""

    def __init__(self) -> None:
        self.planner = PlannerAdapter(MESH, Limits(), Costs())
        self.round = 0  # that runs here
        super().__init__(
            options={
                "description": encode_description(NODE),
                "sizer": self.planner.compute_size,
                "presence_address": "10.0.0.1:7000",
            },
            max_restarts=10**6,
            no_progress_rounds=10**6,
            join_grace_s=1.0,
            grow_delay_s=0.0,
            grow="checkpoint",
        )
        self.tell(Start())
        self.keys = self.job
        other = Member(
            member_id="other", node_name="other", boot_id="b", description=encode_description(OTHER), worker_port=4001,
            presence_address="10.0.0.2:7000",
        )  # fmt: skip
        lease = self.store.lease_grant(10**9).id
        self.record(self.keys.make_member_key("other"), other, lease)
        self.record(self.keys.make_drain_key("elsewhere"), Drain(node_name="elsewhere"))
        self.record(
            self.keys.make_command_key("token"), Command(kind="undrain", target="elsewhere", answer="it is not here")
        )
        self.record(self.keys.stop, Stop(round=0, reason=because("none"), mode="kill"))
        self.wait(2.0)
        self.go_on()

    def record(self, key: str, record: records.Record, lease: int = 0) -> None:
        self.store.put(key, records.encode(record), lease=lease)

    def _watch(self, key: str, start_revision: int) -> None:
        if key in self._watches:  # as the driver does it
            self._watches.pop(key).cancel()
        super()._watch(key, start_revision)

    def step(self, event: Event) -> list[Action]:
        actions = super().step(event)
        for action in actions:
            match action:
                case MakePlan():
                    self._events.pop()  # the bench's own plan
                    self._events.append(self.planner.plan(action))
                case StartRound(number, _, _, _, text):
                    self.round = number
                    try:
                        share = decode_assignment(text)
                        assert share.master_addr
                        assert share.master_addr.isprintable()
                        assert all(0 <= rank < share.world_size for rank in share.ranks)
                    except RecordError:
                        self._events.append(RoundFailed(number, 1, False, ""))
                case StopRound(number):
                    self._events.append(RoundStopped(number, 4002))
        return actions

    def go_on(self) -> None:
        """The round fails, the other node stops it, and the next one is sealed if that can be."""
        self.tell(RoundFailed(self.round, 1, False, ""))
        for _ in range(3):
            stop, seal = (self.state.cache.read(Stop, self.keys.stop), self.state.cache.read(Seal, self.keys.round))
            if stop is not None and seal is not None:
                stopped = Status(round=stop.round, plan_token=seal.plan_token, is_stopped=True)
                self.record(self.keys.make_status_key("other"), stopped)
            self.wait(3.0)


HOSTILE = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=5),
    st.sampled_from([2**53, -(2**63), 10**30, 1e308, "\0", "a\nb", "\ud800", "\x1b[2J", "x" * 3000]),
    st.sampled_from([[], {}, [[]], [None]]),
    st.sampled_from(["10.0.0.1:1", "[::1", "kill", "fence", "success", "failed", "other", "node"]),
    st.lists(st.integers(-2, 300), max_size=4), st.lists(st.text(max_size=3), max_size=3),
    st.lists(st.lists(st.text(max_size=3), max_size=3), max_size=3),
)  # fmt: skip
RAW = {
    "nothing": b"", "NUL": b"\0", "not UTF-8": b"\xff\xfe", "null": b"null", "deep": b"[" * 100_000, "1e999": b"1e999",
    "empty": f'{{"version":"{__version__}"}}'.encode(), "version 9": b'{"version": "9"}', "too long": b" " * 1_100_000,
}  # fmt: skip


def changed(value: bytes, data: st.DataObject) -> bytes:
    """The record with one field of it, or of the text in it, replaced."""
    content: dict[str, Any] = json.loads(value)
    name = data.draw(st.sampled_from(sorted(content)), "field")
    if name in ("description", "content") and data.draw(st.booleans(), "inside"):
        inner = json.loads(content[name])
        inner[data.draw(st.sampled_from(sorted(inner)), "inner field")] = data.draw(HOSTILE, "value")
        content[name] = json.dumps(inner)
    else:
        content[name] = data.draw(HOSTILE, "value")
    return json.dumps(content).encode()


@settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "50")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_whatever_the_store_holds_a_member_goes_on(data: st.DataObject) -> None:
    job = Job()
    items = job.store.get("/p/", prefix=True).items
    for _ in range(data.draw(st.integers(1, 3), "count")):
        item = data.draw(st.sampled_from(items), "key")
        if data.draw(st.booleans(), "raw") or not item.value.startswith(b"{"):
            value = RAW[data.draw(st.sampled_from(sorted(RAW)), "raw value")]
        else:
            value = changed(item.value, data)
        job.store.put(item.key, value, lease=item.lease)
    job.settle()
    job.go_on()
    job.go_on()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"ranks": (0, 1, 2), "role_ranks": (0, 1, 2)}, "it wants 3 workers of this node, which has 2"),
        ({"shape": (4,)}, "it has a grid of (4,), which does not fit dp=*,tp=2"),
        ({"shape": (1, 4)}, "it has a grid of (1, 4), which does not fit dp=*,tp=2"),
        ({"shape": (2, 2, 1)}, "it has a grid of (2, 2, 1), which does not fit dp=*,tp=2"),
    ],
)
def test_a_share_that_does_not_fit_this_node_or_job_is_refused(fields: dict[str, Any], why: str) -> None:
    slots = [Slot(index=index, devices=(Device(kind="cpu", index=0, id="cpu0", visible=""),)) for index in (0, 1)]
    layout = LogLayout(log_dir="/dev/null", run_id="job")
    made = command.parse(["--mesh=dp=*,tp=2", "train.py"], {})
    maker = WorkerSpecBuilder(
        workers=made.workers, output=made.output, placement=made.placement, slots=slots, host="h", layout=layout,
        parent={},
    )  # fmt: skip
    share = NodeAssignment(
        ranks=(0, 1), world_size=4, shape=(2, 2), group_rank=0, group_world_size=2, role_ranks=(0, 1),
        role_world_size=4, master_addr="h", master_port=1,
    )  # fmt: skip
    assert maker.read_assignment(encode_assignment(share)) == share
    with pytest.raises(RecordError) as caught:
        maker.read_assignment(encode_assignment(replace(share, **fields)))
    assert str(caught.value) == why
