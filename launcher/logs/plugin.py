"""A plug-in that decides where workers' output goes, by torchrun's contract: --logs-specs NAME.

An installed distribution offers a class under the entry point group torchrun.logs_specs. torchrun 2.13 makes one
object of it with the options' values, and calls it in every round for the paths of all workers (`reify`). Its paths are
followed here: "" is the console, /dev/null discards, and a stream is teed where its file is named a second time. How
lines reach the files and the console is ours. torch is imported only if the plug-in does so; without it the plug-in
gets flags with the values of torch's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import IntFlag
from typing import Any

from launcher.config.config import Config
from launcher.config.options.readers import Streams
from launcher.config.plugins import find_logs_specs
from launcher.logs.routes import STREAMS, Route
from launcher.model.errors import UsageError, sanitize

_PATHS = (*(f"{stream}s" for stream in STREAMS), *(f"tee_{stream}s" for stream in STREAMS), "error_files")


class Std(IntFlag):
    """torch's name for a choice of streams."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


class PluginRoutes:
    """Has the methods of `PlainRoutes`. `warn` gets each sentence once.

    Raises UsageError if the plug-in cannot be loaded or refuses the options.
    """

    captures = True

    def __init__(self, config: Config, worker_count: int, warn: Callable[[str], None]) -> None:
        assert config.logs_specs is not None
        self._label = f"{config.origins['logs_specs']}={config.logs_specs}"
        self._entry = find_logs_specs(config.logs_specs, config.origins["logs_specs"])
        self._worker_count = worker_count
        self._warn = warn
        self._warned: set[str] = set()
        self._answer: Any = None
        self._paths: Mapping[str, Mapping[int, str]] = {what: {} for what in _PATHS}
        maker = self._call(self._entry.load)
        codes = _find_std()
        ranks = None if config.local_ranks_filter is None else set(config.local_ranks_filter)
        self._specs = self._call(
            maker,
            log_dir=config.log_dir,
            redirects=_encode_streams(config.redirects, codes),
            tee=_encode_streams(config.tee, codes),
            local_ranks_filter=ranks,
        )

    def begin(self, round: int, restart_count: int, environments: Mapping[int, dict[str, str]]) -> None:
        """Ask the plug-in for the paths of this round. Raises UsageError for an invalid answer."""
        for environment in environments.values():
            environment["TORCHELASTIC_ERROR_FILE"] = ""
        self._answer = self._call(self._specs.reify, environments)
        self._paths = {what: self._call(_read_paths, self._answer, what) for what in _PATHS}
        for stream in STREAMS:
            ranks = set(self._paths[f"{stream}s"])
            if ranks != set(environments):
                raise UsageError(
                    f"{self._label}: {self._entry.value} names the {stream} of {_format_ranks(ranks)}, "
                    f"there is {_format_ranks(environments)}"
                )
        for local_rank, environment in environments.items():
            for name, value in environment.items():
                if not isinstance(value, str):
                    raise UsageError(f"{self._label}: {self._entry.value} sets {name} to {value!r}, which is no text")
            if not environment.get("TORCHELASTIC_ERROR_FILE"):
                environment["TORCHELASTIC_ERROR_FILE"] = self.find_error_file(round, restart_count, local_rank)

    def find_route(self, local_rank: int, stream: str) -> Route:
        path, teed = self._paths[f"{stream}s"][local_rank], self._paths[f"tee_{stream}s"].get(local_rank)
        if not path:
            return Route(inherits=True)
        if path == os.devnull:
            return Route()
        if teed not in (None, path, os.devnull):
            self._warn_once(f"{self._label} tees {teed}, which is not the file of that {stream}: not shown")
        return Route(path=path, to_console=teed == path)

    def find_filter_file(self, stream: str) -> str | None:
        if not any(self.find_route(local_rank, stream).to_console for local_rank in self._paths[f"{stream}s"]):
            self._warn_once(f"{self._label} tees no worker's {stream}: nothing is looked for there")
            return None
        path: str = self._call(os.fsdecode, getattr(self._answer, f"filtered_{stream}", ""))
        if not path or os.path.dirname(path) == os.devnull:
            self._warn_once(f"{self._label} names no file for lines that are looked for in {stream}")
            return None
        return path

    def find_error_file(self, round: int, restart_count: int, local_rank: int) -> str:
        path = self._paths["error_files"].get(local_rank, "")
        return "" if path == os.devnull else path

    def list_remarks(self) -> list[str]:
        root = getattr(self._specs, "root_log_dir", None)
        return [f"{self._label} ({self._entry.value}) says where output goes" + (f": {root}" if root else "")]

    def _call(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except (Exception, SystemExit) as error:
            what = f"{type(error).__name__}: {sanitize(str(error))}"
            raise UsageError(f"{self._label}: {self._entry.value} fails: {what}") from error

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._warn(sentence)


def _read_paths(answer: Any, what: str) -> dict[int, str]:
    """Return a part of the answer, which may contain any kind of paths, or be missing."""
    paths = {local_rank: os.fsdecode(path) for local_rank, path in (getattr(answer, what, None) or {}).items()}
    for local_rank, path in paths.items():
        if "\0" in path:
            raise ValueError(f"{what} of local rank {local_rank} is {path!r}")
    return paths


def _find_std() -> Any:
    """Return torch's own flags where the plug-in has imported torch."""
    torchs = sys.modules.get("torch.distributed.elastic.multiprocessing.api")
    return getattr(torchs, "Std", Std)


def _encode_streams(streams: Streams, codes: Any) -> Any:
    if streams.by_rank is None:
        return codes(streams.all_ranks)
    return {local_rank: codes(code) for local_rank, code in streams.by_rank.items()}


def _format_ranks(ranks: Iterable[int]) -> str:
    return f"local rank {', '.join(map(str, sorted(ranks)))}" if ranks else "no worker"
