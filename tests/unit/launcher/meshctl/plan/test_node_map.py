"""The map of a job that runs: a tile for every node, found by its name, with its state as a class."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml

from launcher.meshctl.plan.node_map import ShownNode, render_node_map
from launcher.meshctl.plan.svg import STYLE
from tests.support.placement import samples

SVG = "{http://www.w3.org/2000/svg}"
AXES = {"axes": ("pp", "dp"), "shape": (2, 2)}


def groups(text: str) -> dict[str, xml.Element]:
    """Node -> its tile."""
    return {group.get("data-node", ""): group for group in xml.fromstring(text).iter(f"{SVG}g") if group.get("class")}


def test_every_node_is_found_by_its_name_with_its_state_as_a_class() -> None:
    nodes = [
        ShownNode(id="h0", path=("l0",), ranks=(0, 1), line="step 7"),
        ShownNode(id="h1", path=("l0",), state="lost", note="since round 2"),
        ShownNode(id="h2", path=("l1",), ranks=(2, 3), state="draining"),
        ShownNode(id="h3"),
    ]
    found = groups(render_node_map(nodes, levels=("leaf",), **AXES))
    assert {name: group.get("class") for name, group in found.items()} == {
        "h0": "node",
        "h1": "node is-lost",
        "h2": "node is-draining",
        "h3": "node",
    }
    assert found["h1"].findtext(f"{SVG}title") == "h1; leaf l0; lost: since round 2"
    assert "step 7" in [text.text for text in found["h0"].iter(f"{SVG}text")]
    assert [text.text for text in found["h1"].iter(f"{SVG}text")][:2] == ["h1", "lost"]
    assert found["h1"].find(f"{SVG}path[@class='cross']") is not None


def test_every_mark_is_in_the_legend_and_in_the_style() -> None:
    for state, meaning in (("lost", "lost"), ("moved", "took over"), ("new", "new"), ("failed", "failed")):
        text = render_node_map([ShownNode(id="a", state=state)])
        assert re.search(f'class="mark {state}".*>{meaning}', text)
        assert f".is-{state} > .tile" in STYLE


def test_names_and_states_are_no_markup() -> None:
    text = render_node_map(
        [ShownNode(id=samples.HOSTILE, state='"><b>', note=samples.HOSTILE, line="<b>")], title="<b>"
    )
    (name,) = groups(text)
    assert name == samples.HOSTILE
    assert {element.tag.removeprefix(SVG) for element in xml.fromstring(text).iter()} == {
        "svg", "g", "rect", "text", "title",
    }  # fmt: skip


def test_ranks_of_another_mesh_and_a_job_without_nodes_are_no_error() -> None:
    late = ShownNode(id="h0", ranks=(0, 9))
    assert "rank 0" in (groups(render_node_map([late], **AXES))["h0"].findtext(f"{SVG}title") or "")
    assert groups(render_node_map([late], axes=("dp",), shape=(2, 2)))["h0"].get("class") == "node"
    for shape in ((2, 0), (2, -2), (1 << 20, 2)):
        assert groups(render_node_map([late], axes=("pp", "dp"), shape=shape))["h0"].get("class") == "node"
    assert groups(render_node_map([])) == {}


def test_nodes_that_share_a_tile_are_listed() -> None:
    nodes = [ShownNode(id=f"h{index}", path=(f"l{index // 64}",)) for index in range(2048)]
    text = render_node_map(nodes, levels=("leaf",))
    shared = [json.loads(each.get("data-nodes", "")) for each in xml.fromstring(text).iter() if each.get("data-nodes")]
    assert len(shared) == 1024
    assert [name for names in shared for name in names] == [node.id for node in nodes]
