"""--devices and --visible-env: what they mean together, and what is refused before anything is looked for."""

from __future__ import annotations

import pytest

from launcher import cli
from launcher.config.options.worker_options import DeviceRequest
from launcher.model.errors import UsageError


def request(*words: str) -> DeviceRequest | None:
    return cli.parse([*words, "train.py"], {}).devices


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ([], None),
        (["--devices=nvidia"], DeviceRequest("nvidia")),
        (["--devices", "amd:4"], DeviceRequest("amd", 4)),
        (["--devices=tpu:4"], DeviceRequest("tpu", 4)),
        (["--devices=tpu:v5e-16"], DeviceRequest("tpu", shape="v5e-16")),
        (["--devices=my-chip:2", "--visible-env=CHIPS"], DeviceRequest("my-chip", 2, variable="CHIPS")),
        (["--devices=cpu:2", "--nproc-per-node=cpu"], DeviceRequest("cpu", 2)),
        (["--devices=amd", "--nproc-per-node=gpu"], DeviceRequest("amd")),
        (["--devices=amd", "--nproc-per-node=9"], DeviceRequest("amd")),
    ],
)
def test_a_kind_may_have_a_number_or_a_type_and_a_variable(words: list[str], meaning: DeviceRequest | None) -> None:
    assert request(*words) == meaning
    assert meaning is None or str(meaning) in " ".join(words).replace("=", " ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--devices=4"], "--devices 4 is no kind of device"),
        (["--devices=nvidia:"], "--devices nvidia: has no number of devices behind its colon"),
        (["--devices=nvidia:0"], "--devices nvidia:0 has no number of devices behind its colon"),
        (["--devices=nvidia:all"], "--devices nvidia:all has no number of devices behind its colon"),
        (["--devices=nvidia:123456"], "--devices nvidia:123456: more than 10000 devices of one machine"),
        (["--visible-env=FOO"], "--visible-env FOO: of which devices?"),
        (["--devices=foo", "--visible-env=FOO"], "--devices foo and --visible-env FOO: how many are there?"),
        (["--devices=foo:1", "--visible-env=F-O"], "--visible-env F-O is no name of a variable"),
        (["--devices=foo", "--nproc-per-node=npu"], "--devices foo and --nproc-per-node npu both say what to count"),
        (["--devices=amd", "--nproc-per-node=cpu"], "--devices amd and --nproc-per-node cpu exclude each other"),
        (["--devices=cpu", "--nproc-per-node=gpu"], "--devices cpu and --nproc-per-node gpu exclude each other"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        request(*words)
    assert str(caught.value) == sentence
    assert caught.value.hint or "more than" in sentence
