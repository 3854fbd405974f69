"""What the agents of this machine leave in their log directories, for the moments after they have ended.

A run's last lines and how it ended are written just before its agents go, too late for anyone to be told by them.
"""

from __future__ import annotations

import codecs
import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct, field

from launcher.views.questions.local_socket import list_local_agents
from launcher.views.run_view import RunView

_BLOCK = 1 << 16
_ROUND_FILE = re.compile(r"round_(\d{1,9})\.json")
_ROUND_FILE_MAX = 16 << 20


class KeptWorker(Struct, frozen=True, kw_only=True):
    rank: int
    local_rank: int


class KeptRound(Struct, frozen=True, kw_only=True):
    """What is needed here of `round_<number>.json`, which an agent has written of a round on its node."""

    round: int
    restart_count: int = 0
    ended_at: str | None = None
    cause: str = ""
    ended: str = ""
    workers: tuple[KeptWorker, ...] = ()


class LocalFolders(Struct):
    """Remembers the log directories of those nodes of a run whose agents are on this machine, by member id."""

    by_member: dict[str, str] = field(default_factory=dict)
    _seen: frozenset[tuple[str, int, str]] = frozenset()

    def update(self, report: RunView) -> None:
        """Note what a report says. Agents of this machine are asked only if it names others than before."""
        seen = frozenset((node.name, node.agent_pid, node.log_dir) for node in report.nodes)
        if seen == self._seen:
            return
        self._seen = seen
        local = {(agent.node, agent.pid) for agent in list_local_agents() if agent.run_id == report.run_id}
        for node in report.nodes:
            if node.log_dir and (node.name, str(node.agent_pid)) in local:
                self.by_member[node.member_id] = node.log_dir

    def describe_end(self, report: RunView) -> str:
        """Describe that no agent of a run is here any more, and how its last round ended, from the files of rounds."""
        seen = report.rounds[-1].round if report.rounds else 0
        ending = f": it was last seen in round {seen}" if seen else ""
        for folder in self.by_member.values():
            *_, last = (None, *read_rounds(folder, seen or 1))
            if last is not None and last.ended_at:
                ending = f": round {last.round} ended: {last.ended or last.cause or 'no reason given'}"
                break
        return f"no longer has an agent on this machine{ending}"


def read_rest(log_dir: str, name: str, offset: int) -> Iterator[str]:
    """Yield a file from an offset to its end. `name` comes from outside: what is not within `log_dir` is left out."""
    root = os.path.realpath(log_dir)
    path = os.path.realpath(os.path.join(root, name))
    if not path.startswith(f"{root}/") or not os.path.isfile(path):
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        with open(path, "rb") as file:
            is_truncated = os.fstat(file.fileno()).st_size < offset
            file.seek(0 if is_truncated else max(0, offset))
            while block := file.read(_BLOCK):
                yield decoder.decode(block)
    except (OSError, ValueError, OverflowError):
        return
    yield decoder.decode(b"", True)


def read_rounds(folder: str, first: int) -> Iterator[KeptRound]:
    """Yield what an agent's files say of the rounds from number `first` on; a spare node has none of some."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    numbers = sorted(int(match[1]) for name in names if (match := _ROUND_FILE.fullmatch(name)) is not None)
    for number in numbers[bisect_left(numbers, first) :]:
        path = os.path.join(folder, f"round_{number}.json")
        with suppress(OSError, msgspec.MsgspecError), open(path, "rb") as file:
            yield msgspec.json.decode(file.read(_ROUND_FILE_MAX), type=KeptRound)


def list_stream_files(folder: str, kept: KeptRound) -> Iterator[tuple[str, int, str]]:
    """Yield (name, rank, stream) of the files of a round's workers, by the layout of the log directory."""
    attempt = f"attempt_{kept.restart_count}"
    later = f"{attempt}.round_{kept.round}"  # of a second round with the same restart count
    attempt = later if os.path.isdir(os.path.join(folder, later)) else attempt
    for worker in kept.workers:
        for stream in ("stdout", "stderr"):
            yield f"{attempt}/{worker.local_rank}/{stream}.log", worker.rank, stream
