"""What the agents of this machine leave in their log directories, for the moments after they have ended.

A run's last lines and how it ended are written just before its agents go, too late for anyone to be told by them.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from typing import Any

import msgspec

from launcher.observe.local_socket import list_local_agents
from launcher.observe.node_report import RunReport

_BLOCK = 1 << 20
_ROUND_FILE_MAX = 16 << 20


class LocalFolders:
    """Remembers the log directories of those nodes of a run whose agents are on this machine, by member id."""

    def __init__(self) -> None:
        self.by_member: dict[str, str] = {}
        self._seen: frozenset[tuple[str, int, str]] = frozenset()

    def update(self, report: RunReport) -> None:
        """Note what a report says. Agents of this machine are asked only if it names others than before."""
        seen = frozenset((node.node, node.agent_pid, node.log_dir) for node in report.nodes)
        if seen == self._seen:
            return
        self._seen = seen
        local = {(agent.node, agent.pid) for agent in list_local_agents() if agent.run_id == report.run_id}
        for node in report.nodes:
            if node.log_dir and (node.node, str(node.agent_pid)) in local:
                self.by_member[node.member_id] = node.log_dir

    def describe_ending(self, report: RunReport) -> str:
        """Describe how the run's last round ended, from the files of rounds; "" if none of them is here."""
        first = report.rounds[-1].round if report.rounds else 1
        for folder in self.by_member.values():
            number, found = first, None
            while (content := _read_round(folder, number)) is not None:
                number, found = number + 1, content
            if found is not None and found.get("ended_at"):
                return f"round {found['round']} ended: {found.get('reason') or found.get('cause') or 'no reason given'}"
        return ""


def describe_gone(run_id: str, ending: str) -> str:
    """Describe that no agent of a run is here any more, and how its last round ended, if that is known."""
    return f"run {run_id} has no agent on this machine any more" + (f": {ending}" if ending else "")


def read_rest(log_dir: str, name: str, offset: int) -> Iterator[str]:
    """Yield a file from an offset to its end. `name` comes from outside: what is not within `log_dir` is left out."""
    root = os.path.realpath(log_dir)
    path = os.path.realpath(os.path.join(root, name))
    if not path.startswith(f"{root}/") or not os.path.isfile(path):
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        with open(path, "rb") as file:
            file.seek(max(0, offset))
            while block := file.read(_BLOCK):
                yield decoder.decode(block)
    except (OSError, ValueError, OverflowError):
        return
    yield decoder.decode(b"", True)


def _read_round(folder: str, number: int) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, f"round_{number}.json"), "rb") as file:
            return msgspec.json.decode(file.read(_ROUND_FILE_MAX), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return None
