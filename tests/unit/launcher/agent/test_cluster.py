"""What every agent of a job must have been started with alike."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from launcher.agent import cluster
from launcher.agent.cluster import ClusterMembership, hash_program, list_agreed_options
from launcher.agent.membership import make_settings
from launcher.model.errors import UsageError
from tests.support.options import resolve


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
def test_options_that_all_nodes_must_have_alike_are_named_unless_usual(
    words: list[str], agreed: dict[str, str]
) -> None:
    config = resolve("--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=store:29500", "--rdzv-id=job", *words)
    assert list_agreed_options(config, make_settings(config)) == agreed


def test_settings_that_all_nodes_need_alike_are_named_too() -> None:
    where = ("--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=store:29500", "--rdzv-id=job")
    config = resolve(*where, LAUNCHER_PRESENCE_PROOF="off")
    assert list_agreed_options(config, make_settings(config)) == {"LAUNCHER_PRESENCE_PROOF": "off"}


def test_a_script_may_lie_elsewhere_on_another_node_but_not_be_another() -> None:
    def digest(script: str) -> str:
        return hash_program(replace(resolve(), script=script))

    assert digest("train.py") == digest("/home/me/train.py") == digest("./train.py") != digest("/home/me/other.py")
    assert digest("package.train") != digest("package.test")
    assert digest("train.py") != hash_program(replace(resolve(), script="train.py", launch_mode="path"))


def test_a_number_is_claimed_after_measuring_which_may_outlast_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def measure(*_: object) -> tuple[Mock, Mock]:
        done.append("measure")
        return Mock(), Mock(close=lambda: done.append("close"))

    def refuse(*_: object, **__: object) -> None:
        done.append("claim")
        raise UsageError("h3 and h2 are both given --node-rank 1")

    for name in ("require_feasible", "PlannerAdapter", "Description", "replace"):
        monkeypatch.setattr(cluster, name, Mock())
    monkeypatch.setattr(cluster, "resolve_node_locality", lambda *_: Mock(path=()))
    monkeypatch.setattr(cluster, "resolve_limits", lambda *_, **__: (Mock(),))
    monkeypatch.setattr(cluster, "measure_locality", measure)
    monkeypatch.setattr(cluster, "require_unique_rank", refuse)
    monkeypatch.setattr(ClusterMembership, "_meet", lambda *_: (Mock(), None))
    with pytest.raises(UsageError):
        ClusterMembership(
            Mock(node_rank=1), Mock(), Mock(), Mock(), slot_count=1, run_id="r", worker_port=1, wake=Mock()
        )
    assert done == ["measure", "claim", "close"]
