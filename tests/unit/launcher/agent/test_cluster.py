"""What every agent of a job must have been started with alike."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from launcher.agent.cluster import hash_program, list_agreed_options
from launcher.agent.membership import NodeMembership, make_settings
from launcher.config.config import Config
from tests.support.options import resolve


@pytest.mark.parametrize(
    ("is_leader", "has_taken_over", "said"), [(False, False, 0), (True, True, 0), (True, False, 1)]
)
def test_what_is_said_of_the_whole_job_the_first_node_that_leads_says_once(
    is_leader: bool, has_taken_over: bool, said: int, capfd: pytest.CaptureFixture[str]
) -> None:
    machine = Mock(is_leader=is_leader, has_taken_over=has_taken_over)
    membership = NodeMembership(Mock(machine=machine), remarks=("n0 leads", ""))
    for _ in range(3):
        membership.log_remarks()
    assert capfd.readouterr().err == "meshrun: n0 leads\n" * said


def list_agreed(made: Config) -> dict[str, str]:
    meeting = made.rendezvous
    settings = make_settings(meeting, made.workers.max_restarts, 30.0)
    return list_agreed_options(settings, meeting.node_rank, meeting.master_port)


@pytest.mark.parametrize(
    ("words", "agreed"),
    [
        ([], {}),
        (["--lease-ttl=5"], {}),
        (["--lease-ttl=7.5"], {"--lease-ttl": "7.5"}),
        (["--max-restarts=3"], {"--max-restarts": "3"}),
        (["--max-restarts=3", "--restart-window=60"], {"--max-restarts": "3", "--restart-window": "60"}),
        (["--max-restarts=12345678"], {"--max-restarts": "12345678"}),
        (["--grow=never"], {"--grow": "never"}),
        (["--store-outage=stop"], {"--store-outage": "stop"}),
        (["--rdzv-backend=static", "--node-rank=1"], {"--rdzv-backend": "static", "--master-port": "29500"}),
    ],
)
def test_options_that_all_nodes_must_have_are_named_unless_usual(words: list[str], agreed: dict[str, str]) -> None:
    where = ("--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=store:29500", "--rdzv-id=job")
    assert list_agreed(resolve(*where, *words)) == agreed
    settings = resolve(*where, *words, LAUNCHER_PRESENCE_PROOF="off")
    assert list_agreed(settings) == {**agreed, "LAUNCHER_PRESENCE_PROOF": "off"}


def test_a_script_may_lie_elsewhere_on_another_node_but_not_be_another() -> None:
    def digest(script: str) -> str:
        return hash_program("script", script)

    assert digest("train.py") == digest("/home/me/train.py") == digest("./train.py") != digest("/home/me/other.py")
    assert digest("package.train") != digest("package.test")
    assert digest("train.py") != hash_program("path", "train.py")
