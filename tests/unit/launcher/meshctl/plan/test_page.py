"""The page of a plan: its views, that it needs nothing besides itself, and that names do no harm."""

from __future__ import annotations

import json
import re

from msgspec.structs import replace

from launcher.meshctl.plan import render
from launcher.meshctl.plan.svg import choose_colour
from launcher.model.traffic import Communicator
from launcher.placement.limits import PartTime, StepTime
from tests.support.placement import samples


def test_a_page_needs_nothing_besides_itself() -> None:
    page = samples.lost_one().html().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|src=|href=|@import|url\(", page)


def test_a_page_has_a_view_by_stage_and_one_by_group() -> None:
    views = re.findall(r"<figure.*?</figure>", samples.lost_one().html(), re.DOTALL)
    for view, told, fill in (
        (views[0], "h15; leaf l1; ranks 112\u2013119; pp 2, dp 0", choose_colour(2, 0, 7)),
        (views[1], "h15; leaf l1; ranks 112\u2013119; dp 0, pp 2", choose_colour(0, 2, 4)),
    ):
        assert view.count("<svg ") == 2  # for a window and for a telephone
        assert len(re.findall(f'<title>{told}</title><rect [^>]*fill="{fill}"', view)) == 2
        assert set(re.findall(r'fill="([^"]*)"', view)) <= {"none", *re.findall(r"#[0-9a-f]{6}\b", view)}


def test_a_page_shows_a_change_before_and_after_and_a_view_of_every_order() -> None:
    case = samples.changed()
    page = case.html()
    assert re.findall(r'<figure id="view-\d" aria-label="([^"]*)"', page) == [
        "after, by pp",
        "after, by dp",
        "before",
        "traffic of pp",
        *(order.name for order in case.orders),
    ]
    assert "h3, h9 are lost; h40 joins; 16 of 224 ranks move" in page
    assert page.count('class="node is-lost" data-node="h3"') == 6  # before, and after in two colourings, twice each
    assert "<td>join order</td><td>7,336</td><td>95.5 % more</td>" in page


def test_a_page_has_the_time_by_axis_where_rates_are_known() -> None:
    case = samples.lost_one()
    assert "Time by axis" not in case.html()
    ring = Communicator(axes=("d<p",), kind="ring", weight=2, is_bytes=True)
    part = PartTime(communicator=ring, seconds=0.4, link="leaf l1's uplink", amount=2.0, rate=40_000_000)
    time = StepTime(parts=(part,), seconds=0.4, is_absolute=True)
    page = case._replace(plan=replace(case.plan, step_time=time)).html()
    assert "0.4 s for a step's communication" in page
    cells = "<td>d&lt;p</td><td>0.4 s</td><td>leaf l1&#x27;s uplink: 2 MB at 40Mbit</td>"
    assert cells in page


def test_a_page_carries_the_plan_and_names_are_no_markup() -> None:
    case = samples.hostile()
    page = case.html()
    assert page.count("<script") == 2  # the plan, and the script
    assert "<b>" not in page
    carried = re.search(r'<script type="application/json" id="plan">(.*)</script>\n<script>', page)
    assert carried is not None
    assert json.loads(carried[1]) == json.loads(render.format_json(case.plan))
