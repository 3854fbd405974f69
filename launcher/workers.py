"""From a share of the world to processes: command, environment and streams of every worker of a round."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.config import Config
from launcher.credentials import PRIVATE
from launcher.environments import Place
from launcher.environments.foreign import step_variables
from launcher.environments.torch import TorchEnvironment
from launcher.errors import TemporaryError, shortage_hint
from launcher.mesh import Mesh
from launcher.narrator import workers
from launcher.node import Slot
from launcher.output.layout import LogLayout
from launcher.output.streams import Destination, destination, line_prefix
from launcher.roster import Share
from launcher.warden import WorkerSpec

if TYPE_CHECKING:
    from launcher.output.pump import OutputPump, StreamName

_RUN_PATH = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
_LINE_PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


class WorkerMaker:
    """Makes the workers of one job on this node; `parent` is the environment that they inherit."""

    def __init__(
        self,
        *,
        config: Config,
        mesh: Mesh,
        slots: Sequence[Slot],
        host: str,
        layout: LogLayout,
        parent: Mapping[str, str],
    ) -> None:
        self._config = config
        self._mesh = mesh
        self._slots = slots
        self._host = host
        self._layout = layout
        self._parent = parent
        self._unset = (*step_variables(parent), *sorted(PRIVATE.intersection(parent)))
        self._extra: dict[str, str] = {}
        self._environment = TorchEnvironment(
            virtual_local_rank=config.virtual_local_rank, signals_to_handle=config.signals_to_handle
        )

    @property
    def slot_count(self) -> int:
        """How many workers this node can run."""
        return len(self._slots)

    def add(self, variables: Mapping[str, str]) -> None:
        """What every worker gets in its environment besides, whatever its rank."""
        self._extra.update(variables)

    @property
    def captures(self) -> bool:
        """Whether any stream of any worker goes through the agent."""
        return any(way.is_captured for way in self._destinations())

    def remarks(self) -> list[str]:
        """Sentences for the start: which options name workers that there are not, and where the log files are."""
        config, count = self._config, len(self._slots)
        named = {
            "redirects": config.redirects.by_rank or (),
            "tee": config.tee.by_rank or (),
            "local_ranks_filter": config.local_ranks_filter or (),
        }
        sentences = []
        for field, ranks in named.items():
            missing = sorted(rank for rank in ranks if rank >= count)
            if missing:
                numbers = ", ".join(map(str, missing))
                sentences.append(f"{config.origins[field]} names {numbers}, but the last local rank is {count - 1}")
        if any(way.to_file for way in self._destinations()):
            sentences.append(f"log files are in {self._layout.root}")
        return sentences

    def make(self, round: int, restart_count: int, share: Share, pump: OutputPump | None) -> list[WorkerSpec]:
        """One spec per rank of the share. Raises UsageError if the environment cannot be made, TemporaryError where
        this machine gives too little for the streams.
        """
        ranks = range(len(share.ranks))
        try:
            return [self._worker(round, restart_count, share, local_rank, pump) for local_rank in ranks]
        except OSError as error:
            hint = shortage_hint(error.errno)
            raise TemporaryError(f"cannot prepare {workers(len(ranks))}: {error.strerror}", hint) from error

    def error_file(self, round: int, restart_count: int, local_rank: int) -> str:
        return self._layout.error_file(round, restart_count, local_rank)

    def _worker(
        self, round: int, restart_count: int, share: Share, local_rank: int, pump: OutputPump | None
    ) -> WorkerSpec:
        place = self._place(round, restart_count, share, local_rank)
        environment = self._environment.variables(place, self._parent)
        files = [
            self._stream("stdout", round, restart_count, place, pump),
            self._stream("stderr", round, restart_count, place, pump),
        ]
        return WorkerSpec(
            local_rank=local_rank,
            argv=self._command(local_rank),
            env={**environment, **self._extra},
            unset=self._unset,
            stdout=files[0],
            stderr=files[1],
        )

    def _place(self, round: int, restart_count: int, share: Share, local_rank: int) -> Place:
        rank = share.ranks[local_rank]
        return Place(
            run_id=self._layout.run_id,
            round=round,
            restart_count=restart_count,
            max_restarts=self._config.max_restarts,
            rank=rank,
            world_size=share.world_size,
            local_rank=local_rank,
            local_world_size=len(share.ranks),
            group_rank=share.group_rank,
            group_world_size=share.group_world_size,
            role=self._config.role,
            role_rank=share.role_ranks[local_rank],
            role_world_size=share.role_world_size,
            master_addr=share.master_addr,
            master_port=share.master_port,
            mesh_axes=tuple(axis.name for axis in self._mesh.axes),
            mesh_shape=share.shape,
            mesh_coordinates=self._mesh.coordinates(rank, share.shape),
            slot=self._slots[local_rank],
            error_file=self._layout.error_file(round, restart_count, local_rank),
        )

    def _command(self, local_rank: int) -> tuple[str, ...]:
        """torchrun's four ways to start a worker; -u, so that what it prints before it dies is seen."""
        config, python = self._config, self._config.python
        arguments = tuple(_with_local_rank(argument, local_rank) for argument in config.script_args)
        match config.launch_mode:
            case "script":
                return (python, "-u", config.script, *arguments)
            case "module":
                return (python, "-u", "-m", config.script, *arguments)
            case "path":
                return (python, "-u", "-c", _RUN_PATH, config.script, *arguments)
            case "program":
                return (config.script, *arguments)

    def _destinations(self) -> Iterator[Destination]:
        for local_rank in range(len(self._slots)):
            yield self._destination(local_rank, 0)
            yield self._destination(local_rank, 1)

    def _destination(self, local_rank: int, stream_index: int) -> Destination:
        config = self._config
        return destination(
            is_redirected=config.redirects.of(local_rank)[stream_index],
            is_teed=config.tee.of(local_rank)[stream_index],
            is_filtered_out=config.local_ranks_filter is not None and local_rank not in config.local_ranks_filter,
            keeps_files=self._layout.keeps_files,
        )

    def _stream(
        self, stream: StreamName, round: int, restart_count: int, place: Place, pump: OutputPump | None
    ) -> int | None:
        """The descriptor this worker writes to, or None for the agent's own."""
        way = self._destination(place.local_rank, 0 if stream == "stdout" else 1)
        if way.inherits:
            return None
        if not way.is_captured or pump is None:
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        path = self._layout.stream_file(round, restart_count, place.local_rank, stream) if way.to_file else None
        return pump.open_stream(
            stream=stream,
            local_rank=place.local_rank,
            rank=place.rank,
            path=path,
            prefix=self._prefix(place) if way.to_console else None,
        )

    def _prefix(self, place: Place) -> bytes:
        return line_prefix(
            role=place.role,
            local_rank=place.local_rank,
            rank=place.rank,
            host=self._host if place.group_world_size > 1 else None,
            template=self._parent.get(_LINE_PREFIX),
        )


def _with_local_rank(argument: str, local_rank: int) -> str:
    """torchrun's only macro: ${local_rank}, by the rules of string.Template."""
    if "$" not in argument:
        return argument
    from string import Template  # seldom needed

    return Template(argument).safe_substitute(local_rank=local_rank)
