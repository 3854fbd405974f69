"""Generators: which cluster a short form stands for, and which form is none."""

from __future__ import annotations

import pytest

from launcher.meshctl.plan.generate import generate, is_form
from launcher.model.errors import UsageError


@pytest.mark.parametrize(
    ("text", "levels", "count", "devices", "last"),
    [
        ("dgx:4x8x8", ("leaf",), 32, 8, ("l3",)),
        ("dgx:2x4x8x8", ("pod", "leaf"), 64, 8, ("p1", "l3")),
        ("dgx:2x2x2x2x4", ("zone", "pod", "leaf"), 16, 4, ("z1", "p1", "l1")),
        ("dgx:3x8", (), 3, 8, ()),
        ("nvl72:8", ("nvl",), 144, 4, ("n7",)),
        ("nvl72:2x3", ("pod", "nvl"), 108, 4, ("p1", "n2")),
        ("tpu:v5e-16:6", ("slice",), 24, 4, ("s5",)),
        ("tpu:v6e-256:1", ("slice",), 64, 4, ("s0",)),
        ("tpu:v4-16:3", ("slice",), 6, 4, ("s2",)),
    ],
)
def test_a_generator_makes_what_it_says(
    text: str, levels: tuple[str, ...], count: int, devices: int, last: tuple[str, ...]
) -> None:
    made = generate(text)
    assert is_form(text)
    assert made.levels == levels
    by_id = {node.id: node for node in made.nodes}
    assert set(by_id) == {f"h{at}" for at in range(count)}
    assert {node.slot_count for node in made.nodes} == {devices}
    assert by_id[f"h{count - 1}"].path == last
    assert [node.order for node in made.nodes] == list(range(count))


def test_generated_nodes_are_shuffled_and_their_addresses_sort_badly() -> None:
    nodes = generate("dgx:4x8x8").nodes
    along_the_tree = sorted(nodes, key=lambda node: int(node.id[1:]))
    assert [node.id for node in nodes][:4] == ["h29", "h18", "h6", "h2"]  # the same on every machine
    assert along_the_tree[9].address == "10.0.0.10"
    assert sorted(nodes, key=lambda node: node.address)[1].id == "h9"
    assert generate("dgx:1x300x8").nodes != generate("dgx:300x1x8").nodes
    assert len({node.address for node in generate("dgx:8x32x16x8").nodes}) == 4096


def test_generated_slices_are_used_as_a_whole_in_the_order_of_their_hosts() -> None:
    made = generate("tpu:v5e-32:2")
    assert made.options == {"whole": "slice:8"}
    assert sorted((node.path, node.index) for node in made.nodes)[7] == (("s0",), 7)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dgx:8", "cluster 'dgx:8' is not of the form dgx:[[[ZONESx]PODSx]LEAVESx]NODESxGPUS"),
        ("dgx:4xax8", "cluster 'dgx:4xax8' is not of the form"),
        ("dgx:4x0x8", "cluster 'dgx:4x0x8' has a number outside 1"),
        ("dgx:4x-1x8", "cluster 'dgx:4x-1x8' is not of the form"),
        ("dgx:1000x1000x8", "dgx:1000x1000x8 has 1000000 nodes; the limit is 65536"),
        ("dgx:4x4096", "dgx:4x4096: 4096 devices per node; the limit is 1024"),
        ("nvl72:", "cluster 'nvl72:' is not of the form nvl72:[PODSx]RACKS"),
        ("tpu:v5e-17:2", "cluster 'tpu:v5e-17:2': 'v5e-17': 17 chips make no v5e slice"),
        ("tpu:v5e-16", "cluster 'tpu:v5e-16' is not of the form tpu:TYPE:SLICES"),
        ("tpu:v6e-8:2", "cluster 'tpu:v6e-8:2': v6e-8: 1 host of 8 chips, 2x4"),
    ],
)
def test_a_generator_refuses_what_it_cannot_make(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        generate(text)
    assert str(caught.value).startswith(sentence)
