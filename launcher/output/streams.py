"""Which way a worker's stream goes, and how its lines are marked on the console.

torchrun's rules: `-r` sends a stream to a file instead of the console, `-t` to both, and `--local-ranks-filter`
silences the console for all other local ranks but takes no file away.
"""

from __future__ import annotations

from rendezvous.values import NamedTuple


class Destination(NamedTuple):
    """Where one stream of one worker goes. Neither: it is discarded; `inherits`: straight to the agent's own."""

    inherits: bool
    to_file: bool
    to_console: bool

    @property
    def is_captured(self) -> bool:
        """Does the stream go through a pipe to the agent?"""
        return self.to_file or self.to_console


def choose_destination(
    *, is_redirected: bool, is_teed: bool, is_filtered_out: bool, keeps_files: bool = True
) -> Destination:
    """Where a stream goes.

    `is_filtered_out`: `--local-ranks-filter` is given and does not name this local rank. `keeps_files` is false
    for `--log-dir /dev/null`; there a redirected stream stays on the console, as with torchrun.
    """
    is_captured = is_teed or (is_redirected and keeps_files)
    return Destination(
        inherits=not is_captured and not is_filtered_out,
        to_file=is_captured and keeps_files,
        to_console=is_teed and not is_filtered_out,
    )


def format_line_prefix(
    *, role: str, local_rank: int, rank: int, host: str | None = None, template: str | None = None
) -> bytes:
    """What stands before each line of a tee'd stream: "[default0]:", or "node-a [default0]:" when `host` is given.

    `template` is the value of TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE and knows ${role_name}, ${local_rank} and
    ${rank} as with torchrun, and ${host}; other variables stay as they are written. Give `host` when the job
    has several nodes.
    """
    if not template:
        return f"{host + ' ' if host else ''}[{role}{local_rank}]:".encode(errors="surrogateescape")
    from string import Template  # seldom needed, and it brings `re` along

    values = {"role_name": role, "local_rank": local_rank, "rank": rank, "host": host or ""}
    return Template(template).safe_substitute(values).encode(errors="surrogateescape")
