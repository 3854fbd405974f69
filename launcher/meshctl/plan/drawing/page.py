"""A plan as a page: the pictures, one view at a time, and the figures behind them.

The page is self-contained: no network, no library. Without JavaScript, and on paper, all views are below each other;
a few lines of script hide all but the chosen one. Every view is laid out twice, for a wide window and for a phone,
because a picture that is only scaled down is unreadable.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.meshctl.plan.drawing import markup, picture
from launcher.meshctl.plan.drawing.arcs import draw_arcs, list_crossing_flows
from launcher.meshctl.plan.drawing.lettering import FONTS, format_number
from launcher.meshctl.plan.drawing.markup import escape_text
from launcher.meshctl.plan.drawing.scene import Scene, build_scene
from launcher.meshctl.plan.drawing.tiles import SvgBlock
from launcher.meshctl.plan.flows import TrafficSummary, summarize_traffic
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.placement.limits import Costs, Limits, Plan

WIDTHS = (("wide", picture.WIDTH, picture.MAP_HEIGHT), ("narrow", 380, 1400))
MARGIN = 2

STYLE = f"""
body {{ margin: 0 auto; padding: 16px; max-width: {picture.WIDTH}px; background: #fff; color: {markup.TEXT_COLOUR};
  font: 15px/1.5 {FONTS}; }}
h1 {{ font-size: 21px; line-height: 1.3; margin: 8px 0 4px; overflow-wrap: anywhere; }}
p, dd, li {{ overflow-wrap: anywhere; }}
nav {{ display: flex; flex-wrap: wrap; gap: 8px; margin: 16px 0; }}
nav[hidden] {{ display: none; }}
button {{ font: inherit; padding: 6px 14px; border: 1px solid {markup.BORDER_COLOUR}; border-radius: 6px;
  background: #fff; color: inherit; cursor: pointer; }}
button[aria-pressed=true] {{ background: {markup.TEXT_COLOUR}; border-color: {markup.TEXT_COLOUR}; color: #fff; }}
figure {{ margin: 16px 0 24px; }}
figure.off {{ display: none; }}
svg {{ display: block; width: 100%; height: auto; }}
svg.narrow {{ display: none; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
h2 {{ font-size: 16px; margin: 24px 0 4px; }}
th, td {{ padding: 5px 14px 5px 0; text-align: right; border-bottom: 1px solid #d8dee4; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
th {{ font-weight: 600; }}
@media (max-width: 700px) {{ svg.wide {{ display: none; }} svg.narrow {{ display: block; }} }}
@media print {{
  @page {{ size: landscape; margin: 12mm; }}
  nav {{ display: none; }}
  figure, figure.off {{ display: block; break-inside: avoid; }}
  svg.wide {{ display: block; max-height: 165mm; }}
  svg.narrow {{ display: none; }}
}}
"""

SCRIPT = """
const views = document.querySelectorAll("figure"), buttons = document.querySelectorAll("nav button");
function show(chosen) {
  views.forEach((view) => view.classList.toggle("off", view.id !== chosen));
  buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.view === chosen)));
}
buttons.forEach((button) => button.addEventListener("click", () => show(button.dataset.view)));
document.querySelector("nav").hidden = buttons.length < 2;
show(views[0].id);
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render_html(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs) -> str:
    """Return the page as the text of an HTML file."""
    stages = build_scene(plan, nodes, mesh, limits.levels)
    turned = stages.colouring.swap_axes()
    scenes = [stages] if turned == stages.colouring else [stages, build_scene(plan, nodes, mesh, limits.levels, turned)]
    book = summarize_traffic(plan, nodes, mesh, limits, costs)
    title = picture.format_title(plan, mesh, len(nodes))
    views = _render_views(scenes, book, plan)
    buttons = [
        markup.render_element(
            "button", [escape_text(name)], type="button", data_view=f"view-{index}", aria_pressed="false"
        )
        for index, (name, _) in enumerate(views)
    ]
    parts = [
        "<!DOCTYPE html>\n",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{escape_text(title)}</title><style>{STYLE}</style></head>\n<body>",
        f"<h1>{escape_text(title)}</h1>\n<p>{escape_text(picture.format_facts(plan))}</p>\n",
        markup.render_element("nav", buttons, hidden="hidden", aria_label="views"),
        *(_render_figure(index, name, drawn) for index, (name, drawn) in enumerate(views)),
        _render_table(book),
        _render_reasons(plan),
        f"<script>{SCRIPT}</script></body></html>\n",
    ]
    return "".join(parts)


def _render_views(scenes: Sequence[Scene], traffic: TrafficSummary, plan: Plan) -> list[tuple[str, list[str]]]:
    """Return the name of every view, and its picture for every width."""
    views = []
    for shown in scenes:
        hue = shown.colouring.hue
        name = "nodes" if hue is None else f"by {shown.axes[hue]}"
        drawn = [
            _render_sheet(picture.draw_map(shown, plan, width - 2 * MARGIN, height), style, width, name)
            for style, width, height in WIDTHS
        ]
        views.append((name, drawn))
    for flow in list_crossing_flows(traffic):
        name = f"traffic of {flow.communicator.name}"
        drawn = [
            _render_sheet([draw_arcs(flow, traffic, width - 2 * MARGIN, plan.cost)], style, width, name)
            for style, width, _ in WIDTHS
        ]
        views.append((name, drawn))
    return views


def _render_sheet(blocks: Sequence[SvgBlock], style: str, width: int, tooltip: str) -> str:
    return picture.render_sheet(blocks, width, tooltip, margin=MARGIN).replace("<svg ", f'<svg class="{style}" ', 1)


def _render_figure(index: int, name: str, pictures: Sequence[str]) -> str:
    return markup.render_element("figure", pictures, id=f"view-{index}", aria_label=name) + "\n"


def _render_table(traffic: TrafficSummary) -> str:
    """Render the traffic that leaves the domains of every level, for every axis, and its cost."""
    heads = ["axis", *(f"leaves {level}" for level in traffic.levels), "cost"]
    rows = [
        [
            flow.communicator.name,
            *(format_number(round(left, 2)) for left in flow.leaving),
            format_number(round(flow.cost, 2)),
        ]
        for flow in traffic.flows
    ]
    rows.append(["level cost", *(format_number(cost) for cost in traffic.level_costs), ""])
    head = "".join(f"<th scope=col>{escape_text(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape_text(each)}</td>" for each in row) + "</tr>" for row in rows)
    said = "Cost is the traffic that leaves the domains of a level, times the level's cost, summed over the levels."
    table = f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
    return f"<h2>Traffic and cost by axis</h2><p>{said}</p>{table}\n"


def _render_reasons(plan: Plan) -> str:
    """Render the reasons for this world, and the nodes that are left out."""
    return "<h2>Why this plan</h2><ul>" + "".join(f"<li>{escape_text(each)}</li>" for each in plan.reasons) + "</ul>\n"
