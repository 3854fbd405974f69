"""The channel of supervisor, fork server and the workers forked from it: JSON, since theirs may be another Python.

The users' modules run there, too: JSON that is broken is an error, while marshal may crash who reads it.
"""

from __future__ import annotations

import json

from launcher.supervisor.channel import Channel

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class JsonChannel(Channel):
    @staticmethod
    def encode(message: Sequence[object]) -> bytes:
        return json.dumps(message).encode("ascii")

    @staticmethod
    def decode(text: bytes) -> Sequence[Any]:
        found: Sequence[Any] = json.loads(text)
        return found
