"""How the pictures of docs/performance.md are drawn: four forms, one style, and the same bytes from the same figures.

`rows`    a line per thing, dots for single runs along a logarithmic axis: for what is compared
`curves`  a panel or several, both axes logarithmic, a line through the medians: for what grows
`quality` a line per family of clusters, a dot per cluster: how far above the best known it lies
`scatter` dots by two logarithmic axes of one unit, and the diagonal: for what was predicted and then measured

Sides differ by colour and by mark, so that the picture can be read without colour. It brings its own background, and
can be read on a light and on a dark page alike. Letters stay letters: they can be searched, and the file is small.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

INK, SOFT, PAPER, LINE = "#1c2733", "#4a5866", "#f4f6f8", "#c9d1d9"
WIDTH = 7.9  # inches, as wide as the text of a page
STYLE = {
    "svg.hashsalt": "meshrun",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.facecolor": PAPER,
    "axes.titlesize": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.facecolor": PAPER,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


class Look(NamedTuple):
    """How a side, or whatever is compared, is drawn."""

    color: str
    mark: str
    filled: bool = True
    dash: str = "-"


LOOKS = (
    Look("#1f5fbf", "o"),
    Look("#b35900", "s", filled=False, dash="--"),
    Look("#5c6773", "^", dash="-."),
    Look("#1d7a46", "D", filled=False, dash=":"),
)


class Row(NamedTuple):
    """One line of `rows`: its words, values by what is compared, what should be reached, words at its right end."""

    words: str
    values: Mapping[str, Sequence[float]]
    aim: float | None = None
    note: str = ""
    beyond: Mapping[str, float] = {}  # waited for in vain: until then


class Curve(NamedTuple):
    """One line of a panel: what it is, its points, and the least and most that each was."""

    words: str
    points: Sequence[tuple[float, float]]
    ranges: Sequence[tuple[float, float, float]] = ()
    look: int = 0


class Panel(NamedTuple):
    """One pair of axes of `curves`. `aims`: points with words; `slope_from`: where growth in proportion begins."""

    title: str
    unit: str
    curves: Sequence[Curve]
    aims: Sequence[tuple[float, float, str]] = ()
    slope_from: tuple[float, float] | None = None


def rows(title: str, axis: str, names: Sequence[str], found: Sequence[Row], *, at_one: str = "") -> str:
    """Dots along a logarithmic axis, a line for each row; `at_one` names a line at 1."""
    top = 0.9 if at_one else 0.72
    with _figure(top + 0.5 + 0.28 * len(found)) as figure:
        height = figure.get_figheight()
        axes = figure.add_axes((0.36, 0.5 / height, 0.5, 1 - (top + 0.5) / height))
        everything = [value for row in found for values in row.values.values() for value in values]
        everything += [row.aim for row in found if row.aim] + [each for row in found for each in row.beyond.values()]
        least, most = min(everything, default=0.1), max(everything, default=1.0)
        axes.set_xscale("log")
        axes.set_xlim(least / 1.5, max(most, 1.0 if at_one else most) * 1.6)
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set_yticks(range(len(found)), [row.words for row in found], color=INK)
        axes.tick_params(length=0)
        if at_one:
            axes.axvline(1.0, color=LOOKS[1].color, dashes=(4, 2), linewidth=1.2, zorder=1.5)
            axes.text(1.0, -0.62, at_one, ha="center", va="bottom", color=LOOKS[1].color)
        for at, row in enumerate(found):
            for index, name in enumerate(names):
                values = [value for value in row.values.get(name, ()) if value > 0]
                level = at + (0.16 * (index - (len(names) - 1) / 2) if len(names) > 1 else 0)
                if values:
                    axes.plot([min(values), max(values)], [level] * 2, color=LOOKS[index].color, linewidth=1)
                _marks(axes, values, [level] * len(values), LOOKS[index])
                if name in row.beyond:
                    axes.plot([row.beyond[name]], [level], marker=">", color=LOOKS[index].color, markersize=6)
            if row.aim:
                axes.plot([row.aim] * 2, [at - 0.34, at + 0.34], color=INK, linewidth=1.6, zorder=2.5)
            axes.annotate(row.note, (1.02, at), xycoords=("axes fraction", "data"), va="center", color=SOFT)
        axes.grid(visible=False, axis="y")
        _ticks(axes, "x")
        axes.set_xlabel(axis)
        _title(figure, title)
        entries = [(name, LOOKS[index]) for index, name in enumerate(names)]
        _legend(figure, entries, with_aim=any(row.aim for row in found), with_beyond=any(row.beyond for row in found))
        return _svg(figure, title)


def curves(title: str, axis: str, panels: Sequence[Panel]) -> str:
    """Panels beside each other, two in a line; both axes logarithmic."""
    across = min(2, len(panels))
    down = math.ceil(len(panels) / across)
    with _figure(0.75 + (2.75 if across == 2 else 3.4) * down) as figure:
        grid = figure.add_gridspec(down, across, left=0.09, right=0.975, hspace=0.42, wspace=0.26)
        grid.update(
            top=1 - (0.72 if across == 2 else 0.62) / figure.get_figheight(), bottom=0.5 / figure.get_figheight()
        )
        for at, panel in enumerate(panels):
            axes = figure.add_subplot(grid[at // across, at % across])
            axes.set_xscale("log")
            axes.set_yscale("log")
            for curve in panel.curves:
                look = LOOKS[curve.look]
                line = [point for point in curve.points if point[1] > 0]
                xs, ys = [x for x, _ in line], [y for _, y in line]
                axes.plot(xs, ys, color=look.color, linestyle=look.dash, linewidth=1.4, label="_")
                for x, low, high in curve.ranges:
                    axes.plot([x, x], [low, high], color=look.color, linewidth=1)
                _marks(axes, xs, ys, look, label=curve.words)
            sizes = sorted({x for curve in panel.curves for x, _ in curve.points})
            if panel.slope_from is not None and sizes:
                x, y = panel.slope_from
                ends = [(x, y), (sizes[-1], y * sizes[-1] / x)]
                axes.plot(
                    *zip(*ends, strict=True), color=SOFT, linestyle=(0, (1, 2)), linewidth=1.2, label="in proportion"
                )
            for x, y, words in panel.aims:
                axes.plot([x / 1.25, x * 1.25], [y, y], color=INK, linewidth=1.6)
                axes.annotate(words, (x, y), (0, 4), textcoords="offset points", ha="right", va="bottom")
            axes.xaxis.set_major_locator(FixedLocator(_apart(sizes)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.xaxis.set_minor_locator(NullLocator())
            _ticks(axes, "y")
            axes.tick_params(length=0)
            axes.set_title(f"{panel.title}, {panel.unit}" if panel.unit else panel.title, loc="left", color=INK)
            if at // across == down - 1:
                axes.set_xlabel(axis)
            axes.legend(loc="best", fontsize=8)
        _title(figure, title)
        return _svg(figure, title)


def quality(title: str, names: Sequence[str], found: Sequence[Row], marks: Mapping[float, str]) -> str:
    """Dots by how far they lie above 1, in per cent, on a logarithmic axis whose left end is "none at all"."""
    none, least, most = 0.045, 0.1, 1_000.0
    percent = [
        Row(row.words, {name: [_percent(each, none, least) for each in row.values.get(name, ())] for name in names})
        for row in found
    ]
    with _figure(1.42 + 0.32 * len(found)) as figure:
        height = figure.get_figheight()
        axes = figure.add_axes((0.13, 0.5 / height, 0.81, 1 - 1.42 / height))
        axes.set_xscale("log")
        axes.set_xlim(none / 1.4, most * 1.3)
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set_yticks(range(len(found)), [row.words for row in found], color=INK)
        for at, row in enumerate(percent):
            for index, name in reversed(list(enumerate(names))):
                values = row.values[name]
                _marks(axes, values, [at + 0.22 * (index - 1)] * len(values), LOOKS[index], size=4)
        for value, words in marks.items():
            above = (value - 1) * 100
            axes.axvline(above, color=INK, linewidth=1.2)
            axes.text(above, -0.6, words, ha="center", va="bottom", fontsize=8)
        ticks = (none, 0.1, 1, 10, 100, 1_000)
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: "none" if value < least / 1.5 else f"{value:,g} %")
        )
        axes.xaxis.set_minor_locator(NullLocator())
        axes.tick_params(length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("cost above the best known layout")
        _title(figure, title)
        _legend(figure, [(name, LOOKS[index]) for index, name in enumerate(names)])
        return _svg(figure, title)


def scatter(title: str, axes_words: tuple[str, str], groups: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Dots of several groups, the first on top, and the line on which both values are the same."""
    with _figure(5.6) as figure:
        axes = figure.add_axes((0.11, 0.09, 0.86, 0.77))
        axes.set_xscale("log")
        axes.set_yscale("log")
        everything = [value for points in groups.values() for point in points for value in point]
        ends = min(everything, default=0.1) / 1.2, max(everything, default=1.0) * 1.2
        axes.set_xlim(*ends)
        axes.set_ylim(*ends)
        axes.plot(ends, ends, color=INK, linewidth=1, zorder=1.5)
        for look, points in reversed(list(zip(LOOKS, groups.values(), strict=False))):
            _marks(axes, [x for x, _ in points], [y for _, y in points], look)
        for which in ("x", "y"):
            _ticks(axes, which)
        axes.tick_params(length=0)
        axes.set_xlabel(axes_words[0])
        axes.set_ylabel(axes_words[1])
        _title(figure, title)
        _legend(figure, list(zip(groups, LOOKS, strict=False)))
        return _svg(figure, title)


def _percent(ratio: float, none: float, least: float) -> float:
    above = (ratio - 1) * 100
    return none if above < 0.999 * least else above


@contextmanager
def _figure(height: float) -> Iterator[Figure]:
    with mpl.rc_context(STYLE):
        yield Figure(figsize=(WIDTH, height))


def _marks(axes: Axes, xs: Sequence[float], ys: Sequence[float], look: Look, size: float = 5, label: str = "") -> None:
    face = look.color if look.filled else PAPER
    axes.plot(
        xs, ys, linestyle="none", marker=look.mark, markersize=size, markeredgecolor=look.color, markerfacecolor=face,
        alpha=0.8, label=label or "_",
    )  # fmt: skip


def _title(figure: Figure, title: str) -> None:
    figure.text(0.02, 1 - 0.24 / figure.get_figheight(), title, fontsize=11, va="center", weight="bold")


def _legend(
    figure: Figure, entries: Sequence[tuple[str, Look]], *, with_aim: bool = False, with_beyond: bool = False
) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], linestyle="none", marker=look.mark, markersize=5, markeredgecolor=look.color, label=name,
            markerfacecolor=look.color if look.filled else PAPER,
        )
        for name, look in entries
    ]  # fmt: skip
    if with_aim:
        handles.append(
            Line2D([], [], linestyle="none", marker="|", markersize=10, color=INK, markeredgewidth=1.6, label="aim")
        )
    if with_beyond:
        handles.append(
            Line2D([], [], linestyle="none", marker=">", color=SOFT, markersize=6, label="not within this time")
        )
    top = 1 - 0.36 / figure.get_figheight()
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.01, top), ncols=len(handles), handletextpad=0.2)


def _ticks(axes: Axes, which: str) -> None:
    """Powers of ten as numbers a person writes; on a short axis their halves and fifths, too."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 3 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    axis.set_major_locator(FixedLocator([step * 10.0**power for power in powers for step in steps]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)


def _plain(value: float) -> str:
    return f"{value / 1e6:,g} million" if value >= 0.999e6 else f"{value:,g}"


def _apart(sizes: Sequence[float]) -> list[float]:
    """Those sizes whose labels have room beside each other, the largest always."""
    kept: list[float] = []
    for size in reversed(sizes):
        if not kept or kept[-1] / size >= (3.9 if len(sizes) > 6 else 1.9):
            kept.append(size)
    return kept


def _svg(figure: Figure, title: str) -> str:
    """The picture as text, without a date, with its title for those who do not see it."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing)
    head, mark, rest = file.getvalue().partition("<defs>")
    escaped = title.replace("&", "&amp;").replace("<", "&lt;")
    head = head.replace("<svg ", '<svg role="img" ', 1)
    text = f"{head}<title>{escaped}</title>\n {mark}{rest}"
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
