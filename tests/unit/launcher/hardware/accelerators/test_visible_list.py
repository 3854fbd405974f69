"""Values of CUDA_VISIBLE_DEVICES and its relatives that nobody can mean, and what to do about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.options.readers import DeviceRequest
from launcher.hardware.accelerators import visible_list
from launcher.hardware.accelerators.nvidia import Detector as Nvidia
from launcher.hardware.accelerators.visible_list import find_mistake, hides_all
from launcher.model import odd_text
from launcher.model.errors import UsageError
from tests.support.hardware.devices import UUIDS, FakeNvml, write
from tests.support.sections import assign_devices

CUDA = "CUDA_VISIBLE_DEVICES"
LIST_FOO = "list numbers separated by commas, as in FOO=0,1, or unset it to show every device"
FULL_ID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


def hint_of(value: str, variable: str = CUDA) -> str:
    """The hint for a value that is refused; "" for one that is accepted."""
    mistake = find_mistake(variable, value)
    return mistake.hint if mistake else ""


@pytest.mark.parametrize(
    "value",
    ["0,1,2,3", " 0, 1 ", "0,1,", "+1", "00,01", f"{FULL_ID}, GPU-1f", f"MIG-{FULL_ID}/1/0",
     "MIG-8932f937-d72c-4106-c12f-20bd9faed9f6,MIG-1", "0,1,-1", "0,-1,1", "-1,0"],
)  # fmt: skip
def test_numbers_and_ids_are_accepted(value: str) -> None:
    assert find_mistake(CUDA, value) is None


@pytest.mark.parametrize(
    ("value", "is_hiding"),
    [
        *((value, True) for value in ("", " ", "-1", "NoDevFiles", "none", "void", "10000", "-1,0")),
        *((value, False) for value in ("0", "0,-1", "all", "NODEVFILES", "None", "-2", "GPU-1f", "x")),
    ],
)
def test_only_words_of_schedulers_and_runtimes_hide_all_on_purpose(value: str, is_hiding: bool) -> None:
    assert hides_all(value) is is_hiding
    assert not is_hiding or find_mistake(CUDA, value) is None


LISTED = f"list numbers separated by commas, as in {CUDA}=0,1, or unset it to show every GPU"
HIDDEN = f"leave the value of {CUDA} empty to hide every GPU, or unset it to show all"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        *((value, LISTED) for value in ("0-3", "0\uff0c1", "0,,1", '""', "[]", ",", "A100", "-2", "0x1")),
        *((value, LISTED) for value in ("1.5", "GPU-", "GPU-xyz", FULL_ID + "0", f"MIG-{FULL_ID}", "0,NoDevFiles")),
        *((value, f"unset {CUDA}: without it every GPU is visible") for value in ("all", "ALL", '"all"', "auto", "*")),
        *((value, HIDDEN) for value in ("None", "null", "cpu")),
        *((text, odd_text.explain(text)) for text in ('"0,1"', "0,1\r", "$GPUS", "0,$LAST", "{{ gpus }}", "<gpu ids>")),
        ("0,1,1", "list each device once"),
        *(
            (value, "list all by number, or all by id")
            for value in (f"0,{FULL_ID}", f"{FULL_ID},0", f"{FULL_ID},MIG-1f")
        ),
    ],
)
def test_a_hint_fits_the_value(value: str, hint: str) -> None:
    assert hint_of(value) == hint


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("0-3", f"{CUDA}=0-3: '0-3' is not the number or the id of a GPU"),
        ("0,,1", f"{CUDA}=0,,1: an entry is empty"),
        ("0,0", f"{CUDA}=0,0 names 0 twice"),
        ("0\r", f"{CUDA}='0\\r': '0\\r' is not the number or the id of a GPU"),
        (f"0,{FULL_ID}", f"{CUDA}=0,{FULL_ID}: {FULL_ID} is of another kind than the entries before it"),
    ],
)  # fmt: skip
def test_the_sentence_says_what_was_read(value: str, sentence: str) -> None:
    mistake = find_mistake(CUDA, value)
    assert mistake is not None
    assert mistake.mistake == sentence


@pytest.mark.parametrize(
    ("variable", "value", "hint"),
    [
        *(("HIP_VISIBLE_DEVICES", value, "list numbers") for value in ("0, 1", "0-1")),
        ("HIP_VISIBLE_DEVICES", "all", "unset HIP_VISIBLE_DEVICES: without it every GPU is visible"),
        ("HIP_VISIBLE_DEVICES", "1,1", "list each device once"),
        *(("ROCR_VISIBLE_DEVICES", value, "list numbers") for value in ("hip:0", "0;1")),
        ("ROCR_VISIBLE_DEVICES", "0x1,gpu-1f", ""),
        *(("ZE_AFFINITY_MASK", value, "list numbers") for value in ("xpu:0", "0-1", "0.0;0.1")),
        *(("ZE_AFFINITY_MASK", value, "") for value in ("0,1,1", "default")),
        ("TPU_VISIBLE_CHIPS", "0-3", "list numbers"),
        ("TPU_VISIBLE_CHIPS", "all", "unset TPU_VISIBLE_CHIPS: without it every TPU chip is visible"),
        ("TPU_VISIBLE_DEVICES", "$CHIPS", "let a shell replace $CHIPS"),
        ("PATH", "all", ""),
    ],
)
def test_every_variable_has_its_form(variable: str, value: str, hint: str) -> None:
    found = hint_of(value, variable)
    assert found.startswith(hint)
    assert bool(found) == bool(hint)


@pytest.mark.parametrize(
    "value", ["\r" * 9999, "x" * 9999, "0," * 5000 + "0", "9" * 9999 + ",x", "\udcff", "0,\udcff\n"]
)
def test_a_value_of_any_length_and_bytes_has_a_short_sentence(value: str) -> None:
    mistake = find_mistake(CUDA, value)
    assert mistake is not None
    for text in (mistake.mistake, mistake.hint):
        assert text.isprintable()
        assert len(text) < 1000


@given(st.text(alphabet="0123-,;: .GPUMIGcudabefx/$\r\"'", max_size=12))
def test_any_text_is_accepted_or_has_a_sentence_and_a_hint_on_one_line(value: str) -> None:
    mistake = find_mistake(CUDA, value)
    if mistake is not None:
        assert mistake.mistake.startswith(CUDA)
        assert mistake.mistake.isprintable()
        assert mistake.hint.isprintable()
        assert mistake.hint.split()[0] in ("unset", "leave", "list", "let", "write", "give", "define", "render")


# With devices, and without


@pytest.mark.parametrize("value", ["0-3", "all", "$GPUS", "0,0"])
@pytest.mark.parametrize("worker_count", [None, 2])
def test_a_list_that_cannot_be_meant_is_refused_without_gpus_too(tmp_path: Path, value: str, worker_count: Any) -> None:
    write(tmp_path / "dev/nvidiactl")
    for detectors in ([Nvidia(root=str(tmp_path), nvml=FakeNvml())], [Nvidia(root=str(tmp_path / "none"))], []):
        with pytest.raises(UsageError) as caught:
            assign_devices(worker_count, None, {CUDA: value}, accelerators=detectors)
        assert str(caught.value).startswith(f"{CUDA}=")
        assert caught.value.hint == hint_of(value)
    # Who asks for the CPU gets it.
    assert assign_devices("cpu", None, {CUDA: value})[0][0].devices[0].kind == "cpu"


@pytest.mark.parametrize("variable", sorted(visible_list._FORMS))
@pytest.mark.parametrize("value", ["all", "0;1"])
def test_a_machine_without_devices_reads_the_variables_of_every_kind(variable: str, value: str) -> None:
    for worker_count in (None, 2):
        with pytest.raises(UsageError, match=f"^{variable}=") as caught:
            assign_devices(worker_count, None, {variable: value}, accelerators=[])
        assert caught.value.hint
    assert assign_devices(None, None, {variable: "0,1"}, accelerators=[])[0]


def test_a_list_that_leaves_fewer_devices_than_it_names_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "dev/nvidiactl")
    for value in ("0,1,2,9", "3,GPU-ff", f"{UUIDS[0][:8]},GPU-ff", "GPU-aa"):
        for worker_count in (None, 2):
            gpus = [Nvidia(root=str(tmp_path), nvml=FakeNvml())]
            with pytest.raises(UsageError, match=f"^{CUDA}="):
                assign_devices(worker_count, None, {CUDA: value}, accelerators=gpus)
    # One that does not answer is awaited where GPUs are counted, and goes missing where a number is given.
    lost = [Nvidia(root=str(tmp_path), nvml=FakeNvml(lost=[3]))]
    assert len(assign_devices(3, None, {CUDA: "0,1,2,3"}, accelerators=lost)[0]) == 3
    with pytest.raises(UsageError, match=r"^ZE_AFFINITY_MASK=0;1: "):
        assign_devices("xpu", None, {"ZE_AFFINITY_MASK": "0;1"})


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("0,1", ""), ("foo0, foo1", ""), ("a:0,a:1", ""), ("uuid-1.2/x,2", ""), ("all,none", ""),
        ("[0,1]", LIST_FOO), ("$A,$B", odd_text.explain("$A,$B")),
        ("0;1,2", LIST_FOO),
    ],
)  # fmt: skip
def test_the_variable_of_devices_that_are_declared_has_whole_entries(value: str, hint: str) -> None:
    request = DeviceRequest("foo", 2, variable="FOO")
    if not hint:
        assert len(assign_devices(None, None, {"FOO": value}, request=request)[0]) == 2
        return
    with pytest.raises(UsageError, match=r"^FOO=") as caught:
        assign_devices(None, None, {"FOO": value}, request=request)
    assert caught.value.hint == hint
