"""Draws packages.svg: the packages of launcher and rendezvous, and which of them imports which, read from the imports.

A row is a package, the lowest first; a mark in a column says that it imports that package. All marks lie left of the
diagonal: imports run downwards only. Run `python docs/images/packages.py` after a change; a test compares the file with
what this draws.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.images.idea import CARD, INK, LINE, REPLICAS, SOFT, element, svg, text, wire

ROOT = Path(__file__).parents[2]
WIDTH, ROW, CELL, LEFT, HEAD = 900, 24, 18, 142, 104
PURPOSE_MAX = 72  # letters


def list_units(tree: str) -> list[str]:
    """What lies at the top of a tree: packages and modules, without its `__init__` and `__main__`."""
    entries = (path.stem for path in (ROOT / tree).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
    return sorted(name for name in entries if not name.startswith("__"))


def read_imports(tree: str, unit: str) -> set[str]:
    """The units of the same tree, or the name of the other tree, that a unit imports, for type checkers too."""
    place = ROOT / tree / unit
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    found: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            if isinstance(node, ast.ImportFrom) and node.module == tree:
                names = [f"{tree}.{name.name}" for name in node.names]
            if isinstance(node, ast.Import):
                names = [name.name for name in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == tree and len(parts) > 1:
                    found.add(parts[1])
                elif parts[0] == "rendezvous":
                    found.add("rendezvous")
    # The table of extensions is strings, and what is left of imports of its folders is listed in test_architecture.
    return found - {unit, "extensions"}


def sort_units(imports: dict[str, set[str]]) -> list[str]:
    """The units so that each stands after all that it imports; of those that may stand next, the first by name."""
    order: list[str] = []
    while len(order) < len(imports):
        ready = [unit for unit in sorted(imports) if unit not in order and imports[unit] & imports.keys() <= {*order}]
        order.append(ready[0])
    return order


def read_purpose(tree: str, unit: str) -> str:
    """The first sentence of a unit's docstring, up to its colon."""
    place = ROOT / tree / unit
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    words = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    words = words.split(". ")[0].split(": ")[0].removesuffix(".").replace("`", "")
    if len(words) > PURPOSE_MAX:
        words = words[:PURPOSE_MAX].rpartition(", ")[0] or words[:PURPOSE_MAX].rpartition(" ")[0]
    return words.replace("&", "&amp;").replace("<", "&lt;")


def draw_tree(tree: str, top: float) -> tuple[list[str], float]:
    """One tree, and where it ends."""
    imports = {unit: read_imports(tree, unit) for unit in list_units(tree)}
    order = sort_units(imports)
    columns = order if tree == "rendezvous" else ["rendezvous", *order]
    x = {unit: LEFT + CELL * (index + 0.5) for index, unit in enumerate(columns)}
    words_x = LEFT + CELL * len(columns) + 14
    parts = [text(20, top + 26, tree, size=15, weight="700", anchor="start")]
    for index, unit in enumerate(order):
        y = top + HEAD + ROW * index
        if index % 2 == 0:
            parts.append(element("rect", x=12, y=y, width=WIDTH - 24, height=ROW, fill=CARD))
        parts.append(text(20, y + 16, unit, weight="600", anchor="start", colour=INK))
        own = x[unit]
        for other in columns[: columns.index(unit)]:
            radius, fill = (5, REPLICAS[0]) if other in imports[unit] else (1, LINE)
            parts.append(element("circle", cx=x[other], cy=y + 12, r=radius, fill=fill))
        parts.append(wire(f"M{own - 5:g} {y + 12:g}h10", colour=LINE))
        parts.append(text(words_x, y + 16, read_purpose(tree, unit), size=12, colour=SOFT, anchor="start"))
    for unit in columns:
        turn = f"rotate(-60 {x[unit] + 4:g} {top + HEAD - 6:g})"
        parts.append(element("text", unit, x=x[unit] + 4, y=top + HEAD - 6, font_size=11, fill=SOFT, transform=turn))
    return parts, top + HEAD + ROW * len(order)


def picture() -> str:
    """The whole SVG file."""
    first, middle = draw_tree("rendezvous", 6)
    second, bottom = draw_tree("launcher", middle + 8)
    title = "The packages of rendezvous and launcher; each imports only packages that stand above it"
    return svg(WIDTH, bottom + 14, title, [*first, *second])


if __name__ == "__main__":
    Path(__file__).with_name("packages.svg").write_text(picture())
