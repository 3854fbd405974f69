"""What people are told of the preloaded image, and when."""

from __future__ import annotations

import pytest

from launcher.agent import command, preload
from launcher.agent.preload import ForkServerClient
from launcher.model.node import Slot
from launcher.supervisor import messages


class Supervisor:
    """Hears of orders."""

    def __init__(self) -> None:
        self.orders: list[messages.ForkServerSpec] = []

    def preload(self, image: messages.ForkServerSpec) -> None:
        self.orders.append(image)


class Bench:
    """An image, and what was told of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
        self.supervisor = Supervisor()
        self._told: list[str] = []
        monkeypatch.setattr(preload, "log", self._told.append)
        self.image = ForkServerClient(command.parse([*words, "train.py"], {}), self.supervisor, {})  # type: ignore[arg-type]

    def told(self) -> list[str]:
        told, self._told[:] = list(self._told), []
        return told


SLOTS = [Slot(index=0, devices=()), Slot(index=1, devices=())]


def test_the_fork_server_is_ordered_once_and_before_devices_if_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    early = Bench(monkeypatch, "--preload=torch", "--nproc-per-node=2", "--framework=torch")
    early.image.start()
    assert len(early.supervisor.orders) == 1
    late = Bench(monkeypatch, "--preload=torch")
    late.image.start()
    assert late.supervisor.orders == []
    for bench in (early, late):
        bench.image.start(SLOTS)
        bench.image.start(SLOTS)
        assert [order.modules for order in bench.supervisor.orders] == [("torch",)]


def test_the_fork_server_carries_its_mark_and_a_round_says_once_that_it_waits_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    supervisor = Supervisor()
    image = ForkServerClient(command.parse(["--preload=torch", "train.py"], {}), supervisor, {"LAUNCHER_PLACE": "here"})  # type: ignore[arg-type]
    image.start(SLOTS)
    assert supervisor.orders[0].env["LAUNCHER_PLACE"] == "here"
    bench = Bench(monkeypatch, "--preload=torch,jax")
    bench.image.start(SLOTS)
    assert bench.image.wake_at == float("inf")  # nobody waits
    bench.image.take(messages.Preloading(7), 100.0)
    bench.image.expect_workers(105.0)
    assert bench.image.wake_at == 105.0 + preload.WAIT_NOTICE_S
    bench.image.advance(115.2)
    assert bench.told() == ["the workers wait for the import of torch and jax (--preload), which has taken 15 s so far"]
    assert bench.image.wake_at == float("inf")


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ("torch", "preloaded torch in 0.9 s; workers are forked with it in memory"),
        ("torch,numpy", "preloaded torch and numpy in 0.9 s; workers are forked with them in memory"),
        ("a,b,c.d", "preloaded a, b and c.d in 0.9 s; workers are forked with them in memory"),
    ],
)
def test_one_line_says_that_the_fork_server_is_ready(monkeypatch: pytest.MonkeyPatch, modules: str, words: str) -> None:
    bench = Bench(monkeypatch, f"--preload={modules}")
    assert bench.image.take(messages.Preloaded(7, 0.9241, ("torch reads the clock",)), 100.0) is None
    assert bench.told() == [words, "torch reads the clock"]


def test_plain_pythons_are_worth_a_line_only_if_they_are_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, "--standby=1", "--max-restarts=1")
    bench.image.expect_workers(100.0)
    bench.image.advance(110.0)
    assert bench.told() == ["the workers wait for a Python (--standby), which has taken 10 s so far"]
    bench.image.start(SLOTS)
    bench.image.take(messages.Preloaded(7, 0.01, ()), 100.0)
    assert bench.told() == []


@pytest.mark.parametrize("report", [messages.Preloaded(7, 2.0, ()), messages.Spawned(1, 0, 8), messages.RoundSwept(1)])
def test_who_has_what_it_waited_for_is_done(
    monkeypatch: pytest.MonkeyPatch, report: messages.Preloaded | messages.Spawned | messages.RoundSwept
) -> None:
    bench = Bench(monkeypatch, "--preload=torch")
    bench.image.start(SLOTS)
    bench.image.expect_workers(100.0)
    bench.image.take(report, 101.0)
    assert bench.image.wake_at == float("inf")


def test_no_round_waits_for_a_ready_fork_server_until_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, "--preload=torch")
    bench.image.start(SLOTS)
    bench.image.take(messages.Preloaded(7, 2.0, ()), 100.0)
    bench.image.expect_workers(100.0)
    assert bench.image.wake_at == float("inf")
    bench.told()
    bench.image.take(messages.ForkServerLost("the fork server (pid 7) was killed by SIGKILL"), 101.0)
    assert bench.told() == ["the fork server (pid 7) was killed by SIGKILL"]
    bench.image.expect_workers(100.0)
    assert bench.image.wake_at < float("inf")


def test_a_fork_server_that_cannot_import_is_the_users_error_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, "--preload=torhc")
    refusal = bench.image.take(
        messages.PreloadRefused("--preload: module torhc does not exist", "is it installed?"), 101.0
    )
    assert refusal is not None
    assert (str(refusal), refusal.hint, refusal.exit_code) == (
        "--preload: module torhc does not exist", "is it installed?", 2,
    )  # fmt: skip
    assert bench.told() == []
