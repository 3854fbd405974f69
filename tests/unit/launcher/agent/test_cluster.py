"""What every agent of a job must have been started with alike."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from launcher.agent import cluster
from launcher.agent.cluster import (
    CODED_WORDS_MAX,
    ClusterMembership,
    format_agreed_options,
    label_words,
    make_word_codes,
)
from launcher.agent.membership import make_settings
from launcher.model.errors import UsageError
from rendezvous.records import WORD_CODE_LENGTH
from tests.support.options import resolve


# Agents compare the text with that of agents of other versions.
@pytest.mark.parametrize(
    ("words", "agreed"),
    [
        ([], ""),
        (["--lease-ttl=5"], ""),
        (["--lease-ttl=7.5"], " --lease-ttl 7.5"),
        (["--max-restarts=3"], " --max-restarts 3"),
        (["--max-restarts=3", "--restart-window=60"], " --max-restarts 3 --restart-window 60"),
        (["--grow=never"], " --grow never"),
        (["--store-outage=stop"], " --store-outage stop"),
        (["--rdzv-backend=static", "--node-rank=1"], " --rdzv-backend static --master-port 29500"),
    ],
)
def test_options_that_all_nodes_must_have_alike_are_named_unless_usual(words: list[str], agreed: str) -> None:
    config = resolve("--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=store:29500", "--rdzv-id=job", *words)
    assert format_agreed_options(config, make_settings(config)) == agreed


def test_settings_that_all_nodes_need_alike_are_named_too() -> None:
    where = ("--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=store:29500", "--rdzv-id=job")
    config = resolve(*where, LAUNCHER_PRESENCE_PROOF="off")
    assert format_agreed_options(config, make_settings(config)) == " LAUNCHER_PRESENCE_PROOF=off"


def words(*given: str, secret: bytes = b"") -> tuple[tuple[str, ...], str]:
    config = replace(resolve(), script_args=given)
    return label_words(config), make_word_codes(config, secret)


def test_a_word_of_the_command_is_called_by_its_option_not_its_value() -> None:
    labels, codes = words(
        "data", "--lr", "0.1", "--token=hunter2", "-phunter2", "-1", "+model.lr=2", "http://me:hunter2@h/?a=b"
    )
    assert labels == (
        "the form of the script", "the script train.py", "argument 1 of the script", "--lr", "the value of --lr",
        "--token", "-p", "the value of -p", "+model.lr", "argument 8 of the script",
    )  # fmt: skip
    assert len(codes) == len(labels) * WORD_CODE_LENGTH


def test_a_value_that_ends_like_a_name_is_not_shown() -> None:
    labels, _ = words("QUJDREVGRw==", "--token", "QUJDREVGRw==", "--lr", "-.5")
    assert labels[2:] == ("argument 1 of the script", "--token", "the value of --token", "--lr", "the value of --lr")


def test_codes_cannot_be_compared_without_the_secret_of_the_job() -> None:
    assert words("4831", secret=b"one")[1] != words("4831", secret=b"two")[1]


def test_only_the_codes_of_other_words_are_others() -> None:
    one, other = words("--lr", "0.1")[1], words("--lr", "0.2")[1]
    assert one[:-WORD_CODE_LENGTH] == other[:-WORD_CODE_LENGTH]
    assert one != other
    assert len(words(*["x"] * CODED_WORDS_MAX)[1]) == CODED_WORDS_MAX * WORD_CODE_LENGTH, "a record has a limit"


def test_a_script_may_lie_elsewhere_on_another_node_but_not_be_another() -> None:
    def code(script: str) -> str:
        return make_word_codes(replace(resolve(), script=script), b"")

    assert code("train.py") == code("/home/me/train.py") == code("./train.py") != code("/home/me/other.py")
    assert code("package.train") != code("package.test")


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
