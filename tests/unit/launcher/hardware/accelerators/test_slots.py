"""Which devices a node's workers are for, and how they are shared out: choosing between kinds, --devices, plug-ins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from launcher.config.options.readers import DeviceRequest
from launcher.hardware.accelerators import contract, named, slots
from launcher.hardware.linux import cgroup_limits
from launcher.model.errors import UnfitError, UsageError
from launcher.model.node import Device
from tests.support.options import resolve
from tests.support.sections import assign_devices


def test_cpus_are_those_this_process_may_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(contract.CpuDetector().detect({}).devices) == len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 2})
    inventory = contract.CpuDetector().detect({})
    found = [(device.index, device.id, device.visible) for device in inventory.devices]
    assert found == [(0, "cpu2", "2"), (1, "cpu5", "5")]


# Workers and their devices


class Fixed:
    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        devices = (Device(kind=kind, index=i, id=f"{kind}{i}", visible=str(i)) for i in range(count))
        self.inventory = contract.Inventory(tuple(devices), f"{count} found" if count else "no NVIDIA driver")

    def detect(self, environ: object) -> contract.Inventory:
        return self.inventory


def share(worker_count: Any, devices_per_worker: Any, *, gpus: int, cpus: int = 2) -> tuple[list[list[int]], str]:
    slots, reason = assign_devices(
        worker_count, devices_per_worker, {}, accelerators=[Fixed("nvidia", gpus)], cpu=Fixed("cpu", cpus)
    )
    assert [slot.index for slot in slots] == list(range(len(slots)))
    kinds = {device.kind for slot in slots for device in slot.devices}
    assert kinds == {"nvidia" if gpus and worker_count != "cpu" else "cpu"}
    return [[device.index for device in slot.devices] for slot in slots], reason


@pytest.mark.parametrize(
    ("worker_count", "devices_per_worker", "gpus", "slots", "reason"),
    [
        (None, None, 2, [[0], [1]], "2 workers, one per GPU (2 found)"),
        (None, None, 0, [[0]], "1 worker on the CPU (no accelerator found: no NVIDIA driver)"),
        ("auto", 1, 2, [[0], [1]], "2 workers, one per GPU (2 found)"),
        ("auto", 1, 0, [[0], [1]], "2 workers, one per CPU (2 found)"),
        ("cpu", 1, 4, [[0], [1]], "2 workers, one per CPU (2 found)"),
        (3, 1, 0, [[0], [1], [0]], "3 workers on the CPU, as asked (no NVIDIA driver)"),
        (3, 1, 2, [[0], [1], [0]], "3 workers as asked, more than the 2 GPUs they share (2 found)"),
        (None, 2, 4, [[0, 1], [2, 3]], "2 workers with 2 GPUs each (4 found)"),
        (None, 3, 4, [[0, 1, 2]], "1 worker with 3 GPUs each, on 3 of 4 GPUs (4 found)"),
        (None, "all", 4, [[0, 1, 2, 3]], "1 worker with 4 GPUs each (4 found)"),
        (1, 2, 4, [[0, 1]], "1 worker with 2 GPUs each, on 2 of 4 GPUs (4 found)"),
    ],
)
def test_devices_are_shared_out_among_the_workers(
    worker_count: Any, devices_per_worker: Any, gpus: int, slots: list[list[int]], reason: str
) -> None:
    assert share(worker_count, devices_per_worker, gpus=gpus) == (slots, reason)


@pytest.mark.parametrize(
    ("worker_count", "gpus", "reason", "is_usual"),
    [
        (None, 2, "", True),
        (2, 2, "", True),
        (1, 2, "", False),  # one is idle
        (4, 2, "", False),  # two workers share one
        (None, 0, slots.NO_CANDIDATES, False),  # one CPU worker where one for each GPU is what is usual
        ("auto", 0, slots.NO_CANDIDATES, False),
        (2, 0, slots.NO_CANDIDATES, True),
        (2, 0, "the driver does not answer", False),  # a GPU is expected
        ("cpu", 0, slots.NO_CANDIDATES, True),
        ("cpu", 2, "", True),
    ],
)
def test_what_is_unusual_of_the_number_of_workers_is_known(
    worker_count: Any, gpus: int, reason: str, is_usual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = Fixed("nvidia", gpus)
    detector.inventory = replace(detector.inventory, reason=reason)
    monkeypatch.setattr(slots, "list_candidates", lambda *_: [detector])
    made = resolve()
    devices = replace(made.devices, worker_count=worker_count)
    assert slots.make_node_slots(devices, made.workers, {})[2] == is_usual


def test_a_node_of_several_without_a_driver_says_that_its_workers_run_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "list_candidates", lambda *_: [])
    made = resolve("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h")
    devices = replace(made.devices, worker_count=2)
    _, reason, is_usual = slots.make_node_slots(devices, made.workers, {})
    assert (reason, is_usual) == ("2 workers on the CPU, as asked (no sign of a GPU or TPU)", False)


@pytest.mark.parametrize(("worker_count", "is_checked"), [(None, True), ("auto", True), ("gpu", True), (2, False)])
def test_workers_that_nobody_has_counted_are_compared_with_the_quota(
    worker_count: Any, is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "list_candidates", lambda *_: [Fixed("nvidia", 2)])
    monkeypatch.setattr(cgroup_limits, "explain_quota", "; less than {}".format)
    made = resolve()
    devices = replace(made.devices, worker_count=worker_count)
    _, reason, is_usual = slots.make_node_slots(devices, made.workers, {})
    assert (reason.endswith("; less than 2"), is_usual) == (is_checked, not is_checked)


@pytest.mark.parametrize(
    ("worker_count", "devices_per_worker", "gpus", "sentence"),
    [
        ("gpu", 1, 0, "--nproc-per-node=gpu, but no GPU was found: no NVIDIA driver"),
        (None, 2, 0, "--devices-per-worker is 2, but no accelerator was found: no NVIDIA driver"),
        (3, 2, 4, "3 workers with 2 GPUs each: 6 GPUs are needed, 4 are present (4 found)"),
        (5, "all", 4, "5 workers with 1 GPU each: 5 GPUs are needed, 4 are present (4 found)"),
        ("auto", 8, 4, "1 worker with 8 GPUs each: 8 GPUs are needed, 4 are present (4 found)"),
    ],
)
def test_what_cannot_be_shared_is_told(worker_count: Any, devices_per_worker: Any, gpus: int, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        share(worker_count, devices_per_worker, gpus=gpus)
    assert str(caught.value) == sentence
    hint = "use --nproc-per-node=3 without --devices-per-worker to let workers share devices"
    assert worker_count != 3 or caught.value.hint == hint


# Which kind


def find(*counts: tuple[str, int], mistake: str = "", worker_count: Any = None) -> str:
    """The reason, or the refusal and its hint, on a machine with these devices."""
    detectors = [Fixed(kind, count) for kind, count in counts]
    detectors[0].inventory = replace(detectors[0].inventory, mistake=mistake)
    try:
        return assign_devices(worker_count, 1, {}, accelerators=detectors, cpu=Fixed("cpu", 2))[1]
    except UsageError as error:
        return f"{error} | {error.hint}"


def test_two_kinds_or_a_variable_that_cannot_be_meant_are_a_question_for_the_user() -> None:
    assert find(("nvidia", 0), ("tpu", 4)) == "4 workers, one per TPU chip (4 found)"
    refusal = (
        "this node has 8 GPUs of kind nvidia (8 found) and 1 GPU of kind amd (1 found), but a job "
        "uses devices of one kind | set --devices nvidia or --devices amd"
    )
    assert find(("nvidia", 8), ("amd", 1), ("intel", 0)) == refusal
    assert find(("nvidia", 8), ("amd", 1), worker_count=4) == refusal
    assert find(("nvidia", 8), ("tpu", 4), worker_count="cpu") == "2 workers, one per CPU (2 found)"
    twice = "CUDA_VISIBLE_DEVICES=0,0 names 0 twice"
    for worker_count in (None, "auto", "gpu", 3):
        assert find(("nvidia", 0), mistake=twice, worker_count=worker_count) == f"{twice} | {contract.MISTAKE_HINT}"
        # It leaves two, but not those that were named.
        assert (
            find(("nvidia", 2), mistake="no GPU 9", worker_count=worker_count) == f"no GPU 9 | {contract.MISTAKE_HINT}"
        )
    assert find(("nvidia", 0), mistake=twice, worker_count="cpu") == "2 workers, one per CPU (2 found)"


def test_where_a_variable_wants_a_silent_device_nobody_says_of_how_many() -> None:
    inventory = replace(Fixed("nvidia", 1).inventory, unresponsive_count=1, reason="3 found")
    for mistake, who in (("", "1 of 2 devices"), ("no GPU 1", "1 device")):
        error = contract.make_unresponsive_error(replace(inventory, mistake=mistake))
        assert str(error) == f"{who} does not answer (3 found)"


@pytest.mark.parametrize("count", [None, 8])
def test_devices_none_of_which_answers_are_awaited_and_not_called_absent(count: int | None) -> None:
    driver = Fixed("nvidia", 0)
    driver.inventory = contract.Inventory((), "NVML has not answered for 30 s", unresponsive_count=8)
    with pytest.raises(UnfitError, match="8 of 8 devices do not answer"):
        assign_devices(None, 1, {}, request=DeviceRequest("nvidia", count), accelerators=[driver])


def test_a_kind_is_looked_for_only_where_there_is_a_sign_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kfd").touch()
    known = {
        "nvidia": contract.DeviceKind("GPU", "A", (str(tmp_path / "nvidiactl"),)),
        "amd": contract.DeviceKind("GPU", "B", (str(tmp_path / "no"), str(tmp_path / "kfd"))),
        "tpu": contract.DeviceKind("TPU chip", "C", (str(tmp_path / "accel0"),), ("TPU_WORKER_ID",)),
    }
    monkeypatch.setattr(contract, "KINDS", known)
    assert [detector.kind for detector in slots.list_candidates(known, {}, False)] == ["amd"]
    assert [detector.kind for detector in slots.list_candidates(known, {"TPU_WORKER_ID": "0"}, False)] == ["amd", "tpu"]
    assert slots.list_candidates(["nvidia"], {}, False) == ()


def test_a_machine_without_a_sign_imports_no_detector() -> None:
    """In a fresh interpreter, as others of this process have imported them."""
    program = (
        "import sys\n"
        "import msgspec\n"
        "from launcher.hardware.accelerators import contract, slots\n"
        "known = contract.KINDS.items()\n"
        "contract.KINDS = {kind: msgspec.structs.replace(one, driver_paths=()) for kind, one in known}\n"
        "from launcher.agent import command\n"
        "made = command.parse(['--devices-per-worker=1', 'train.py'], {})\n"
        "print(slots.make_node_slots(made.devices, made.workers, {})[1])\n"
        "found = [name for name in sys.modules if name.startswith('launcher.hardware.accelerators.')]\n"
        "print(*sorted(name.rpartition('.')[2] for name in found))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "1 worker on the CPU (no accelerator found: no sign of a GPU or TPU)",
        "contract slots",
    ]


def test_every_kind_has_its_detector_and_the_type_of_a_tpu_its_chips() -> None:
    assert [named.make_detector(kind).kind for kind in contract.KINDS] == list(contract.KINDS)
    request = DeviceRequest("tpu", shape="v5litepod-16")
    count, _, reason = asked(request, worker_count=4)
    assert (count, reason) == (4, "4 workers, one per TPU chip (v5litepod-16: 4 hosts of 4 chips, 4x4; 4 found)")
    with pytest.raises((UnfitError, UsageError), match=r"4 requested, 2 found"):
        asked(request, found=2)


# What makes devices visible


def test_the_variable_is_that_of_the_kind_unless_the_device_has_its_own() -> None:
    def device(kind: str, visible: str, variable: str = "") -> Device:
        return Device(kind=kind, index=0, id=visible, visible=visible, variable=variable)

    for devices, variable in (
        ([device("nvidia", "3"), device("nvidia", "GPU-a")], ("CUDA_VISIBLE_DEVICES", "3,GPU-a")),
        ([device("tpu", "0")], ("TPU_VISIBLE_CHIPS", "0")),
        ([device("intel", "1")], ("ZE_AFFINITY_MASK", "1")),
        ([device("foo", "1", "FOO")], ("FOO", "1")),
        *(([device(kind, "1")], None) for kind in ("foo", "cpu")),
        ([], None),
    ):
        assert contract.format_visible_variable(devices) == variable
    assert contract.find_visible_variable("foo") is None  # at the plug-in's devices


# --devices


def asked(
    request: DeviceRequest,
    *,
    found: int = 4,
    mistake: str = "",
    worker_count: Any = None,
    environ: dict[str, str] | None = None,
) -> tuple[int, list[str], str]:
    """How many workers, what selects the first one's devices, and the reason."""
    detector = Fixed(request.kind, found)
    detector.inventory = replace(detector.inventory, mistake=mistake)
    slots, reason = assign_devices(
        worker_count, None, environ or {}, request=request, accelerators=[detector], cpu=Fixed("cpu", 2)
    )
    return len(slots), [device.visible for device in slots[0].devices], reason


FOO = DeviceRequest("foo", 3, variable="FOO_VISIBLE")


@pytest.mark.parametrize(
    ("wanted", "more", "answer"),
    [
        (DeviceRequest("nvidia", 2), {}, (2, ["0"], "2 workers, one per GPU (4 found)")),
        (DeviceRequest("nvidia", 2), {"worker_count": 3},
         (3, ["0"], "3 workers as asked, more than the 2 GPUs they share (4 found)")),
        (DeviceRequest("cpu", 3), {}, (3, ["0"], "3 workers on the CPU, as asked (2 found)")),
        (DeviceRequest("cpu"), {"worker_count": "auto"}, (2, ["0"], "2 workers, one per CPU (2 found)")),
        # Devices of a kind that is not known are believed.
        (FOO, {}, (3, ["0"], "3 workers, one per foo (as --devices says, by FOO_VISIBLE)")),
        (FOO, {"environ": {"FOO_VISIBLE": "5, 7,9,11"}},
         (3, ["5"], "3 workers, one per foo (as --devices says, by FOO_VISIBLE)")),
    ],
)  # fmt: skip
def test_a_number_takes_so_many(
    wanted: DeviceRequest, more: dict[str, Any], answer: tuple[int, list[str], str]
) -> None:
    assert asked(wanted, **more) == answer


@pytest.mark.parametrize(
    ("wanted", "more", "sentence", "hint"),
    [
        (DeviceRequest("nvidia", 8), {}, "--devices nvidia:8: 8 requested, 4 found (4 found)",
         "use --devices nvidia --nproc-per-node=8 for 8 workers that share them"),
        (DeviceRequest("amd"), {"found": 0}, "--devices amd: no such device found (no NVIDIA driver)",
         "run `meshctl doctor` to see what was examined"),
        (DeviceRequest("amd"), {"found": 2, "mistake": "HIP_VISIBLE_DEVICES=9: no"}, "HIP_VISIBLE_DEVICES=9: no",
         contract.MISTAKE_HINT),
        (FOO, {"environ": {"FOO_VISIBLE": "5,7"}}, "--devices foo:3: 3 requested, but FOO_VISIBLE=5,7 has 2", None),
        (FOO, {"environ": {"FOO_VISIBLE": "5,7,7"}},
         "--devices foo:3: FOO_VISIBLE=5,7,7 has an empty or duplicate entry", None),
    ],
)  # fmt: skip
def test_absent_devices_are_refused(
    wanted: DeviceRequest, more: dict[str, Any], sentence: str, hint: str | None
) -> None:
    with pytest.raises((UnfitError, UsageError)) as caught:
        asked(wanted, **more)
    assert (str(caught.value), caught.value.hint) == (sentence, hint)
