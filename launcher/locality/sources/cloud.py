"""The common part of the clouds: firmware that identifies the cloud, and a metadata server with a few keys.

A cloud's own file has the keys, and the remarks on their values.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.hardware.metadata_server import LIMIT_S, LINK_LOCAL, NoAnswer, Server
from launcher.locality.contract import Hints
from launcher.locality.levels_from_keys import derive_levels
from launcher.locality.sources import cloud_detection


class CloudSource:
    """`root`: the directory above /sys, and `address`: the server's, for tests."""

    name = ""
    server_name = "metadata server"
    """The name of the server in the reason."""

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
        """Fill in key -> value; return remarks. Raises NoAnswer, and what is filled in counts."""
        raise NotImplementedError

    def explain_skip(self, environ: Mapping[str, str]) -> str:
        """Return why the server must not be queried, or ""."""
        return ""

    def describe_host(self) -> str:
        """Return what is known without the server."""
        return ""
