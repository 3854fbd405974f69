"""SVG as text: elements and their attributes, with all foreign names escaped.

`render_element` and `render_text` write all text of a picture, so a node named `<script>` is only a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from launcher.meshctl.plan.drawing.lettering import replace_unprintable

TEXT_COLOUR, MUTED_COLOUR, BORDER_COLOUR, BACKGROUND_COLOUR, PANEL_COLOUR = (
    "#1c2733",
    "#4a5866",
    "#8b97a3",
    "#ffffff",
    "#f4f6f8",
)


def render_element(name: str, inner: Iterable[str] | None = None, **attributes: float | str) -> str:
    """One element; `font_size=13` becomes font-size="13", `class_` becomes class. `inner` is markup already."""
    pairs = "".join(f' {_format_key(key)}="{_format_value(value)}"' for key, value in attributes.items())
    return f"<{name}{pairs}/>" if inner is None else f"<{name}{pairs}>{''.join(inner)}</{name}>"


def _format_key(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _format_value(value: float | str) -> str:
    return escape(replace_unprintable(value)) if isinstance(value, str) else format_length(value)


def format_length(number: float) -> str:
    """A length with at most two decimals."""
    return f"{number:.2f}".rstrip("0").rstrip(".") if number % 1 else str(int(number))


def escape_text(value: str) -> str:
    """Escape text as markup."""
    return escape(replace_unprintable(value), quote=False)


def render_tooltip(value: str) -> str:
    """Render the text that a browser shows when the pointer rests on the enclosing element."""
    return f"<title>{escape_text(value)}</title>"


def render_text(
    x: float, y: float, value: str, size: float, *, weight: str = "400", anchor: str = "start", fill: str, class_: str
) -> str:
    """Render text whose baseline starts, or is centred with anchor "middle", at x, y."""
    return render_element(
        "text",
        [escape_text(value)],
        x=x,
        y=y,
        font_size=size,
        font_weight=weight,
        text_anchor=anchor,
        fill=fill,
        class_=class_,
    )


def render_rect(x: float, y: float, width: float, height: float, **attributes: float | str) -> str:
    return render_element("rect", None, x=x, y=y, width=width, height=height, **attributes)
