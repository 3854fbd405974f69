"""Whether a node is fit to join: what is looked at without a check of the user's, and how often."""

from __future__ import annotations

import math
import os
import select
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.agent import command
from launcher.agent.health_gate import HealthGate, compute_pause_s
from launcher.agent.membership import read_clock
from launcher.config import files
from launcher.config.config import Config
from launcher.hardware.accelerators.contract import Inventory
from launcher.model.errors import UnfitError, UsageError
from launcher.model.node import Device
from launcher.parts.host import PartHost
from launcher.parts.part import Effect, Fact, Ready
from tests.support.sections import assign_devices


def config(*words: str, **variables: str) -> Config:
    return command.parse([*words, "train.py"], variables)


def test_pauses_grow_from_a_second_to_a_minute_and_end_at_the_limit() -> None:
    found: list[float] = []
    while (pause_s := compute_pause_s(len(found) + 1, 600 - sum(found))) is not None:
        found.append(pause_s)
    assert found[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert (max(found), sum(found)) == (60, 600)
    assert [compute_pause_s(1, left_s) for left_s in (-0.1, 0.0)] == [None, None]  # a look that took too long


def test_a_health_check_is_a_command_and_its_limit_a_time() -> None:
    assert config().health.health_check is None
    made = config("--health-check", "test -e /dev/nvidia0 && true", LAUNCHER_HEALTH_TIMEOUT="2.5")
    assert (made.health.health_check, made.health.health_timeout_s) == ("test -e /dev/nvidia0 && true", 2.5)
    with pytest.raises(UsageError, match="is not a command"):
        config("--health-check= ")
    with pytest.raises(UsageError, match="LAUNCHER_HEALTH_TIMEOUT=0 must be greater than 0"):
        config("--health-check=true", LAUNCHER_HEALTH_TIMEOUT="0")
    note = "LAUNCHER_HEALTH_TIMEOUT=3 has no effect without --health-check"
    assert note in config(LAUNCHER_HEALTH_TIMEOUT="3").notes
    made = config("--start-timeout=7")  # one machine too is waited for so long
    assert (made.rendezvous.settings, made.notes) == ({"start_timeout_s": 7}, ())


def disk(**changes: int) -> SimpleNamespace:
    """Of 10 GiB, with room for everybody."""
    blocks = {"f_frsize": 4096, "f_blocks": 2621440, "f_bfree": 100000, "f_bavail": 90000}
    return SimpleNamespace(**{**blocks, "f_files": 1000, "f_ffree": 10, "f_favail": 10, **changes})


@pytest.mark.parametrize(
    ("changes", "user", "expected"),
    [
        ({}, 1000, "room"),
        ({"f_bavail": 2000}, 1000, "log directory DIR is on a full disk: 7.8 MiB are free"),
        ({"f_blocks": 64, "f_bavail": 2}, 1000, "room"),  # a small disk is not full as long as it has something
        ({"f_blocks": 64, "f_bavail": 0}, 1000, "log directory DIR is on a full disk: 0.0 MiB are free"),
        ({"f_favail": 0}, 1000, "log directory DIR is on a disk where no more files can be created"),
        ({"f_files": 0, "f_favail": 0}, 1000, "room"),  # this file system does not count files
        ({"f_bavail": 0, "f_favail": 0}, 0, "room"),  # what is kept for root is room for root
    ],
)
def test_a_full_log_disk_keeps_a_node_from_joining(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: Mapping[str, int], user: int, expected: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: disk(**changes))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    found = "room"
    try:
        files.require_log_space(str(tmp_path))
    except UnfitError as error:
        found = str(error).replace(str(tmp_path), "DIR")
    assert found == expected


def test_a_log_directory_that_is_gone_or_read_only_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UnfitError, match="cannot be examined: No such file or directory"):
        files.require_log_space(str(tmp_path / "gone"))
    monkeypatch.setattr(os, "access", lambda *words, **options: False)
    with pytest.raises(UnfitError, match="is not writable"):
        files.require_log_space(str(tmp_path))


def test_logs_that_are_not_kept_need_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: disk(f_bavail=0))
    files.require_log_space(None)
    files.require_log_space(os.devnull)


class Gpus:
    """Eight GPUs, of which some do not answer."""

    kind = "nvidia"

    def __init__(self, silent: int) -> None:
        self._silent = silent

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        found = range(8 - self._silent)
        devices = tuple(Device(kind="nvidia", index=at, id=f"GPU-{at}", visible=str(at)) for at in found)
        return Inventory(devices, f"{len(found)} found by NVML", unresponsive_count=self._silent)


@pytest.mark.parametrize("asked", [None, "auto", "gpu"])
def test_a_device_that_does_not_answer_is_no_device_less(asked: str | None) -> None:
    with pytest.raises(UnfitError) as caught:
        assign_devices(asked, 1, {}, accelerators=[Gpus(silent=1)])
    assert str(caught.value) == "1 of 8 devices does not answer (7 found by NVML)"
    assert caught.value.hint == "check dmesg, or use --nproc-per-node=7 to go without"
    assert len(assign_devices(7, 1, {}, accelerators=[Gpus(silent=1)])[0]) == 7
    assert len(assign_devices(asked, 1, {}, accelerators=[Gpus(silent=0)])[0]) == 8


def test_a_node_with_fewer_devices_than_were_asked_for_is_not_fit() -> None:
    def assign(count: int, silent: int) -> int:
        request = config(f"--devices=nvidia:{count}").devices.request
        return len(assign_devices(None, 1, {}, request=request, accelerators=[Gpus(silent)])[0])

    for silent in (0, 1):
        with pytest.raises(UnfitError, match=f"9 requested, {8 - silent} found"):
            assign(9, silent)
    assert assign(7, silent=1) == 7


class Reader:
    """A part that reads what it watches."""

    wake_at = math.inf

    def __init__(self) -> None:
        self.read = b""

    def take(self, fact: Fact) -> None:
        if isinstance(fact.what, Ready):
            self.read += os.read(fact.what.descriptor, 64)

    def advance(self, now: float) -> Iterable[Effect]:
        return ()

    def close(self) -> None:
        pass


def test_a_part_is_told_what_it_can_read_while_its_node_is_not_fit() -> None:
    """Else the wait would spin: the descriptor is in its poll."""
    parts, part = PartHost(select.poll(), read_clock, print), Reader()
    read_end, write_end = os.pipe()
    parts.add(part).register(read_end)
    quiet = SimpleNamespace(wake_at=math.inf, take=list, check=lambda now: None, read_reports=list)
    gate = HealthGate(SimpleNamespace(parts=parts, termination=quiet, wakeup=quiet, supervisor=quiet, fork_server=None))  # type: ignore[arg-type]
    os.write(write_end, b"news")
    gate._wait_for_reports(read_clock() + 60)
    os.close(read_end)
    os.close(write_end)
    assert part.read == b"news"
