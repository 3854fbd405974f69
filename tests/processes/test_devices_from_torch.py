"""Devices of a type that only torch knows: how it is asked, and every way in which there is no answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.extensions.devices import from_torch
from launcher.hardware.accelerators.contract import format_visible_variable
from launcher.model.errors import UsageError
from tests.support.sections import assign_devices

TORCH = """
__version__ = "9.9"
def device(kind):
    if kind != "npu":
        raise RuntimeError("Expected one of cpu, cuda, npu")
class npu:
    is_available = staticmethod(lambda: {available})
    device_count = staticmethod(lambda: 3)
print("a library that greets")
"""


def workers(kind: str, python: str = sys.executable) -> tuple[Sequence[Any], str]:
    return assign_devices(kind, 1, dict(os.environ), python=python)


def refusal(kind: str, python: str = sys.executable) -> str:
    with pytest.raises(UsageError) as caught:
        workers(kind, python)
    return str(caught.value)


@pytest.fixture
def fake_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch with an extension; and files in the current directory, which are nobody's torch and not Python's own."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("torch", "json"):
        (tmp_path / f"here/{name}.py").write_text("raise SystemExit(5)")
    path = tmp_path / "torch.py"
    path.write_text(TORCH.format(available=True))
    return path


def test_one_worker_is_started_per_device_that_torch_counts(fake_torch: Path) -> None:
    slots, reason = workers("npu")
    assert [[device.id for device in slot.devices] for slot in slots] == [["npu0"], ["npu1"], ["npu2"]]
    assert reason == "3 workers, one per npu (3 found by torch 9.9)"


def test_what_torch_counts_is_selected_as_the_variable_of_the_type_has_it(
    fake_torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "2,5,6")
    slots, _ = workers("npu")
    assert [device.id for slot in slots for device in slot.devices] == ["npu2", "npu5", "npu6"], (
        "as other agents see them"
    )
    assert format_visible_variable([device for slot in slots for device in slot.devices]) == (
        "ASCEND_RT_VISIBLE_DEVICES",
        "2,5,6",
    )
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "2,5")  # and torch counts three: it did not obey
    slots, _ = workers("npu")
    assert [device.visible for slot in slots for device in slot.devices] == ["0", "1", "2"]


def test_a_type_called_like_a_kind_of_ours_has_the_variable_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_torch, "SCRIPT", "import json; print(json.dumps([2, 'torch']))")
    monkeypatch.setenv("TPU_VISIBLE_CHIPS", "1,3")
    slots, _ = workers("tpu")
    devices = [device for slot in slots for device in slot.devices]
    assert format_visible_variable(devices) == ("TPU_VISIBLE_CHIPS", "1,3")


def test_a_type_that_torch_does_not_know_or_has_not_is_refused(fake_torch: Path) -> None:
    said = "expected a number, auto, gpu, cpu or a type of device that torch knows"
    assert refusal("lots") == f"--nproc-per-node=lots: {said}", "torch is not imported for a typing error"
    assert refusal("maia") == "--nproc-per-node=maia: torch 9.9 knows no such type of device"
    (fake_torch.parent / "more-1.0.dist-info").mkdir()
    (fake_torch.parent / "more-1.0.dist-info/entry_points.txt").write_text("[torch.backends]\nlots = more:load\n")
    assert refusal("lots") == "--nproc-per-node=lots: torch 9.9 knows no such type of device"
    fake_torch.write_text(TORCH.format(available=False))
    assert refusal("npu") == "--nproc-per-node=npu: torch 9.9 finds none"


def test_without_torch_nobody_knows(tmp_path: Path, fake_torch: Path) -> None:
    fake_torch.write_text("raise ModuleNotFoundError('No module named torch')")
    assert refusal("xpu") == (
        "--nproc-per-node=xpu: torch, which would know, cannot be imported: No module named torch"
    )


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("raise SystemError('driver')", "torch could not count them: SystemError: driver"),
        ("raise SystemExit(7)", "torch could not count them: exit code 7"),
        ("print('[1')", "torch could not count them: exit code 0"),
        ("print([None, 1])", "torch could not count them: exit code 0"),
    ],
)
def test_an_answer_that_is_none_is_refused(question: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_torch, "SCRIPT", question)
    assert refusal("xpu") == f"--nproc-per-node=xpu: {reason}"


def test_a_silent_torch_is_waited_for_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_torch, "SCRIPT", "import sys; sys.stdin = None; import time; time.sleep(60)")
    monkeypatch.setattr(from_torch, "LIMIT_S", 0.2)
    assert refusal("xpu") == ("--nproc-per-node=xpu: torch did not count them within 0.2 s")


def test_an_interpreter_that_there_is_not_is_named(tmp_path: Path) -> None:
    python = str(tmp_path / "python")
    assert refusal("xpu", python) == f"--nproc-per-node=xpu: {python} cannot be run: No such file or directory"


def test_what_torch_loads_is_told_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_STORE_TOKEN", "hunter2")
    monkeypatch.setenv("NPU_VISIBLE", "0")
    question = "import json, os; names = {'LAUNCHER_STORE_TOKEN', 'NPU_VISIBLE'} & {*os.environ}; "
    question += "print(json.dumps([1, ' '.join(sorted(names))]))"
    monkeypatch.setattr(from_torch, "SCRIPT", question)
    _, reason = workers("npu")
    assert reason == "1 worker, one per npu (1 found by NPU_VISIBLE)"
