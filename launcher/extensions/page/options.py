"""The option of the live page, and its paths, which are imported with the first request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.config.options.readers import Option, make_optional, parse_listen_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.agent.composition import Ask, PartContext
    from launcher.views.http.http_server import Answer

# fmt: off
ROWS = (
    Option("ours", "serve", "addresses", "[HOST:]PORT", make_optional(parse_listen_address), "",
           "Address of the live page, served by the leader. HOST defaults to loopback."),
)
# fmt: on


def add_page(node: PartContext, ask: Ask) -> None:
    """Serve the page of --serve where this agent leads."""
    from launcher.views.http.http_part import add_paths
    from launcher.views.http.http_server import PathGroup

    def load() -> Mapping[str, Answer]:
        from launcher.extensions.page.paths import make_paths
        from launcher.views.questions.local_socket import QuestionSource

        return make_paths(QuestionSource(ask, node.layout.run_id))

    group = PathGroup(load, is_leaders=True, announcement="live page: {url}")
    add_paths(node.parts, node.config.extensions["serve"], group)
