"""What the clouds have in common: firmware that gives the cloud away, and a metadata server that is asked a few keys.

A cloud's own file says which keys, and what is to be told of the answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.hardware.metadata_server import LIMIT_S, LINK_LOCAL, NoAnswer, Server
from launcher.locality.contract import Hints
from launcher.locality.levels_from_keys import derive_levels
from launcher.locality.sources import cloud_detection


class CloudSource:
    """`root`: where /sys hangs, and `address`: the server's, for tests."""

    name = ""
    server_name = "metadata server"
    """How the server is called beside what it told."""

    def __init__(self, *, root: str = "/", address: tuple[str, int] = LINK_LOCAL) -> None:
        self._root = root
        self._address = address

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return bool(cloud_detection.find_cloud_signature(self.name, self._root))

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        if refusal := self.explain_skip(environ):
            return Hints((), refusal)
        values: dict[str, str] = {}
        try:
            told = self.ask(Server(self._address, min(limit_s, LIMIT_S)), values)
        except NoAnswer as error:
            told = f"the metadata server {error}"
        levels, remarks = derive_levels(self.name, values)
        return Hints(
            levels, "; ".join(filter(None, (self.server_name if levels else "", told, self.describe_host(), *remarks)))
        )

    def ask(self, server: Server, values: dict[str, str]) -> str:
        """Fill in key -> what it holds; what else is to be told. Raises NoAnswer, and what is filled in counts."""
        raise NotImplementedError

    def explain_skip(self, environ: Mapping[str, str]) -> str:
        """Why the server is not to be asked, if that is so."""
        return ""

    def describe_host(self) -> str:
        """What is known without the server."""
        return ""
