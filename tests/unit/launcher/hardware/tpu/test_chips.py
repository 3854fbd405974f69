"""TPU chips over made-up machines, and a metadata server on loopback that is as it should be, or is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.config.options.worker_options import DeviceRequest
from launcher.hardware.accelerators import named
from launcher.hardware.accelerators.slots import assign_devices
from launcher.hardware.tpu import cloud_metadata, slice_identity
from launcher.hardware.tpu.chips import Detector
from launcher.hardware.tpu.cloud_metadata import TpuMetadata, fetch_metadata
from launcher.model.errors import UsageError
from tests.support.network.metadata_servers import Answering, dripping, pages, reply, serving, silence

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
    monkeypatch.setattr(cloud_metadata, "_cache", {})
    monkeypatch.setattr(cloud_metadata, "LIMIT_S", 20.0)  # this machine may be busy


class Machine:
    """A tree of files under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("sys/bus/pci/devices/0000:00:03.0/vendor", "0x1ae0")  # Google's network card
        self.write("sys/bus/pci/devices/0000:00:03.0/device", "0x0042")

    def write(self, path: str, text: str = "") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def pci(self, address: str, device: str, numa_node: int = 0, vendor: str = "0x1ae0") -> str:
        folder = f"sys/bus/pci/devices/{address}"
        for name, value in {"vendor": vendor, "device": device, "numa_node": numa_node}.items():
            self.write(f"{folder}/{name}", str(value))
        return folder

    def accel(self, number: int, device: str = "0x005e") -> None:
        folder = self.pci(f"0000:00:0{number + 4}.0", device, number // 2)
        self.write(f"dev/accel{number}")
        link = self.root / f"sys/class/accel/accel{number}/device"
        link.parent.mkdir(parents=True)
        link.symlink_to(os.path.relpath(self.root / folder, link.parent))

    def vfio(self, group: int, *devices: tuple[str, str], vendor: str = "0x1ae0") -> None:
        """`devices`: PCI address and device id of what is in the group."""
        self.write(f"dev/vfio/{group}")
        (self.root / f"sys/kernel/iommu_groups/{group}/devices").mkdir(parents=True)
        for address, device in devices:
            folder = self.pci(address, device, vendor=vendor)
            link = self.root / f"sys/kernel/iommu_groups/{group}/devices/{address}"
            link.symlink_to(os.path.relpath(self.root / folder, link.parent))

    def detect(self, environ: dict[str, str] | None = None, metadata: tuple[str, int] = ("127.0.0.1", 1)) -> list[str]:
        """The ids of the chips, and the reason behind them."""
        found = Detector(root=str(self.root), metadata=metadata).detect(SKIP if environ is None else environ)
        return [*(device.id for device in found.devices), found.reason]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_older_models_have_a_file_for_each_chip(machine: Machine) -> None:
    for number in range(4):
        machine.accel(number)
    found = Detector(root=str(machine.root)).detect(SKIP)
    assert [(chip.kind, chip.index, chip.id, chip.visible, chip.numa_node, chip.model) for chip in found.devices] == [
        ("tpu", 0, "0000:00:04.0", "0", 0, "v4"),
        ("tpu", 1, "0000:00:05.0", "1", 0, "v4"),
        ("tpu", 2, "0000:00:06.0", "2", 1, "v4"),
        ("tpu", 3, "0000:00:07.0", "3", 1, "v4"),
    ]
    assert found.reason == "4 found in /dev"


def test_a_file_without_a_link_in_sys_is_still_a_chip(machine: Machine) -> None:
    for number in (10, 9):
        machine.write(f"dev/accel{number}")
    assert machine.detect() == ["accel9", "accel10", "2 found in /dev"]


def test_the_folder_that_nvidias_drivers_make_is_no_chip(machine: Machine) -> None:
    machine.write("dev/accel/accel0")
    (machine.root / "dev/accel7").mkdir()
    assert machine.detect() == ["no TPU chip"]


def test_newer_models_are_found_by_what_is_in_their_iommu_groups(machine: Machine) -> None:
    machine.write("dev/vfio/vfio")
    (machine.root / "dev/vfio/devices").mkdir()
    machine.vfio(10, ("0000:00:05.0", "0x006f"))
    machine.vfio(9, ("0000:00:04.0", "0x006f"))
    machine.vfio(2, ("0000:00:06.0", "0x006f"), ("0000:00:07.0", "0x006f"))
    assert machine.detect(GKE) == [
        "0000:00:06.0",
        "0000:00:07.0",
        "0000:00:04.0",
        "0000:00:05.0",
        "4 found in /dev/vfio, v6e-16 by TPU_ACCELERATOR_TYPE",
    ]


def test_other_chips_than_gke_says_are_mentioned(machine: Machine) -> None:
    machine.accel(0)
    bounds = {"TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1"}
    assert machine.detect({**SKIP, **bounds})[-1] == "1 found in /dev, though TPU_CHIPS_PER_HOST_BOUNDS=2,2,1"
    for number in range(1, 4):
        machine.accel(number)
    assert machine.detect({**SKIP, **bounds})[-1] == "4 found in /dev"


def test_what_others_hand_through_is_no_chip(machine: Machine) -> None:
    machine.vfio(1, ("0000:17:00.0", "0xa2dc"), vendor="0x15b3")  # BlueField-3
    machine.vfio(2, ("0000:00:09.0", "0x0042"))  # Google's network card
    machine.vfio(3)
    assert machine.detect() == ["no TPU chip"]


def test_a_model_that_is_newer_than_this_program_counts(machine: Machine) -> None:
    machine.vfio(4, ("0000:00:04.0", "0x0123"))
    assert machine.detect() == ["0000:00:04.0", "1 found in /dev/vfio"]


def test_chips_that_nobody_can_open_are_mentioned(machine: Machine) -> None:
    for address in ("0000:00:04.0", "0000:00:05.0"):
        machine.pci(address, "0x0063")
    assert machine.detect() == ["2 TPU chips on the PCI bus, and no file in /dev to open one"]


def test_a_type_without_chips_is_mentioned(machine: Machine) -> None:
    assert machine.detect(GKE) == ["TPU_ACCELERATOR_TYPE=v6e-16, but no TPU chip"]


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
def test_a_variable_chooses_among_the_chips(machine: Machine, environ: dict[str, str], visible: list[str]) -> None:
    for number in range(4):
        machine.accel(number)
    found = Detector(root=str(machine.root)).detect({**SKIP, **environ})
    assert [chip.visible for chip in found.devices] == visible
    assert [chip.index for chip in found.devices] == list(range(len(visible)))
    variable, text = next(iter(environ.items()))
    assert found.reason == f"4 found in /dev, {len(visible)} left by {variable}={text}"
    assert not found.mistake


@pytest.mark.parametrize(
    ("environ", "mistake"),
    [
        ({"TPU_VISIBLE_CHIPS": "0,4"}, "TPU_VISIBLE_CHIPS=0,4: there is no TPU chip '4' here, only 0, 1"),
        ({"TPU_VISIBLE_CHIPS": "1,1"}, "TPU_VISIBLE_CHIPS=1,1 names TPU chip 1 twice"),
        ({"TPU_VISIBLE_CHIPS": "-1"}, "TPU_VISIBLE_CHIPS=-1: there is no TPU chip '-1' here, only 0, 1"),
        (
            {"TPU_VISIBLE_DEVICE_PATHS": "/dev/accel9"},
            "TPU_VISIBLE_DEVICE_PATHS=/dev/accel9: there is no TPU chip '/dev/accel9' here, only /dev/accel0, "
            "/dev/accel1",
        ),
    ],
)
def test_a_choice_that_cannot_be_meant_ends_the_start(machine: Machine, environ: dict[str, str], mistake: str) -> None:
    for number in range(2):
        machine.accel(number)
    detector = Detector(root=str(machine.root))
    assert detector.detect({**SKIP, **environ}).devices == ()
    with pytest.raises(UsageError) as raised:
        assign_devices(None, None, {**SKIP, **environ}, accelerators=[detector])
    assert str(raised.value) == mistake


# How chips are shared out.


def shared(
    machine: Machine, count: int | None = None, width: int | None = None, **options: str
) -> tuple[list[int], str]:
    """How many chips each worker has, and why."""
    for number in range(4):
        machine.accel(number)
    slots, reason = assign_devices(count, width, SKIP, accelerators=[Detector(root=str(machine.root))], **options)  # type: ignore[arg-type]
    return [len(slot.devices) for slot in slots], reason


def test_under_jax_one_worker_has_all_chips_of_its_host(machine: Machine) -> None:
    assert shared(machine, framework="jax") == ([4], "1 worker with 4 TPU chips each (4 found in /dev)")


@pytest.mark.parametrize(("framework", "width"), [("xla", None), ("torch", None), ("jax", 1)])
def test_else_each_chip_has_a_worker(machine: Machine, framework: str, width: int | None) -> None:
    assert shared(machine, None, width, framework=framework)[0] == [1, 1, 1, 1]


def test_under_jax_workers_that_are_asked_for_share_the_chips_out(machine: Machine) -> None:
    assert shared(machine, 2, framework="jax")[0] == [2, 2]


def test_no_chip_is_for_two_workers(machine: Machine) -> None:
    with pytest.raises(UsageError) as raised:
        shared(machine, 8)
    assert str(raised.value).startswith("8 workers with 1 TPU chip each: 8 TPU chips are needed, 4 are present")
    assert raised.value.hint == "a TPU chip serves one process"


def test_a_type_must_have_as_many_hosts_as_the_slice(machine: Machine) -> None:
    for number in range(4):
        machine.accel(number)
    environ = {**SKIP, "TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "a,b"}
    detectors = [Detector(root=str(machine.root))]
    fits, other = (DeviceRequest("tpu", shape=shape) for shape in ("v4-16", "v4-32"))
    assert len(named.detect_requested(fits, environ, detectors=detectors).devices) == 4
    with pytest.raises(UsageError) as raised:
        named.detect_requested(other, environ, detectors=detectors)
    assert str(raised.value) == (
        "--devices tpu:v4-32: 4 hosts have such a slice, and this is one of 2 by TPU_WORKER_HOSTNAMES, TPU_WORKER_ID 0"
    )


# The metadata server of a Cloud TPU machine.


@pytest.fixture
def cloud_machine(machine: Machine) -> Machine:
    for number in range(4):
        machine.accel(number)
    return machine


def attributes(**found: str) -> Answering:
    return pages({ATTRIBUTES + name.replace("_", "-"): text for name, text in found.items()}, Metadata_Flavor="Google")


FULL = attributes(tpu_env=TPU_ENV, worker_network_endpoints="10.0.0.1,10.0.0.2")


def test_a_cloud_machine_tells_its_type_and_its_slice(cloud_machine: Machine) -> None:
    with serving(FULL) as server:
        assert cloud_machine.detect({}, server.address)[-1] == "4 found in /dev, v4-256 by the metadata server"
        said = cloud_metadata.merge_metadata({"TPU_NAME": "given"}, server.address)
        asked = [request.path.removeprefix(ATTRIBUTES) for request in server.requests]
        assert all(request.headers["metadata-flavor"] == "Google" for request in server.requests)
    assert asked == ["tpu-env", "worker-network-endpoints"], "only what the first answer lacked, and once"
    assert said["TPU_NAME"] == "given", "a variable is nearer than the server"
    assert {name: said[name] for name in ("TPU_HOST_BOUNDS", "TPU_TOPOLOGY", "TPU_WORKER_ID")} == {
        "TPU_HOST_BOUNDS": "2,2,8",
        "TPU_TOPOLOGY": "4x4x8",
        "TPU_WORKER_ID": "3",
    }
    assert not {"ZONE", "TYPE", "ALT", "INJECT_SLICE_BUILDER_FAULT"} & set(said)


def test_the_slice_is_known_by_older_forms_too() -> None:
    answer = attributes(
        agent_worker_number="1",
        accelerator_type="v4-16",
        instance_id="my-tpu",
        worker_network_endpoints="w0:uid-0:10.0.0.1,w1:uid-1:10.0.0.2",
    )
    with serving(answer) as server:
        found = slice_identity.find_identity(fetch_metadata({}, server.address).variables)
    assert found == slice_identity.SliceIdentity("10.0.0.1", 1, 2, ("10.0.0.1", "10.0.0.2"))


def test_a_machine_of_another_kind_knows_of_no_tpu(cloud_machine: Machine) -> None:
    with serving(attributes(ssh_keys="some")) as server:
        assert cloud_machine.detect({}, server.address)[-1] == "4 found in /dev (the metadata server knows of no TPU)"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (pages({ATTRIBUTES + "tpu-env": TPU_ENV}), "the metadata server is not Google's"),
        (lambda _: reply("no", 403, Metadata_Flavor="Google"), "the metadata server answers 403 to tpu-env"),
        (lambda _: [b"SSH-2.0-OpenSSH_9.6\r\n"], "the metadata server answers with something that is no HTTP"),
        (
            lambda _: reply(b"\xff\xfe\x00", Metadata_Flavor="Google"),
            "the metadata server answers with something that is no text",
        ),
    ],
)
def test_who_is_not_the_metadata_server_is_not_believed(answer: Answering, reason: str) -> None:
    with serving(answer) as server:
        assert fetch_metadata({}, server.address) == TpuMetadata({}, reason)


def test_a_server_that_drips_keeps_nobody() -> None:
    with serving(dripping(b"x")) as server:
        found = fetch_metadata({}, server.address, limit_s=0.1)
    assert found == TpuMetadata({}, "the metadata server does not answer within 0.1 s")


def test_a_server_that_says_nothing_is_waited_for_only_so_long(cloud_machine: Machine) -> None:
    with silence() as address:
        assert fetch_metadata({}, address, limit_s=0.1) == TpuMetadata(
            {}, "the metadata server does not answer within 0.1 s"
        )
        assert cloud_machine.detect({}, address)[-1].endswith("(the metadata server does not answer within 0.1 s)"), (
            "it is not asked again"
        )


def test_rubbish_in_the_answer_is_left_out() -> None:
    answer = attributes(
        tpu_env="<html>\nTOPOLOGY\nTPU_NAME: 'a\x07b'\nMEGASCALE_SLICE_ID: '1'\n: 'x'\nLD_PRELOAD: 'x'\n"
    )
    with serving(answer) as server:
        assert fetch_metadata({}, server.address).variables == {"MEGASCALE_SLICE_ID": "1"}


@pytest.fixture
def untouched() -> Iterator[tuple[str, int]]:
    """A server that nobody may ask."""
    with serving(FULL) as server:
        yield server.address
        assert not server.requests


@pytest.mark.parametrize("environ", [SKIP, {"TPU_ACCELERATOR_TYPE": "v4-8"}])
def test_where_variables_say_it_nobody_is_asked(
    cloud_machine: Machine, untouched: tuple[str, int], environ: dict[str, str]
) -> None:
    assert len(cloud_machine.detect(environ, untouched)) == 5


def test_where_no_chip_is_nobody_is_asked(machine: Machine, untouched: tuple[str, int]) -> None:
    assert machine.detect({}, untouched) == ["no TPU chip"]
