"""TPU chips over made-up machines, and a metadata server on loopback that is as it should be, or is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.config.options.readers import DeviceRequest
from launcher.extensions.devices.tpu import Detector
from launcher.hardware import slice_identity
from launcher.hardware.accelerators.contract import Inventory
from launcher.hardware.slice_identity import TpuMetadata, fetch_metadata
from launcher.model.errors import UsageError
from tests.support.hardware.devices import write
from tests.support.network.metadata_servers import Answering, dripping, pages, reply, serving
from tests.support.sections import assign_devices

SKIP = {"TPU_SKIP_MDS_QUERY": "true"}
GKE = {**SKIP, "TPU_ACCELERATOR_TYPE": "v6e-16"}
ATTRIBUTES = "/computeMetadata/v1/instance/attributes/"
# Of a v4 machine, as a public repository shows it; shortened.
TPU_ENV = """ACCELERATOR_TYPE: 'v4-256'
ALT: 'false'
CHIPS_PER_HOST_BOUNDS: '2,2,1'
CONSUMER_PROJECT_NUMBER: '377'
HOST_BOUNDS: '2,2,8'
INJECT_SLICE_BUILDER_FAULT: ''
NODE_ID: 'my-tpu-1'
TOPOLOGY: '4x4x8'
TPU_CHIPS_PER_PROCESS_BOUNDS: '2,2,1'
TPU_PROCESS_BOUNDS: '2,2,8'
TPU_TOPOLOGY_WRAP: 'true,true,true'
TYPE: 'V4'
WORKER_ID: '3'
ZONE: 'us-central2-b'
"""


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_identity, "_cache", {})
    monkeypatch.setattr(slice_identity, "LIMIT_S", 20.0)  # this machine may be busy


class Machine:
    """A tree of files under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pci("0000:00:03.0", "0x0042")  # Google's network card

    def pci(self, address: str, device: str, numa_node: int = 0, vendor: str = "0x1ae0") -> Path:
        folder = self.root / f"sys/bus/pci/devices/{address}"
        for name, value in {"vendor": vendor, "device": device, "numa_node": numa_node}.items():
            write(folder / name, f"{value}\n")
        return folder

    def accel(self, *numbers: int) -> None:
        """Chips of v4, two on each NUMA node."""
        for number in numbers:
            folder = self.pci(f"0000:00:0{number + 4}.0", "0x005e", number // 2)
            write(self.root / f"dev/accel{number}")
            self._link(self.root / f"sys/class/accel/accel{number}/device", folder)

    def vfio(self, group: int, *devices: tuple[str, str], vendor: str = "0x1ae0") -> None:
        """`devices`: PCI address and device id of what is in the group."""
        write(self.root / f"dev/vfio/{group}")
        (self.root / f"sys/kernel/iommu_groups/{group}/devices").mkdir(parents=True)
        for address, device in devices:
            folder = self.pci(address, device, vendor=vendor)
            self._link(self.root / f"sys/kernel/iommu_groups/{group}/devices/{address}", folder)

    def _link(self, link: Path, folder: Path) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(folder, link.parent))

    def detector(self, metadata: tuple[str, int] = ("127.0.0.1", 1)) -> Detector:
        return Detector(root=str(self.root), metadata=metadata)

    def find(self, **environ: str) -> Inventory:
        return self.detector().detect({**SKIP, **environ})

    def detect(self, environ: dict[str, str] | None = None, metadata: tuple[str, int] = ("127.0.0.1", 1)) -> list[str]:
        """The ids of the chips, and the reason behind them."""
        found = self.detector(metadata).detect(SKIP if environ is None else environ)
        return [*(device.id for device in found.devices), found.reason]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def four_chips(machine: Machine) -> Machine:
    machine.accel(0, 1, 2, 3)
    return machine


def test_older_models_have_a_file_for_each_chip(four_chips: Machine) -> None:
    found = four_chips.find()
    assert [(chip.kind, chip.index, chip.id, chip.visible, chip.numa_node, chip.model) for chip in found.devices] == [
        ("tpu", 0, "0000:00:04.0", "0", 0, "v4"),
        ("tpu", 1, "0000:00:05.0", "1", 0, "v4"),
        ("tpu", 2, "0000:00:06.0", "2", 1, "v4"),
        ("tpu", 3, "0000:00:07.0", "3", 1, "v4"),
    ]
    assert found.reason == "4 found in /dev"


def test_a_file_without_a_link_in_sys_is_still_a_chip_and_a_folder_is_none(machine: Machine) -> None:
    for name in ("accel10", "accel9", "accel/accel0"):  # the folder is of NVIDIA's drivers
        write(machine.root / f"dev/{name}")
    (machine.root / "dev/accel7").mkdir()
    assert machine.detect() == ["accel9", "accel10", "2 found in /dev"]


def test_newer_models_are_found_by_what_is_in_their_iommu_groups(machine: Machine) -> None:
    write(machine.root / "dev/vfio/vfio")
    (machine.root / "dev/vfio/devices").mkdir()
    machine.vfio(10, ("0000:00:05.0", "0x006f"))
    machine.vfio(9, ("0000:00:04.0", "0x006f"))
    machine.vfio(2, ("0000:00:06.0", "0x006f"), ("0000:00:07.0", "0x006f"))
    addresses = [f"0000:00:0{number}.0" for number in (6, 7, 4, 5)]
    assert machine.detect(GKE) == [*addresses, "4 found in /dev/vfio, v6e-16 by TPU_ACCELERATOR_TYPE"]


def test_what_others_hand_through_is_no_chip_and_a_newer_model_is_one(machine: Machine) -> None:
    machine.vfio(1, ("0000:17:00.0", "0xa2dc"), vendor="0x15b3")  # BlueField-3
    machine.vfio(2, ("0000:00:09.0", "0x0042"))  # Google's network card
    machine.vfio(3)
    assert machine.detect() == ["no TPU chip"]
    machine.vfio(4, ("0000:00:04.0", "0x0123"))
    assert machine.detect() == ["0000:00:04.0", "1 found in /dev/vfio"]


def test_chips_that_nobody_can_open_and_a_type_without_chips_are_mentioned(machine: Machine) -> None:
    assert machine.detect(GKE) == ["TPU_ACCELERATOR_TYPE=v6e-16, but no TPU chip"]
    for address in ("0000:00:04.0", "0000:00:05.0"):
        machine.pci(address, "0x0063")
    assert machine.detect(GKE) == ["2 TPU chips on the PCI bus, and no file in /dev to open one"]


def test_chips_are_not_opened(machine: Machine) -> None:
    """A pipe that nobody writes to would keep who opens it; a chip that is in use answers "busy"."""
    os.mkdir(machine.root / "dev")
    os.mkfifo(machine.root / "dev/accel0")
    assert machine.detect() == ["accel0", "1 found in /dev"]


@pytest.mark.parametrize(
    ("environ", "visible"),
    [
        ({"TPU_VISIBLE_CHIPS": "2,0"}, ["2", "0"]),
        ({"TPU_VISIBLE_DEVICES": " 1 "}, ["1"]),
        ({"TPU_VISIBLE_CHIPS": "3", "TPU_VISIBLE_DEVICES": "1"}, ["3"]),
        ({"TPU_VISIBLE_DEVICE_PATHS": "/dev/accel1,/dev/accel3"}, ["1", "3"]),
        ({"TPU_VISIBLE_CHIPS": ""}, []),
    ],
)
def test_a_variable_chooses_among_the_chips(four_chips: Machine, environ: dict[str, str], visible: list[str]) -> None:
    found = four_chips.find(**environ)
    assert [chip.visible for chip in found.devices] == visible
    assert [chip.index for chip in found.devices] == list(range(len(visible)))
    variable, text = next(iter(environ.items()))
    assert (found.reason, found.mistake) == (f"4 found in /dev, {len(visible)} left by {variable}={text}", "")


@pytest.mark.parametrize(
    ("variable", "value", "mistake"),
    [
        ("TPU_VISIBLE_CHIPS", "0,4", ": no TPU chip '4' exists here, only 0, 1"),
        ("TPU_VISIBLE_CHIPS", "1,1", " names 1 twice"),
        ("TPU_VISIBLE_CHIPS", "-1", ": '-1' is not the number of a device"),
        ("TPU_VISIBLE_CHIPS", "0-1", ": '0-1' is not the number of a device"),
        ("TPU_VISIBLE_DEVICE_PATHS", "/dev/accel9",
         ": no TPU chip '/dev/accel9' exists here, only /dev/accel0, /dev/accel1"),
    ],
)  # fmt: skip
def test_a_choice_that_cannot_be_meant_is_refused(machine: Machine, variable: str, value: str, mistake: str) -> None:
    machine.accel(0, 1)
    for worker_count in (None, 2):
        with pytest.raises(UsageError) as raised:
            assign_devices(worker_count, None, {**SKIP, variable: value}, accelerators=[machine.detector()])
        assert str(raised.value) == f"{variable}={value}{mistake}"


# How chips are shared out.


@pytest.mark.parametrize(
    ("count", "width", "framework", "shares"),
    [
        (None, None, "jax", [4]),  # one worker has all chips of its host
        (None, None, "xla", [1, 1, 1, 1]),
        (None, None, "torch", [1, 1, 1, 1]),
        (None, 1, "jax", [1, 1, 1, 1]),
        (2, None, "jax", [2, 2]),
    ],
)
def test_each_chip_has_a_worker_unless_jax_takes_all(
    four_chips: Machine, count: Any, width: Any, framework: str, shares: list[int]
) -> None:
    slots, reason = assign_devices(count, width, SKIP, accelerators=[four_chips.detector()], framework=framework)
    assert [len(slot.devices) for slot in slots] == shares
    assert shares != [4] or reason == "1 worker with 4 TPU chips each (4 found in /dev)"


def test_no_chip_is_for_two_workers_and_a_type_has_as_many_hosts_as_the_slice(four_chips: Machine) -> None:
    with pytest.raises(UsageError) as raised:
        assign_devices(8, None, SKIP, accelerators=[four_chips.detector()])
    assert str(raised.value).startswith("8 workers with 1 TPU chip each: 8 TPU chips are needed, 4 are present")
    assert raised.value.hint == "request fewer: a TPU chip serves one process"
    environ = {**SKIP, "TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "a,b"}
    detectors = [four_chips.detector()]
    fits, other = (DeviceRequest("tpu", shape=shape) for shape in ("v4-16", "v4-32"))
    assert len(assign_devices(None, None, environ, request=fits, accelerators=detectors)[0]) == 4
    with pytest.raises(UsageError) as raised:
        assign_devices(None, None, environ, request=other, accelerators=detectors)
    assert str(raised.value) == (
        "--devices tpu:v4-32: such a slice has 4 hosts, but this host is one of 2 by TPU_WORKER_HOSTNAMES, "
        "TPU_WORKER_ID 0"
    )


# The metadata server of a Cloud TPU machine.


def attributes(**found: str) -> Answering:
    return pages({ATTRIBUTES + name.replace("_", "-"): text for name, text in found.items()}, Metadata_Flavor="Google")


FULL = attributes(tpu_env=TPU_ENV, worker_network_endpoints="10.0.0.1,10.0.0.2")


def test_a_cloud_machine_tells_its_type_and_its_slice(four_chips: Machine) -> None:
    with serving(FULL) as server:
        assert four_chips.detect({}, server.address)[-1] == "4 found in /dev, v4-256 by the metadata server"
        said = slice_identity.merge_metadata({"TPU_NAME": "given"}, server.address)
        asked = [request.path.removeprefix(ATTRIBUTES) for request in server.requests]
        assert all(request.headers["metadata-flavor"] == "Google" for request in server.requests)
    assert asked == ["tpu-env", "worker-network-endpoints"], "only what the first answer lacked, and once"
    assert said["TPU_NAME"] == "given", "a variable is nearer than the server"
    told = {"TPU_HOST_BOUNDS": "2,2,8", "TPU_TOPOLOGY": "4x4x8", "TPU_WORKER_ID": "3"}
    assert told.items() <= said.items()
    assert not {"ZONE", "TYPE", "ALT", "INJECT_SLICE_BUILDER_FAULT"} & set(said)


def test_the_slice_is_known_by_older_forms_too() -> None:
    hosts = "w0:uid-0:10.0.0.1,w1:uid-1:10.0.0.2"
    answer = attributes(
        agent_worker_number="1", accelerator_type="v4-16", instance_id="my-tpu", worker_network_endpoints=hosts
    )
    with serving(answer) as server:
        found = slice_identity.read_identity(fetch_metadata({}, server.address).variables)[0]
    assert found == slice_identity.SliceIdentity("10.0.0.1", 1, 2, ("10.0.0.1", "10.0.0.2"))


def test_a_machine_of_another_kind_knows_of_no_tpu(four_chips: Machine) -> None:
    with serving(attributes(ssh_keys="some")) as server:
        assert four_chips.detect({}, server.address)[-1] == "4 found in /dev (the metadata server lists no TPU)"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (pages({ATTRIBUTES + "tpu-env": TPU_ENV}), "is not Google's"),
        (lambda _: reply("no", 403, Metadata_Flavor="Google"), "answers 403 to tpu-env"),
        (lambda _: [b"SSH-2.0-OpenSSH_9.6\r\n"], "returned a response that is not HTTP"),
        (lambda _: reply(b"\xff\xfe\x00", Metadata_Flavor="Google"), "returned a response that is not text"),
        (dripping(b"x"), "does not answer within 0.1 s"),
    ],
)
def test_who_is_not_the_metadata_server_is_not_believed(answer: Answering, reason: str) -> None:
    with serving(answer) as server:
        found = fetch_metadata({}, server.address, limit_s=0.1 if "within" in reason else None)
    assert found == TpuMetadata({}, f"the metadata server {reason}")


def test_rubbish_in_the_answer_is_left_out() -> None:
    rubbish = "<html>\nTOPOLOGY\nTPU_NAME: 'a\x07b'\nMEGASCALE_SLICE_ID: '1'\n: 'x'\nLD_PRELOAD: 'x'\n"
    with serving(attributes(tpu_env=rubbish)) as server:
        assert fetch_metadata({}, server.address).variables == {"MEGASCALE_SLICE_ID": "1"}


@pytest.fixture
def untouched() -> Iterator[tuple[str, int]]:
    """A server that nobody may ask."""
    with serving(FULL) as server:
        yield server.address
        assert not server.requests


@pytest.mark.parametrize("environ", [SKIP, {"TPU_ACCELERATOR_TYPE": "v4-8"}])
def test_where_variables_say_none_ask(four_chips: Machine, untouched: tuple[str, int], environ: dict[str, str]) -> None:
    assert len(four_chips.detect(environ, untouched)) == 5
