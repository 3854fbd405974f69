"""Names of TPU types: which count chips and which count cores, and what is said of those that name nothing."""

from __future__ import annotations

import pytest

from launcher.hardware import slice_types
from launcher.hardware.slice_types import MODELS, parse
from launcher.model.errors import UsageError


@pytest.mark.parametrize(
    ("name", "chips", "hosts", "each", "topology"),
    [
        # By TensorCores, two to a chip.
        ("v2-8", 4, 1, 4, "2x2"),
        ("v2-32", 16, 4, 4, "4x4"),
        ("v3-64", 32, 8, 4, "4x8"),
        ("v3-128", 64, 16, 4, "8x8"),
        ("v4-8", 4, 1, 4, "2x2x1"),
        ("v4-16", 8, 2, 4, "2x2x2"),
        ("v4-256", 128, 32, 4, "4x4x8"),
        ("v5p-8", 4, 1, 4, "2x2x1"),
        ("tpu7x-2", 1, 1, 1, "1x1x1"),
        ("tpu7x-16", 8, 2, 4, "2x2x2"),
        # By chips.
        ("v5litepod-1", 1, 1, 1, "1x1"),
        ("v5litepod-4", 4, 1, 4, "2x2"),
        ("v5litepod-16", 16, 4, 4, "4x4"),
        ("v5e-16", 16, 4, 4, "4x4"),
        ("v6e-256", 256, 64, 4, "16x16"),
        # By topology, which counts chips in all of them.
        ("v4-2x2x2", 8, 2, 4, "2x2x2"),
        ("v6e-4x8", 32, 8, 4, "4x8"),
        # 256 chips are offered as 4x4x16 and as 4x8x8.
        ("v4-512", 256, 64, 4, None),
        ("v4-4x8x8", 256, 64, 4, "4x8x8"),
    ],
)
def test_a_type_is_so_many_hosts_with_chips(name: str, chips: int, hosts: int, each: int, topology: str | None) -> None:
    found = parse(name)
    assert (found.chips, found.hosts, found.chips_per_host) == (chips, hosts, each)
    assert (slice_types.format_grid(found.topology) if found.topology else None) == topology


def test_eight_chips_are_one_machine_or_two_and_every_suggestion_can_be_read() -> None:
    assert parse("v6e-8").description == "v6e-8: 1 host of 8 chips, 2x4"
    assert parse("v6e-8", host_chips=4).description == "v6e-8: 2 hosts of 4 chips, 2x4"
    assert parse("v6e-1", host_chips=8).hosts == parse("v6e-4", host_chips=1).hosts == 1
    for model in MODELS:
        with pytest.raises(UsageError) as raised:
            parse(f"{model.name}-5")
        assert raised.value.hint
        for name in raised.value.hint.removeprefix("use one of ").split(", "):
            assert parse(name).model is model


@pytest.mark.parametrize(
    ("name", "sentence", "hint"),
    [
        ("v4-4", "'v4-4': 4 TensorCores, 2 to a chip, make no v4 slice", "use one of v4-8, v4-16, "),
        ("v5p-9", "'v5p-9': 9 TensorCores, 2 to a chip, make no v5p slice", "use one of v5p-8, "),
        ("v6e-12", "'v6e-12': 12 chips make no v6e slice", "v6e-8, v6e-16"),
        ("v4-2x3", "'v4-2x3': 2x3 is not a topology of v4", "use one of v4-8"),
        ("v5e", "'v5e' has no number of chips", "write, for example, v5litepod-16"),
        ("v4-many", "'v4-many': 'many' is neither a number of TensorCores nor a topology", "write, for example, v4-32"),
        ("v4-0", "'v4-0': '0' is neither a number of TensorCores nor a topology", "write, for example, v4-32"),
        ("v4-9999999", "'v4-9999999': '9999999' is neither a number of TensorCores nor a topology", "v4-32"),
        ("V5E-16", "'V5E-16' does not begin with the name of a known TPU", "use one of v2-32, v3-32, v4-32, v5p-32, "),
    ],
)
def test_a_name_that_means_nothing_is_told_what_may_have_been_meant(name: str, sentence: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(name)
    assert str(raised.value) == sentence
    assert raised.value.hint
    assert hint in raised.value.hint
