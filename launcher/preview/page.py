"""A plan as a page: the pictures, one view at a time, and the figures behind them.

The page needs nothing besides itself: no network, no library. Without JavaScript, and on paper, all views stand
below each other; a few lines of script hide all but the chosen one. Every view is laid out twice, for a wide window
and for a telephone, because a picture that is only made smaller cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Costs, Limits, Plan
from launcher.preview import markup, picture
from launcher.preview.arcs import arcs, crossing
from launcher.preview.flows import Ledger, ledger
from launcher.preview.lettering import FONTS, amount
from launcher.preview.markup import words
from launcher.preview.scene import Scene, scene
from launcher.preview.tiles import Block

WIDTHS = (("wide", picture.WIDTH, picture.MAP_HEIGHT), ("narrow", 380, 1400))
MARGIN = 2

STYLE = f"""
body {{ margin: 0 auto; padding: 16px; max-width: {picture.WIDTH}px; background: #fff; color: {markup.INK};
  font: 15px/1.5 {FONTS}; }}
h1 {{ font-size: 21px; line-height: 1.3; margin: 8px 0 4px; overflow-wrap: anywhere; }}
p, dd, li {{ overflow-wrap: anywhere; }}
nav {{ display: flex; flex-wrap: wrap; gap: 8px; margin: 16px 0; }}
nav[hidden] {{ display: none; }}
button {{ font: inherit; padding: 6px 14px; border: 1px solid {markup.LINE}; border-radius: 6px; background: #fff;
  color: inherit; cursor: pointer; }}
button[aria-pressed=true] {{ background: {markup.INK}; border-color: {markup.INK}; color: #fff; }}
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


def html(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs) -> str:
    """The page as the text of an HTML file."""
    stages = scene(plan, nodes, mesh, limits.levels)
    turned = stages.colouring.turned()
    scenes = [stages] if turned == stages.colouring else [stages, scene(plan, nodes, mesh, limits.levels, turned)]
    book = ledger(plan, nodes, mesh, limits, costs)
    title = picture.title(plan, mesh, len(nodes))
    views = _views(scenes, book, plan)
    buttons = [
        markup.element("button", [words(name)], type="button", data_view=f"view-{index}", aria_pressed="false")
        for index, (name, _) in enumerate(views)
    ]
    parts = [
        "<!DOCTYPE html>\n",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{words(title)}</title><style>{STYLE}</style></head>\n<body>",
        f"<h1>{words(title)}</h1>\n<p>{words(picture.facts(plan))}</p>\n",
        markup.element("nav", buttons, hidden="hidden", aria_label="views"),
        *(_figure(index, name, drawn) for index, (name, drawn) in enumerate(views)),
        _table(book),
        _words(plan),
        f"<script>{SCRIPT}</script></body></html>\n",
    ]
    return "".join(parts)


def _views(scenes: Sequence[Scene], book: Ledger, plan: Plan) -> list[tuple[str, list[str]]]:
    """The name of every view, and its picture for every width."""
    views = []
    for shown in scenes:
        hue = shown.colouring.hue
        name = "nodes" if hue is None else f"by {shown.axes[hue]}"
        drawn = [
            _sheet(picture.map_blocks(shown, plan, width - 2 * MARGIN, height), style, width, name)
            for style, width, height in WIDTHS
        ]
        views.append((name, drawn))
    for flow in crossing(book):
        name = f"traffic of {flow.communicator.name}"
        drawn = [
            _sheet([arcs(flow, book, width - 2 * MARGIN, plan.cost)], style, width, name) for style, width, _ in WIDTHS
        ]
        views.append((name, drawn))
    return views


def _sheet(blocks: Sequence[Block], style: str, width: int, told: str) -> str:
    return picture.sheet(blocks, width, told, margin=MARGIN).replace("<svg ", f'<svg class="{style}" ', 1)


def _figure(index: int, name: str, drawn: Sequence[str]) -> str:
    return markup.element("figure", drawn, id=f"view-{index}", aria_label=name) + "\n"


def _table(book: Ledger) -> str:
    """What leaves the domains of every level, for every axis, and what it costs."""
    heads = ["axis", *(f"leaves {level}" for level in book.levels), "cost"]
    rows = [
        [flow.communicator.name, *(amount(round(left, 2)) for left in flow.leaving), amount(round(flow.cost, 2))]
        for flow in book.flows
    ]
    rows.append(["toll", *(amount(toll) for toll in book.tolls), ""])
    head = "".join(f"<th scope=col>{words(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{words(each)}</td>" for each in row) + "</tr>" for row in rows)
    said = "Cost is the traffic that leaves the domains of a level, times the level's toll, summed over the levels."
    table = f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
    return f"<h2>Traffic and cost by axis</h2><p>{said}</p>{table}\n"


def _words(plan: Plan) -> str:
    """Why it is this world, and who is left out."""
    return "<h2>Why this plan</h2><ul>" + "".join(f"<li>{words(each)}</li>" for each in plan.reasons) + "</ul>\n"
