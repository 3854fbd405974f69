"""What the leader charges a round to, and the verdict when the budget is spent. Drawn by `views`."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.decide import decide
from rendezvous.policy.decisions import EndJob, SealRound, Wait
from rendezvous.policy.quarantine import Strike
from rendezvous.policy.view import MemberView
from rendezvous.reasons import Reason
from rendezvous.records import Member, Status
from rendezvous.settings import Settings
from tests.support.protocol.views import (
    ONE_USED,
    PROVISIONAL,
    Row,
    charged,
    failed,
    reach,
    see,
    sizer,
    status,
    stopping,
    verdict,
)

KEY_ERROR, NO_MEMORY = Reason.of("class", why="key-error"), Reason.of("class", why="no-memory")
SAME_TWICE = replace(ONE_USED, same_failure=KEY_ERROR, same_rank=5, same_failures=2)
STUCK_TWICE = replace(ONE_USED, best_step=10, stuck_rounds=2)

ROWS = [
    # --- the charge
    Row("nothing is charged for a stop", stopping(), 121.0, SealRound(("a", "b"), ONE_USED, "here nodes=2")),
    Row(
        "a failure costs one restart, and the next round starts at once",
        stopping(a=failed(119.9), b=failed(119.8)),
        120.1,
        SealRound(("a", "b"), charged(120.1, 119.8), "here nodes=2"),
    ),
    Row(
        "which is final once the time to settle has passed",
        stopping(a=failed(119.0)),
        120.1,
        SealRound(("a", "b"), charged(120.1, 119.0, is_settled=True), "here nodes=2"),
    ),
    Row(
        "with the budget spent a failure waits whether a loss explains it",
        stopping(a=failed(119.9)),
        120.1,
        Wait(120.9, "checking-cause round=4", rule="charge put off"),
        {"max_restarts": 1},
    ),
    Row(
        "then it ends the job with its own exit code",
        stopping(a=failed(119.9)),
        120.9,
        verdict("failure", 3, "worker-failed node=na round=4 use=(restarts-used used=1 allowed=1)", failure="text"),
        {"max_restarts": 1},
    ),
    Row(
        "a node that runs alone has nobody to wait for",
        stopping("abc", active="a", a=failed(119.9)),
        120.0,
        verdict("failure", 3, "worker-failed node=na round=4 use=(restarts-used used=1 allowed=0)", failure="text"),
        {"max_restarts": 0},
    ),
    Row(
        "charges that are too old do not count",
        stopping(a=failed(119.9)),
        121.0,
        SealRound(("a", "b"), charged(121.0, 119.9, is_settled=True), "here nodes=2"),
        {"max_restarts": 1, "restart_window_s": 60.0},
    ),
    Row(
        "broken connections alone wait for a lease, whatever is left of the budget, while somebody does not answer",
        replace(stopping(a=failed(119.9, is_peer_loss=True)), others_count=2, reached_count=1),
        122.0,
        Wait(124.9, "checking-cause round=4", rule="charge put off"),
    ),
    Row(
        "on a private store there is no lease to wait for",
        stopping(a=failed(119.9, is_peer_loss=True)),
        120.0,
        Wait(120.9, "checking-cause round=4", rule="charge put off"),
        {"lease_ttl_s": math.inf},
    ),
    Row(
        "a failure beside broken connections is believed",
        stopping(a=failed(119.9, is_peer_loss=True), b=failed(119.95)),
        120.1,
        SealRound(("a", "b"), charged(120.1, 119.9), "here nodes=2"),
    ),
    Row(
        "a loss makes the failure free",
        stopping("ac", a=failed(119.9)),
        120.1,
        SealRound(("a", "c"), ONE_USED, "here nodes=2"),
        {"max_restarts": 1},
    ),
    Row(
        "so does a departure",
        stopping("abc", a=failed(119.9), b=status(stopped=True, leaving_at=119.0)),
        120.1,
        SealRound(("a", "c"), ONE_USED, "here nodes=2"),
        {"max_restarts": 1},
    ),
    Row(
        "not so the loss of a member that had finished",
        stopping("ac", a=failed(119.0), b=status("succeeded")),
        121.0,
        verdict("failure", 3, "worker-failed node=na round=4 use=(restarts-used used=1 allowed=1)", failure="text"),
        {"max_restarts": 1},
    ),
    Row(
        "a loss soon after a charge takes it back",
        stopping("ac", lost_at=120.5, budget=PROVISIONAL),
        130.0,
        SealRound(("a", "c"), ONE_USED, "here nodes=2"),
    ),
    Row(
        "a departure too",
        stopping("abc", b=status(stopped=True, leaving_at=120.4), budget=PROVISIONAL),
        130.0,
        SealRound(("a", "c"), ONE_USED, "here nodes=2"),
    ),
    Row(
        "a later loss does not",
        stopping("ac", lost_at=120.6, budget=PROVISIONAL),
        130.0,
        SealRound(("a", "c"), PROVISIONAL.settle(130.0, 1.0), "here nodes=2"),
    ),
    Row(
        "broken connections wait only until silence would have been noticed when everybody answers",
        reach(stopping(a=failed(119.9, is_peer_loss=True)), 2, 2),
        121.0,
        Wait(122.4, "checking-cause round=4", rule="charge put off"),
    ),
    Row(
        "and not for a lease",
        reach(stopping(a=failed(119.9, is_peer_loss=True)), 2, 2),
        122.4,
        SealRound(("a", "b"), charged(122.4, 119.9, is_settled=True), "here nodes=2"),
    ),
    Row(
        "a failure waits while somebody who could be reached cannot",
        reach(stopping(a=failed(119.9)), 0, 1, b=119.8),
        120.9,
        Wait(129.8, "checking-cause round=4", rule="charge put off"),
    ),
    Row(
        "a port that somebody else listens on costs no restart",
        stopping(a=failed(119.0, is_port_taken=True)),
        121.0,
        SealRound(("a", "b"), replace(ONE_USED, port_taken_rounds=1), "here nodes=2"),
        {"max_restarts": 1},
    ),
    Row(
        "but a few times in a row only",
        stopping(a=failed(119.0, is_port_taken=True), budget=replace(ONE_USED, port_taken_rounds=3)),
        121.0,
        verdict("failure", 3, "worker-failed node=na round=4 use=(restarts-used used=1 allowed=1)", failure="text"),
        {"max_restarts": 1},
    ),
    Row(
        "a round that ends otherwise ends the row",
        stopping(budget=replace(ONE_USED, port_taken_rounds=2)),
        121.0,
        SealRound(("a", "b"), ONE_USED, "here nodes=2"),
    ),
    # --- nodes that count on their own
    Row(
        "a node that restarts no more ends the job, whatever is left of the budget",
        stopping(a=failed(119.0), b=failed(119.5, is_final=True, revision=8)),
        121.0,
        verdict(
            "failure",
            3,
            "worker-failed node=na round=4 use=(restart-declined nodes=(nodes names=nb count=1))",
            failure="text",
            others=("text",),
        ),
    ),
    Row(
        "but for as long as it may turn out that a lost node explains it",
        stopping(b=failed(119.9, is_final=True)),
        120.1,
        Wait(120.9, "checking-cause round=4", rule="charge put off"),
    ),
    Row(
        "and not when one does",
        stopping("ac", active="ab", lost_at=120.5, a=failed(119.9, is_final=True)),
        121.0,
        SealRound(("a", "c"), ONE_USED, "here nodes=2"),
    ),
    Row(
        "a worker that gives up ends the job for its reason, though a peer failed before it",
        stopping(a=failed(119.0), b=failed(119.5, is_final=True, final_reason="no data", revision=8, exit_code=76)),
        121.0,
        verdict(
            "failure",
            76,
            "worker-failed node=nb round=4 use=(restart-useless why=no data)",
            failure="text",
            others=("text",),
        ),
    ),
    Row(
        "a node that its own worker blames is quarantined at once, and the failure before it blames nobody",
        see(
            stopping("abc", a=failed(119.0, rank=0), b=failed(119.5, is_node_fault=True, rank=1, revision=8)),
        ),
        121.0,
        SealRound(
            ("a", "c"),
            replace(charged(121.0, 119.0, is_settled=True), blamed=(Strike("nb boot", 119.5),)),
            (
                "here nodes=2; node-quarantined node=nb why=(quarantined cause=blame times=1 window_s=1800 "
                "duration_s=60)"
            ),
        ),
    ),
    # --- the same failure again
    Row(
        "the third failure in a row of the same rank in the same way is told",
        stopping(a=failed(119.0, rank=5, failure_class=KEY_ERROR), budget=SAME_TWICE),
        121.0,
        SealRound(
            ("a", "b"),
            replace(charged(121.0, 119.0, is_settled=True), same_failure=KEY_ERROR, same_rank=5, same_failures=3),
            "here nodes=2",
            "same-failure rank=5 failure_class=(class why=key-error) times=3",
        ),
    ),
    Row(
        "and in the verdict",
        stopping(a=failed(119.0, rank=5, failure_class=KEY_ERROR), budget=SAME_TWICE),
        121.0,
        verdict(
            "failure",
            3,
            (
                "worker-failed node=na round=4 use=(restarts-used used=1 allowed=1); same-failure rank=5 "
                "failure_class=(class why=key-error) times=3"
            ),
            failure="text",
        ),
        {"max_restarts": 1},
    ),
    *(
        Row(
            f"{what} is another failure",
            stopping(a=failed(119.0, **how), budget=SAME_TWICE),
            121.0,
            SealRound(
                ("a", "b"),
                replace(
                    charged(121.0, 119.0, is_settled=True),
                    same_failure=same,
                    same_rank=rank,
                    same_failures=int(bool(same)),
                ),
                "here nodes=2",
            ),
        )
        for what, how, rank, same in (
            ("one of another rank", {"rank": 4, "failure_class": KEY_ERROR}, 4, KEY_ERROR),
            ("one in another way", {"rank": 5, "failure_class": NO_MEMORY}, 5, NO_MEMORY),
            ("one of unknown class", {"rank": 5}, -1, None),
        )
    ),
    # --- the cause
    Row(
        "the first failure that was written is the cause",
        stopping(a=failed(119.0, revision=9), b=failed(119.5, revision=8, exit_code=5)),
        121.0,
        verdict(
            "failure",
            5,
            "worker-failed node=nb round=4 use=(restarts-used used=1 allowed=1)",
            failure="text",
            others=("text",),
        ),
        {"max_restarts": 1},
    ),
    Row(
        "a broken connection is a cause only without a better one",
        stopping(a=failed(119.0, revision=8, is_peer_loss=True), b=failed(119.5, revision=9, exit_code=5)),
        121.0,
        verdict(
            "failure",
            5,
            "worker-failed node=nb round=4 use=(restarts-used used=1 allowed=1)",
            failure="text",
            others=("text",),
        ),
        {"max_restarts": 1},
    ),
    Row(
        "a failure without an exit code still ends the job with one",
        stopping(a=failed(119.0, exit_code=0)),
        121.0,
        verdict("failure", 1, "worker-failed node=na round=4 use=(restarts-used used=1 allowed=1)", failure="text"),
        {"max_restarts": 1},
    ),
    Row(
        "when two failures come together it is not sure which was first",
        stopping(a=failed(119.0, revision=8), b=failed(119.05, revision=9)),
        121.0,
        verdict(
            "failure",
            3,
            "worker-failed node=na round=4 use=(restarts-used used=1 allowed=1)",
            failure="text",
            is_first_sure=False,
            others=("text",),
        ),
        {"max_restarts": 1},
    ),
    Row(
        "a broken connection is no rival of a cause",
        stopping(a=failed(119.0, revision=8), b=failed(119.05, revision=7, is_peer_loss=True)),
        121.0,
        verdict(
            "failure",
            3,
            "worker-failed node=na round=4 use=(restarts-used used=1 allowed=1)",
            failure="text",
            others=("text",),
        ),
        {"max_restarts": 1},
    ),
    # --- no progress
    Row(
        "a round that gets no further than any before is counted",
        stopping(a=failed(119.0, step=9), b=status(stopped=True, step=10), budget=replace(ONE_USED, best_step=10)),
        121.0,
        SealRound(
            ("a", "b"), replace(charged(121.0, 119.0, is_settled=True), best_step=10, stuck_rounds=1), "here nodes=2"
        ),
    ),
    Row(
        "a step further is progress, on whichever node",
        stopping(a=failed(119.0), b=status(stopped=True, step=11), budget=STUCK_TWICE),
        121.0,
        SealRound(("a", "b"), replace(charged(121.0, 119.0, is_settled=True), best_step=11), "here nodes=2"),
    ),
    Row(
        "the third in a row ends the job with a code of its own, whatever is left of the budget",
        stopping(a=failed(119.0), budget=STUCK_TWICE),
        121.0,
        verdict("failure", 76, "stuck rounds=3 step=10", failure="text"),
    ),
    Row(
        "but not before a loss would have explained the failure",
        stopping(a=failed(119.9), budget=STUCK_TWICE),
        120.1,
        Wait(120.9, "checking-cause round=4", rule="charge put off"),
    ),
    Row(
        "and not where one does",
        stopping("ac", a=failed(119.9), budget=STUCK_TWICE),
        121.0,
        SealRound(("a", "c"), STUCK_TWICE, "here nodes=2"),
    ),
    Row(
        "nor where a round was stopped without a failure",
        stopping(budget=STUCK_TWICE),
        121.0,
        SealRound(("a", "b"), STUCK_TWICE, "here nodes=2"),
    ),
    Row(
        "nor where a worker blamed its node",
        stopping(a=failed(119.0, is_node_fault=True), budget=STUCK_TWICE),
        121.0,
        SealRound(
            ("a", "b"), replace(charged(121.0, 119.0, is_settled=True), best_step=10, stuck_rounds=2), "here nodes=2"
        ),
    ),
    Row(
        "where no step was ever reported no round is counted",
        stopping(a=failed(119.0)),
        121.0,
        SealRound(("a", "b"), charged(121.0, 119.0, is_settled=True), "here nodes=2"),
        {"stuck_rounds": 1},
    ),
    Row(
        "the second short round in a row makes a pause",
        stopping(ran_s=1.0, budget=RestartBudget(short_rounds=1)),
        120.5,
        Wait(121.0, "backoff round=4 before=1", rule="backoff", setting="backoff_first_s"),
    ),
    Row(
        "and then it goes on",
        stopping(ran_s=1.0, budget=RestartBudget(short_rounds=1)),
        121.0,
        SealRound(("a", "b"), RestartBudget(short_rounds=2), "here nodes=2"),
    ),
    Row(
        "rounds without progress end the job, whatever their reason",
        stopping(ran_s=1.0, budget=RestartBudget(short_rounds=2)),
        121.0,
        verdict("failure", 1, "short-rounds rounds=3 least_s=5 is_futile=False"),
        {"no_progress_rounds": 3},
    ),
    Row(
        "with the failure of the last one, if there is one",
        stopping(a=failed(119.0), ran_s=1.0, budget=RestartBudget(short_rounds=2)),
        121.0,
        verdict("failure", 3, "short-rounds rounds=3 least_s=5 is_futile=False", failure="text"),
        {"no_progress_rounds": 3},
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_the_leader_decides(row: Row) -> None:
    row.check()


def test_a_verdict_carries_few_other_failures_and_none_that_is_long() -> None:
    texts = ["cause", "x" * 30_000, "2", "", "4", "5", "6", "7"]
    statuses = {
        f"m{index}": replace(
            failed(100.0 + index, revision=index),
            status=Status(round=4, plan_token="t", outcome="failed", is_stopped=True, failure=text),
        )
        for index, text in enumerate(texts)
    }
    members = {
        m: MemberView(Member(member_id=m, node_name=m, boot_id="", description=""), index, index, 0.0)
        for index, m in enumerate(statuses)
    }
    view = replace(stopping(), active=tuple(statuses), statuses=statuses, members=members)
    decision = decide(view, 200.0, Settings(), sizer)
    assert isinstance(decision, EndJob)
    assert (decision.verdict.failure, decision.verdict.others) == ("cause", ("2", "4", "5", "6"))
