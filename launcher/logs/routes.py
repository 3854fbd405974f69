"""The destination of each stream of each worker in a round, from -r, -t, --local-ranks-filter and --log-dir.

torchrun's rules: `-r` sends a stream to a file instead of the console, `-t` to both, and `--local-ranks-filter`
silences the console for all other local ranks but takes no file away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from launcher.config.config import OutputOptions
from launcher.logs.layout import LogLayout

if TYPE_CHECKING:
    from launcher.logs.pump import StreamName

STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")


class Route(Struct, frozen=True):
    """Where one stream goes: directly to the agent's own (`inherits`), else to a file, the console, both or neither."""

    inherits: bool = False
    path: str | None = None
    to_console: bool = False


class OutputRoutes:
    """The options' routes, in the directories of `layout`. `captures`: whether any stream may go through the agent."""

    def __init__(self, options: OutputOptions, layout: LogLayout, worker_count: int) -> None:
        self._options = options
        self._layout = layout
        self._worker_count = worker_count
        self._round = (0, 0)
        self.captures = any(map(any, self._list_destinations(STREAMS)))

    def begin(self, round: int, restart_count: int) -> None:
        """Begin a round: `find_route` and `find_filter_file` then return its files."""
        self._round = (round, restart_count)

    def find_route(self, local_rank: int, stream: str) -> Route:
        """Return where `stream` of a worker of this round goes."""
        to_file, to_console = self._choose_destination(local_rank, stream)
        path = self._layout.make_stream_path(*self._round, local_rank, stream) if to_file else None
        return Route(not (to_file or to_console or self._is_silenced(local_rank)), path, to_console)

    def find_filter_file(self, stream: str) -> str | None:
        """Return the file for matching lines of `stream` in this round; None without one."""
        is_shown = any(to_console for _, to_console in self._list_destinations((stream,)))
        return self._layout.make_filter_path(*self._round, stream) if is_shown else None

    def list_remarks(self) -> list[str]:
        """Return sentences for the start: options that name missing workers, and the directory of the log files."""
        sentences = []
        for field, ranks in (
            ("redirects", self._options.redirects.by_rank or ()),
            ("tee", self._options.tee.by_rank or ()),
            ("local_ranks_filter", self._options.local_ranks_filter or ()),
        ):
            missing = sorted(rank for rank in ranks if rank >= self._worker_count)
            if missing:
                numbers, origin = ", ".join(map(str, missing)), self._options.origins[field]
                sentences.append(f"{origin} names {numbers}, but the last local rank is {self._worker_count - 1}")
        for stream in STREAMS:
            field = f"duplicate_{stream}_filters"
            if not getattr(self._options, field):
                continue
            if not any(to_console for _, to_console in self._list_destinations((stream,))):
                sentences.append(f"{self._options.origins[field]} has no effect: no worker's {stream} is teed")
            elif not self._layout.keeps_files:
                sentences.append(f"{self._options.origins[field]} has no effect: --log-dir /dev/null keeps no files")
        return sentences

    @property
    def has_files(self) -> bool:
        """Whether any stream goes to a file."""
        return any(to_file for to_file, _ in self._list_destinations(STREAMS))

    def _list_destinations(self, streams: Iterable[str]) -> Iterator[tuple[bool, bool]]:
        return (self._choose_destination(rank, stream) for stream in streams for rank in range(self._worker_count))

    def _choose_destination(self, local_rank: int, stream: str) -> tuple[bool, bool]:
        """Whether a stream goes to a file, and whether through the agent to the console."""
        index, keeps_files = STREAMS.index(stream), self._layout.keeps_files
        is_teed = self._options.tee.select(local_rank)[index]
        # With --log-dir /dev/null a redirected stream stays on the console, as with torchrun.
        to_file = keeps_files and (is_teed or self._options.redirects.select(local_rank)[index])
        return to_file, is_teed and not self._is_silenced(local_rank)

    def _is_silenced(self, local_rank: int) -> bool:
        shown = self._options.local_ranks_filter
        return shown is not None and local_rank not in shown


def format_line_prefix(
    *, role: str, local_rank: int, rank: int, host: str | None = None, template: str | None = None
) -> bytes:
    """Format the prefix of each line of a tee'd stream: "[default0]:", or "node-a [default0]:" when `host` is set.

    `template` is the value of TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE and may contain ${role_name}, ${local_rank} and
    ${rank} as with torchrun, and ${host}; other variables stay as they are. Set `host` when the job has several nodes.
    """
    if not template:
        return f"{host + ' ' if host else ''}[{role}{local_rank}]:".encode(errors="surrogateescape")
    from string import Template  # seldom needed, and it brings `re` along

    values = {"role_name": role, "local_rank": local_rank, "rank": rank, "host": host or ""}
    return Template(template).safe_substitute(values).encode(errors="surrogateescape")
