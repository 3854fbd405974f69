"""Pictures and pages of a plan: what is shown, where it stands, in which colours, and that names do no harm."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as xml
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from launcher.extensions.pictures.picture import HUES, STYLE, WIDTH
from launcher.meshctl.plan.changes import Change
from launcher.model.node import Node
from launcher.model.rates import parse_rates
from launcher.model.traffic import parse as parse_traffic
from launcher.placement.limits import Costs
from launcher.placement.planner import plan
from tests.support.placement import samples

SVG = "{http://www.w3.org/2000/svg}"


class Box(NamedTuple):
    """A node or a frame: its tooltip, the kind of its border, its place, its colours and words."""

    tip: str
    kind: str
    left: float
    top: float
    right: float
    bottom: float
    colours: list[str]
    words: list[str]


def list_boxes(text: str) -> list[Box]:
    """All nodes and frames, in the order of the file; raises unless it is well-formed."""
    found: list[Box] = []

    def look(element: xml.Element, x: float, y: float) -> None:
        move = re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
        x, y = (x + float(move[1]), y + float(move[2])) if move else (x, y)
        for rect in element.findall(f"{SVG}rect"):
            if element.find(f"{SVG}title") is not None and re.match("node|frame", rect.get("class", "")):
                width, height = float(rect.get("width", "")), float(rect.get("height", ""))
                fills = [each.get("fill", "") for each in element.iter(f"{SVG}rect") if each.get("fill")]
                words = [each.text or "" for each in element.iter(f"{SVG}text")]
                tip = element.findtext(f"{SVG}title", "")
                found.append(Box(tip, rect.get("class", ""), x, y, x + width, y + height, fills, words))
        for inner in element:
            look(inner, x, y)

    look(xml.fromstring(text), 0, 0)
    return found


def list_nodes(text: str) -> dict[str, Box]:
    """Name -> box."""
    return {box.tip.partition("; ")[0]: box for box in list_boxes(text) if box.kind.startswith("node")}


def list_words(text: str) -> list[str]:
    return [each.text or "" for each in xml.fromstring(text).iter(f"{SVG}text")]


def test_the_head_says_world_cost_and_spares_and_every_node_has_its_place() -> None:
    nodes = list_nodes(samples.lost_one().svg())
    assert len(nodes) == 31
    assert nodes["h15"].tip == "h15; l1; pp 2 · dp 0; 112-119"
    assert nodes["h15"].words == ["h15", "pp 2 · dp 0", "112-119"]
    assert nodes["h15"].colours == nodes["h1"].colours == [HUES[0]]
    assert nodes["h16"].colours == [HUES[1]]
    assert (nodes["h31"].kind, nodes["h31"].words, nodes["h31"].colours) == ("node spare", ["h31", "spare"], [])
    words = list_words(samples.lost_one().svg())
    assert words[:2] == ["mesh pp=4, dp=7, tp=8: 224 ranks on 28 nodes", "J 1,552, lower bound 1,008.5; 3 spares"]
    assert words[2:11] == ["dp 0", "1", "2", "3", "4", "5", "6", "spare", "leaf l0"]


def test_a_change_is_told_and_marked() -> None:
    text = samples.changed().svg()
    nodes = list_nodes(text)
    for lost in ("h3", "h9"):
        assert (nodes[lost].kind, nodes[lost].words) == ("node lost", [lost, "lost"])
    assert text.count('class="cross"') == 3  # one in the legend
    assert (nodes["h7"].kind, nodes["h7"].words[2]) == ("node changed", "24-31 from h3")
    assert (nodes["h40"].kind, nodes["h40"].words) == ("node spare", ["h40", "spare (new)"])
    words = list_words(text)
    assert "h3, h9 are lost; h40 joins; 16 of 224 ranks move: 8 from h3 to h7, 8 from h9 to h15" in words
    assert {"spare", "lost", "new, or has ranks of another node"} <= set(words)


def test_a_node_of_two_replicas_has_two_bands_and_thousands_have_no_words() -> None:
    node = list_nodes(samples.two_groups_a_node().svg())["h1"]
    assert node.colours == [HUES[2], HUES[3]]
    assert "pp 0 · dp 2-3" in node.words
    text = samples.too_many().svg()
    nodes = list_nodes(text)
    assert len(nodes) == 4096
    assert not any(box.words for box in nodes.values())
    assert nodes["h1"].tip == "h1; p0/l0; pp 0 · dp 1; 8-15"


@pytest.mark.parametrize(
    ("mesh", "shape", "first", "colours"),
    [
        ("pp=2,dp=*,tp=8", (2, 4, 8), "dp 0", [HUES[1]]),
        ("dp=4,pp=*,tp=8", (4, 2, 8), "pp 0", [HUES[1]]),  # of the elastic axis, whatever its name
        ("pp=2,FSDP=4,tp=8", (2, 4, 8), "FSDP 0", [HUES[1]]),
        ("a=1,b=2,c=32", (1, 2, 32), "b 0", [HUES[0]]),
        ("tp=64", (64,), "tp 0", list(HUES)),
        ("tp=1", (1,), "tp 0", []),
    ],
)
def test_the_axis_whose_places_are_the_colours(mesh: str, shape: Sequence[int], first: str, colours: list[str]) -> None:
    text = samples.filled(samples.hosts(1, 1, 8), mesh, shape).svg()
    assert first in list_words(text)
    assert list_nodes(text)["h1"].colours == colours


def test_long_sentences_are_wrapped_and_what_is_too_wide_widens_the_sheet() -> None:
    case = samples.small()
    root = xml.fromstring(case._replace(change=Change(nodes=tuple(case.nodes), sentence="word " * 90)).svg())
    lines = next(group for group in root.iter(f"{SVG}g") if (group.findtext(f"{SVG}text") or "").startswith("word"))
    places = [group.get("transform") for group in lines.findall(f"{SVG}g")]
    assert len(places) >= 2
    assert places == [f"translate(0 {15.6 * (index + 1):g})" for index in range(len(places))]
    levels = tuple(f"level{depth}" for depth in range(90))
    nodes = [Node(id=f"h{index}", slot_count=1, path=("a",) * 90) for index in range(3)]
    text = samples.filled(nodes, "dp=*", (3,), levels).svg()
    width = float(xml.fromstring(text).get("width", ""))
    assert all(box.right < width for box in list_boxes(text))
    assert len([box for box in list_boxes(text) if box.kind == "frame"]) == 6  # the outermost levels


@pytest.mark.parametrize("case", [samples.changed, samples.hostile])
def test_the_order_of_the_nodes_does_not_matter(case: Callable[[], samples.Case]) -> None:
    one = case()
    nodes = one.change.nodes
    other = one._replace(
        change=replace(one.change, nodes=(*nodes[5:], *reversed(nodes[:5]))),
        plan=replace(one.plan, ranks=dict(sorted(one.plan.ranks.items(), reverse=True))),
    )
    assert one.svg() == other.svg()


def test_names_are_names_and_no_markup() -> None:
    case = samples.hostile()
    root = xml.fromstring(case.svg())  # raises unless it is well-formed, control characters included
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "g", "rect", "text", "title", "path", "style"}
    assert any(tip.startswith(f"{samples.HOSTILE};") for tip in (box.tip for box in list_boxes(case.svg())))
    page = case.html()
    assert "<script" not in page
    assert "<b>" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page


def test_nodes_of_unknown_locality_stand_together_in_a_dashed_frame() -> None:
    paths = [("p0", "l0"), ("p0", "l0"), ("p0", None), (None, None), (None, None), ("p1", "l0"), ("p1", "l0")]
    nodes = [Node(id=f"h{index}", slot_count=1, path=path) for index, path in enumerate(paths)]
    text = samples.filled(nodes, "dp=*", (7,), ("pod", "leaf")).svg()
    frames = [(box.tip, box.kind) for box in list_boxes(text) if box.kind.startswith("frame")]
    assert frames == [
        ("pod p0, 3 nodes", "frame"),
        ("leaf l0, 2 nodes", "frame"),
        ("leaf unknown, 1 node", "frame unknown"),
        ("pod p1, 2 nodes", "frame"),
        ("leaf l0, 2 nodes", "frame"),
        ("pod unknown, 2 nodes", "frame unknown"),
        ("leaf unknown, 2 nodes", "frame unknown"),
    ]
    assert re.search(r"\.unknown { .*stroke-dasharray", STYLE)


def is_apart(one: Box, other: Box) -> bool:
    return one.right <= other.left or other.right <= one.left or one.bottom <= other.top or other.bottom <= one.top


def is_inside(one: Box, other: Box) -> bool:
    return other.left < one.left < one.right < other.right and other.top < one.top < one.bottom < other.bottom


@pytest.mark.parametrize("case", [each for each in samples.ALL if each is not samples.too_many])
def test_boxes_stand_apart_inside_their_frames_and_the_sheet(case: Callable[[], samples.Case]) -> None:
    one = case()
    text = one.svg()
    root = xml.fromstring(text)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert width == WIDTH
    boxes = list_boxes(text)
    nodes = [box for box in boxes if box.kind.startswith("node")]
    frames = [box for box in boxes if box.kind.startswith("frame")]
    assert all(is_apart(*pair) for pair in itertools.combinations(nodes, 2))
    assert all(is_apart(a, b) or is_inside(b, a) for a, b in itertools.combinations(frames, 2))
    for node in nodes:
        assert 0 < node.left < node.right < width
        assert 0 < node.top < node.bottom < height
        around = [frame for frame in frames if not is_apart(frame, node)]
        assert len(around) == len(one.limits.levels)
        assert all(is_inside(node, frame) for frame in around)


# The page.


def test_a_page_is_the_picture_and_tables_and_needs_nothing_besides_itself() -> None:
    case = samples.lost_one()
    page = case.html()
    assert case.svg() in page
    outside = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|src=|href=|@import|url\(|<script", outside)
    assert "<tr><td>h31<td>l3<td>spare" in page
    assert "<tr><td>share of J<td>" in page
    assert "Time" not in page


def test_a_page_tells_a_change_and_compares_orders_and_times() -> None:
    case = samples.changed()
    page = case.html()
    assert "<tr><td>h3<td>l0<td>lost" in page
    assert "<tr><td>h7<td>l0<td>24-31 from h3" in page
    assert "<tr><td>join order<td>7,336<td>95.5 % more" in page
    case = samples.filled(samples.hosts(1, 2, 2, slot_count=1), "dp=*", (4,))
    costs = Costs(traffic=parse_traffic("dp=1MB", case.mesh), rates=parse_rates("host=40Mbit,leaf:l0=20Mbit"))
    page = case._replace(plan=plan(case.nodes, case.mesh, case.limits, costs, None), costs=costs).html()
    assert "<h2>Time: 0.4 s for a step&#x27;s communication" in page
    assert "<tr><td>dp<td>0.4 s<td>leaf l0&#x27;s uplink: 1 MB at 20Mbit" in page
