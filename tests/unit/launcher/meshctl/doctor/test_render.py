"""How `meshctl doctor` writes what it has found: in columns that stay, with the worst where it is read first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from launcher.hardware.accelerators.contract import Inventory
from launcher.hardware.accelerators.nvidia import Detector as NvidiaDetector
from launcher.meshctl.doctor.examine import examine, list_frameworks
from launcher.meshctl.doctor.render import format_row, render_text
from launcher.model.node import Device
from launcher.model.text import WIDTH

GPUS = tuple(
    Device(
        kind="nvidia", index=index, id=f"GPU-5a1c0c1e-7d53-4b0f-9f3a-00000000000{index}", visible=str(index),
        numa_node=index // 4, domain="3f2a.1", model="NVIDIA H100 80GB HBM3",
    )
    for index in range(8)
)  # fmt: skip


def test_long_names_and_values_move_no_column() -> None:
    assert list(format_row("duplicate-stdout-filters", "loss", "PET_DUPLICATE_STDOUT_FILTERS")) == [
        "  duplicate-stdout-filters",
        "                          loss                PET_DUPLICATE_STDOUT_FILTERS",
    ]
    assert list(format_row("traffic", "tp=100,cp=30,ep=20", "LAUNCHER_TRAFFIC")) == [
        "  traffic                 tp=100,cp=30,ep=20  LAUNCHER_TRAFFIC"
    ]
    assert list(format_row("traffic", "tp=100,cp=30,ep=20,dp=10", "LAUNCHER_TRAFFIC")) == [
        "  traffic                 tp=100,cp=30,ep=20,dp=10",
        "                                              LAUNCHER_TRAFFIC",
    ]
    path = "/very" * 20
    assert list(format_row("log-dir", path, "--log-dir")) == ["  log-dir", f"    {path}", " " * 46 + "--log-dir"]
    assert max(map(len, format_row("why", "word " * 60))) <= WIDTH


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What is found on a node with 8 GPUs, of which `silent` more do not answer."""

    def examined(*given: str, silent: int = 0, mistake: str = "") -> dict[str, Any]:
        inventory = Inventory(GPUS, "8 found by NVML", mistake, silent)
        monkeypatch.setattr(NvidiaDetector, "detect", lambda self, environ: inventory)
        return examine(["--devices=nvidia", *given], {"PATH": "/usr/bin:/bin"})

    return examined


def test_the_worst_stands_first_and_devices_that_do_not_answer_may_hurt(found: Callable[..., dict[str, Any]]) -> None:
    whole = found("--monitor-interval=3", "--devices=nvidia:8", "no-such-script.py", silent=1)
    levels = [finding["level"] for finding in whole["findings"]]
    assert levels == sorted(levels, key=["stop", "hurt", "note"].index)
    text = render_text(whole)
    at = [text.index(f"\n{word}: ") for word in ("would stop a job", "may hurt", "note")]
    assert at == sorted(at)
    assert text.startswith("verdict: 1 problem would stop a job here, ")

    def amiss(*given: str) -> list[tuple[str, str, str]]:
        findings = found(*given, silent=2)["findings"]
        told = [(finding["check"], finding["level"], finding["seen"]) for finding in findings]
        return [each for each in told if each[0] in ("workers", "devices")]

    assert amiss("--devices=nvidia:8") == [("devices", "hurt", "2 more nvidia devices do not respond")]
    assert amiss() == [("workers", "stop", "2 of 10 devices do not answer (8 found by NVML)")]


def test_a_framework_of_another_python_is_found_without_starting_it(tmp_path: Any) -> None:
    packages = tmp_path / "lib/python3.12/site-packages/jax"
    packages.mkdir(parents=True)
    (packages / "__init__.py").write_text("raise SystemExit")
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python3"
    python.write_text("#!/bin/false\n")
    python.chmod(0o755)
    environ = {"PYTHON_EXEC": str(python), "PATH": "/usr/bin:/bin"}
    assert list_frameworks(str(python), environ) == {
        "torch": {"found": False, "version": None},
        "jax": {"found": True, "version": None},
        "torch_xla": {"found": False, "version": None},
        "paddle": {"found": False, "version": None},
    }
