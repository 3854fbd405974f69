"""Pictures of a plan: what is shown, where it stands, in which colours, and that names do no harm."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as xml
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from launcher.meshctl.plan.flows import summarize_traffic
from launcher.meshctl.plan.node_map import build_map, choose_axes, draw_map
from launcher.meshctl.plan.svg import (
    DARK,
    HUES,
    LIGHT,
    STYLE,
    TEXT_COLOUR,
    Palette,
    choose_colour,
    escape_text,
    format_ranges,
    measure_width,
    render_sheet,
    shorten,
    wrap,
)
from launcher.model.mesh import parse
from launcher.model.node import Node
from launcher.model.traffic import Communicator
from launcher.placement.limits import Costs
from tests.support.placement import samples

SVG = "{http://www.w3.org/2000/svg}"


def tips(text: str) -> list[str]:
    """Of all tiles."""
    found = [
        group.findtext(f"{SVG}title", "")
        for group in xml.fromstring(text).iter(f"{SVG}g")
        if any("tile" in rect.get("class", "").split() for rect in group.findall(f"{SVG}rect"))
    ]
    assert found
    return found


def test_every_node_has_a_tile_that_tells_its_place_and_ranks() -> None:
    told = tips(samples.lost_one().svg())
    assert len(told) == 31
    assert "h15; leaf l1; ranks 112\u2013119; pp 2, dp 0" in told
    assert "h31; leaf l3; spare" in told


def test_the_title_says_world_and_cost_and_bound() -> None:
    text = samples.lost_one().svg()
    assert "mesh pp=4, dp=7, tp=8: 224 ranks on 28 of 31 nodes" in text
    assert "J 1,552 · lower bound 1,008.5 · 3 spares · 8 ranks moved" in text


def test_a_change_is_drawn_before_and_after_with_every_node_in_its_place() -> None:
    text = samples.changed().svg()
    maps = list_boxes(text)
    tiles = [(tip.partition(";")[0], place) for tip, kind, place in maps if kind.startswith("tile")]
    before, after = tiles[:33], tiles[33:66]
    assert before == after  # the same nodes at the same places
    told = tips(text)
    assert "h3; leaf l0; ranks 24\u201331; pp 0, dp 3; lost" in told[:33]
    assert "h40; leaf l3; new: not there yet" in told[:33]
    (lost,) = [tip for tip in told[33:66] if tip.startswith("h3;")]
    assert lost == "h3; leaf l0; lost: had ranks 24\u201331"
    (taken,) = [tip for tip in told[33:66] if tip.startswith("h7;")]
    assert taken.endswith("took over ranks of another node: 8 ranks from h3")
    assert {tip for tip in told[33:66] if tip.startswith(("h40;", "h23;"))} == {
        "h40; leaf l3; new",
        "h23; leaf l2; spare; had ranks 184\u2013191",
    }


def test_the_legend_tells_the_marks_and_the_heading_what_has_changed() -> None:
    words = [each.text for each in xml.fromstring(samples.changed().svg()).iter(f"{SVG}text")]
    for said in ("spare", "lost", "took over ranks of another node", "new"):
        assert said in words
    assert "h3, h9 are lost; h40 joins; 16 of 224 ranks move: 8 from h3 to h7, 8 from h9 to h15" in words
    assert "J is traffic times level costs: 60 % dp leaving a host, 27 % pp leaving a leaf; tp leaves no host" in words
    assert "Before: pp=4, dp=8, tp=8: 256 ranks on 32 nodes, J 4,288" in words


def test_equal_coordinates_have_equal_colours_before_and_after() -> None:
    fills = re.findall(r'<title>h6; [^<]*dp 6</title><rect [^>]*fill="(#\w+)"', samples.changed().svg())
    assert len(fills) >= 2
    assert len(set(fills[:2])) == 1


def test_other_orders_are_drawn_beside_each_other() -> None:
    case = samples.changed()
    words = [each.text for each in xml.fromstring(case.svg()).iter(f"{SVG}text")]
    assert [order.name for order in case.orders if order.name not in words] == []
    assert len(tips(case.svg())) == 2 * 33 + 4 * 31
    assert case.svg().count('transform="translate(552 0)"') == 2  # two and two


def test_a_node_with_two_groups_has_a_band_for_each() -> None:
    text = samples.two_groups_a_node().svg()
    group = next(each for each in xml.fromstring(text).iter(f"{SVG}g") if each.findtext(f"{SVG}title", "")[:3] == "h1;")
    fills = [rect.get("fill") for rect in group.findall(f"{SVG}rect")]
    assert fills == [choose_colour(0, 2, 8), choose_colour(0, 3, 8), None]
    assert "pp 0 · dp 2\u20133" in [each.text for each in group.iter(f"{SVG}text")]


def test_spares_are_hollow() -> None:
    text = samples.lost_one().svg()
    spares = [rect for rect in xml.fromstring(text).iter(f"{SVG}rect") if rect.get("class") == "tile spare"]
    assert len(spares) == 3
    assert re.search(r"\.spare { .*stroke-dasharray", STYLE)
    assert re.findall(r"\.spare { fill: (#\w+)", STYLE) == [LIGHT.paper, DARK.paper]


@pytest.mark.parametrize("case", [samples.lost_one, samples.hostile])
def test_the_order_of_the_nodes_does_not_matter(case: Callable[[], samples.Case]) -> None:
    one = case()
    other = one._replace(
        nodes=[*one.nodes[5:], *reversed(one.nodes[:5])],
        plan=replace(one.plan, ranks=dict(sorted(one.plan.ranks.items(), reverse=True))),
    )
    assert one.svg() == other.svg()


@pytest.mark.parametrize("case", [samples.small, samples.lost_one, samples.racks, samples.lone, samples.hostile])
def test_lengths_have_at_most_two_decimals(case: Callable[[], samples.Case]) -> None:
    root = xml.fromstring(case().svg())
    values = [value for element in root.iter() for value in element.attrib.values() if value[:1] != "#"]
    assert not [value for value in values if re.search(r"\.\d{3}|nan|inf|\de-?\d\d", value)]


def test_names_are_names_and_no_markup() -> None:
    case = samples.hostile()
    root = xml.fromstring(case.svg())  # raises unless it is well-formed, control characters included
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "g", "rect", "text", "title", "path", "style"}
    assert any(tip.startswith(f"{samples.HOSTILE};") for tip in tips(case.svg()))


def test_thousands_of_nodes_share_tiles_and_the_picture_says_so() -> None:
    text = samples.filled(samples.hosts(8, 16, 16), "pp=8,dp=*,tp=8", (8, 256, 8), ("pod", "leaf")).svg()
    told = tips(text)
    assert len(told) == 1024
    assert "a cell stands for up to 2 neighbouring nodes" in text
    assert "h0 … h1; 2 nodes; pod p0, leaf l0; ranks 0\u201315; pp 0, dp 0\u20131" in told


def test_what_is_left_out_is_said() -> None:
    nodes = samples.hosts(4, 100, 2)
    text = samples.filled(nodes, "dp=*,tp=8", (800, 8), ("pod", "leaf")).svg()
    assert "domains of leaf are too many to be drawn" in text
    assert len(tips(text)) == 800


def test_nodes_of_unknown_locality_stand_together_in_a_dashed_frame() -> None:
    paths = [("p0", "l0"), ("p0", "l0"), ("p0", None), (None, None), (None, None), ("p1", "l0"), ("p1", "l0")]
    nodes = [Node(id=f"h{index}", slot_count=1, path=path) for index, path in enumerate(paths)]
    text = samples.filled(nodes, "dp=*", (7,), ("pod", "leaf")).svg()
    assert all("; rank " in tip for tip in tips(text))
    frames = [(tip, kind) for tip, kind, _ in list_boxes(text) if tip.startswith("leaf")]
    assert frames == [
        ("leaf l0: 2 nodes", "frame"),
        ("leaf unknown: 1 node", "frame unknown"),
        ("leaf l0: 2 nodes", "frame"),
        ("leaf unknown: 2 nodes", "frame unknown"),
    ]
    assert text.count('class="frame outer unknown"') == 1  # around the last
    assert re.search(r"\.unknown { stroke-dasharray", STYLE)


class Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float


def list_boxes(text: str) -> list[tuple[str, str, Rect]]:
    """Tooltip, class and place of all frames and tiles."""
    found = []
    for group in xml.fromstring(text).iter(f"{SVG}g"):
        for rect in group.findall(f"{SVG}rect"):
            kind = rect.get("class", "")
            if kind.startswith(("tile", "frame")):
                place = Rect(*(float(rect.get(key, "")) for key in Rect._fields))
                found.append((group.findtext(f"{SVG}title", ""), kind, place))
    return found


def is_apart(one: Rect, other: Rect) -> bool:
    return (
        one.x + one.width <= other.x
        or other.x + other.width <= one.x
        or one.y + one.height <= other.y
        or other.y + other.height <= one.y
    )


@pytest.mark.parametrize("sheet", [(1080, 940), (376, 1400), (90, 300), (4, 300)])
@pytest.mark.parametrize("case", [samples.small, samples.lost_one, samples.racks, samples.hostile, samples.lone])
def test_tiles_stand_apart_and_inside_the_sheet_and_their_frame(
    case: Callable[[], samples.Case], sheet: tuple[int, int]
) -> None:
    one = case()
    block = draw_map(build_map(one.plan, one.nodes, one.mesh, one.limits.levels), *sheet)
    boxes = list_boxes(render_sheet([block], sheet[0], "", 0))
    tiles = [place for _, kind, place in boxes if kind.startswith("tile")]
    assert len({(place.width, place.height) for place in tiles}) == 1
    assert all(is_apart(a, b) for a, b in itertools.combinations(tiles, 2))
    if sheet[0] > 4:  # less than one smallest tile
        assert all(place.width > 0 and place.x + place.width <= sheet[0] for place in tiles)
    around: list[Rect] = []
    for _, kind, place in boxes:
        around = [each for each in around if not is_apart(each, place)]
        if kind.startswith("tile"):
            assert len(around) == len(one.limits.levels)
        for each in around:
            assert each.x < place.x < place.x + place.width < each.x + each.width
            assert each.y < place.y < place.y + place.height < each.y + each.height
        if kind.startswith("frame"):
            around.append(place)


@pytest.mark.parametrize(
    ("mesh", "shape", "hue", "shade"),
    [
        ("pp=2,dp=*,tp=8", (2, 4, 8), 0, 1),
        ("dp=*,pp=2,tp=8", (4, 2, 8), 1, 0),
        ("stage=2,fsdp=*,model=8", (2, 4, 8), 0, 1),
        ("pp=1,dp=*,tp=8", (1, 8, 8), 1, None),
        ("replicas=*,tp=32", (2, 32), 1, 0),
        ("a=2,b=2,c=16", (2, 2, 16), 0, 1),
        ("tp=64", (64,), 0, None),
    ],
)
def test_the_axes_that_are_coloured(mesh: str, shape: Sequence[int], hue: int, shade: int | None) -> None:
    case = samples.filled(samples.hosts(1, 1, 8), mesh, shape)
    assert choose_axes(case.plan, parse(mesh)) == [axis for axis in (hue, shade) if axis is not None]


def test_the_amounts_are_those_of_the_exact_cost() -> None:
    case = samples.lost_one()._replace(costs=Costs(level_costs={"leaf": 2, "host": 0}))
    book = summarize_traffic(*case[:5])
    assert sum(flow.cost for flow in book.flows) == 1552  # 16 hops of dp and 152 of pp leave a leaf
    dp = next(flow for flow in book.flows if flow.communicator.name == "dp")
    assert (dp.crossing_count, dp.group_count) == (16, 32)
    assert [(book.names[arc.low], book.names[arc.high], arc.amount) for arc in dp.arcs] == [
        ("l1", "l2", 160),
        ("l2", "l3", 160),
    ]


def test_an_exchange_is_drawn_between_all_its_domains() -> None:
    expert = Communicator(axes=("ep",), kind="all", weight=12)
    case = samples.filled(samples.hosts(1, 4, 1, slot_count=1), "ep=4", (4,))._replace(costs=Costs(traffic=(expert,)))
    (flow,) = summarize_traffic(*case[:5]).flows
    # Each sends 12 in all, 4 to each other; both directions count.
    assert [arc.amount for arc in flow.arcs] == [8] * 6
    assert flow.leaving == (48, 48)


def luminance(code: str) -> float:
    return float(linear(code) @ [0.2126, 0.7152, 0.0722])


def linear(code: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    parts = np.array([int(code[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_words_and_marks_can_be_read_on_a_light_and_on_a_dark_page(palette: Palette) -> None:
    for ground in (palette.paper.replace("#fff", "#ffffff"), palette.card):
        for words in (palette.text, palette.muted, palette.lost):
            assert contrast(words, ground) >= 4.5
        for mark in (palette.new, palette.arc):
            assert contrast(mark, ground) >= 3
    assert f".alarm {{ fill: {palette.lost}; }}" in STYLE


@pytest.mark.parametrize("hue", range(len(HUES)))
@pytest.mark.parametrize("shade", range(3))
def test_dark_text_can_be_read_on_every_colour(hue: int, shade: int) -> None:
    assert contrast(choose_colour(hue, shade, 3), TEXT_COLOUR) >= 4.5


# How people see who lack one kind of cones: Machado, Oliveira, Fernandes 2009, severity 1, for linear RGB.
SIGHTS = {
    "all cones": np.eye(3),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "no blue": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


@pytest.mark.parametrize("sight", SIGHTS)
def test_the_first_six_hues_differ_whatever_cones_are_lacking(sight: str) -> None:
    # Distances in Oklab, where about 0.02 can just be seen.
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
    to_lab = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    seen = [to_lab @ np.cbrt(cones @ np.clip(SIGHTS[sight] @ linear(choose_colour(hue)), 0, 1)) for hue in range(6)]
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > 0.06


def test_shades_run_from_strong_to_pale() -> None:
    shades = [choose_colour(0, index, 64) for index in range(64)]
    assert shades[0] == HUES[0]
    assert [luminance(each) for each in shades] == sorted(luminance(each) for each in shades)
    assert choose_colour(0) == choose_colour(0, 0, 9) != choose_colour(0, 8, 9)


def test_a_long_name_keeps_its_end() -> None:
    assert shorten("node-rack-0017", 200, 10) == "node-rack-0017"
    short = shorten("ip-10-0-13-241.eu-central-1", 90, 10)
    assert short.startswith("ip")
    assert short.endswith("central-1"[-5:])
    assert measure_width(short, 10) <= 90
    assert shorten("node", 3, 10) == ""


def test_lines_are_no_wider_than_their_room() -> None:
    lines = wrap("a word, " * 9 + "x" * 90, 100, 12)
    assert len(lines) > 4
    assert all(measure_width(line, 12) <= 100 for line in lines)


def test_numbers_are_told_as_runs() -> None:
    assert format_ranges([3, 1, 2, 7]) == "1\u20133, 7"


def test_what_cannot_be_seen_is_replaced() -> None:
    assert escape_text("a\x00\u202eb\ud800 é節") == "a\ufffd\ufffdb\ufffd é節"
