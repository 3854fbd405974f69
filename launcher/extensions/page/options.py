"""The option of the live page, and its part, which is imported once this agent leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.config.options.readers import Option, make_optional, parse_listen_address

if TYPE_CHECKING:
    from launcher.agent.membership import Ask, PartContext
    from launcher.parts.part import Part

# fmt: off
ROWS = (
    Option("ours", "serve", "addresses", "[HOST:]PORT", make_optional(parse_listen_address), "",
           "Address at which the leader serves the live page. HOST defaults to loopback."),
)
# fmt: on


def add_page(node: PartContext, ask: Ask) -> None:
    """Serve the page of --serve where this agent leads."""
    from launcher.parts.part import LATER_S, LatePart, LeadershipChanged

    def make() -> Part | None:
        from launcher.views.http.http_part import make_part

        entry = "launcher.extensions.page.paths:make_paths"
        origin = node.parts, node.config.extensions["serve"], entry, ask, node.layout.run_id
        return make_part(*origin, is_leaders=True, announcement="live page: {url}")

    node.parts.add(LatePart("--serve", make, {LeadershipChanged: LATER_S}))
