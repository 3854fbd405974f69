"""Gathers this node's locality: the user's settings, and the results of sources.

The user's settings are read first, and an error in them ends the start. The sources of which there is any sign are
queried at the same time, each in a thread, because most wait for a server: metadata, Kubernetes. All together they have
two seconds, since a locality is worth less than a start; a source without an answer by then is ignored. Results are
merged in a fixed order of trust, so that the same results give the same locality on every start.

This starts threads, so it runs after the supervisor's fork, and only in jobs of several nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from launcher.config import plugins
from launcher.config.config import Config
from launcher.config.options.command_line import sanitize
from launcher.locality.contract import Hints, Level, Source
from launcher.locality.merge import SourceResult, keep_usable_levels, merge
from launcher.locality.sources.explicit import read_explicit
from launcher.locality.sources.slice import Source as SliceSource
from launcher.model.errors import UsageError
from launcher.model.node import Device
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.hardware.tpu.slice_identity import SliceIdentity

LIMIT_S = 2.0
GROUP = "meshrun.locality"
BUILT_IN = ("slice", "nvlink", "kubernetes", "slurm", "oci", "azure", "gce", "aws")
"""In order of trust: the hardware, the scheduler that placed this process, the owner of the machine."""
INFORMATIONAL = ("infiniband", "firmware")
"""Their results have no effect on the plan."""
_OUTER = ("region", "zone")  # nodes of one job are rarely in two


class Locality(NamedTuple):
    """`levels`: outermost first, one domain for each. `remarks`: sentences for the user. `results`: of each source that
    was queried.

    `identity`: of the TPU slice that this node is a host of.
    """

    levels: tuple[Level, ...]
    remarks: tuple[str, ...]
    results: tuple[SourceResult, ...]
    identity: SliceIdentity | None = None

    @property
    def path(self) -> tuple[tuple[str, str], ...]:
        """Level and domain, for the other nodes."""
        return tuple((level.name, level.domain) for level in self.levels)


def resolve_locality(
    config: Config,
    environ: Mapping[str, str],
    *,
    names: Sequence[str],
    devices: Sequence[Device] = (),
    is_thorough: bool = False,
    limit_s: float = LIMIT_S,
) -> Locality:
    """Resolve this node's locality.

    `names`: the node's name, its host's, and its address. `is_thorough`: query informational sources, too. Raises
    UsageError and TemporaryError where the user's settings are wrong.
    """
    own = SliceSource(devices)
    asking = SourceQuery(_choose_sources(config, environ, devices, own, is_thorough), environ, limit_s)
    said = read_explicit(config, environ, names)
    found = tuple(map(keep_usable_levels, asking.wait_for_results()))
    looked = (*said, *found)
    levels, remarks = merge(looked)
    if config.locality_sources != () and all(level.name in _OUTER for level in levels):
        remarks = (*remarks, _describe_unknown(levels, found))
    return Locality(levels, remarks, looked, own.identity)


class SourceQuery:
    """A query of sources, each in a daemon thread of its own."""

    def __init__(self, sources: Iterable[Source], environ: Mapping[str, str], limit_s: float) -> None:
        self._names: list[str] = []
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._results: dict[int, SourceResult] = {}
        self._condition = threading.Condition()
        for number, source in enumerate(sources):
            self._names.append(source.name)
            threading.Thread(
                target=self._ask, args=(number, source, environ), name=f"locality {source.name}", daemon=True
            ).start()

    def wait_for_results(self) -> tuple[SourceResult, ...]:
        """Wait for all sources or until the limit; return the results in the order of the sources."""
        with self._condition:
            self._condition.wait_for(
                lambda: len(self._results) == len(self._names), max(0.0, self._deadline - time.monotonic())
            )
            late = f"it has not answered within {self._limit_s:g} s"
            return tuple(self._results.get(at) or SourceResult(name, (), late) for at, name in enumerate(self._names))

    def _ask(self, number: int, source: Source, environ: Mapping[str, str]) -> None:
        try:
            levels, reason = source.look(environ, self._limit_s)
            hints = Hints(tuple(Level(*level) for level in levels), sanitize(str(reason)))
        except UsageError as error:
            hints = Hints((), str(error))
        except Exception as error:  # the job does not depend on a plug-in
            hints = Hints((), sanitize(f"it has failed with {type(error).__name__}: {error}"))
        with self._condition:
            self._results[number] = SourceResult(source.name, *hints)
            self._condition.notify_all()


def make_built_in(name: str, devices: Sequence[Device]) -> Source:
    """The source of that name, one of BUILT_IN or WEAK."""
    if name == "nvlink":
        from launcher.locality.sources import nvlink

        return nvlink.Source(devices)
    if name in INFORMATIONAL:
        from launcher.locality.sources import infiniband

        return infiniband.InfinibandSource() if name == "infiniband" else infiniband.FirmwareSource()
    from importlib import import_module

    source: Source = import_module(f"launcher.locality.sources.{name}").Source()
    return source


def _choose_sources(
    config: Config, environ: Mapping[str, str], devices: Sequence[Device], slice_source: SliceSource, is_thorough: bool
) -> list[Source]:
    """Choose the sources to query, in order of trust. Raises UsageError for an unknown name.

    The slice is always queried where there are signs of one: its chips cannot be used without.
    """
    named = config.locality_sources
    if named is None:
        likely = [make_built_in(name, devices) for name in BUILT_IN[1:]]
        found = [source for source in likely if _is_likely(source, environ)]
    else:
        origin = config.origins["locality_sources"]
        found = [slice_source if name == "slice" else _make_source(name, devices, origin) for name in named]
    if slice_source not in found and slice_source.is_likely(environ):
        found.insert(0, slice_source)
    weak = [make_built_in(name, devices) for name in INFORMATIONAL] if is_thorough else []
    return [*found, *(source for source in weak if source.is_likely(environ))]


class PluginSource:
    """A source from another package."""

    def __init__(self, name: str, asked_by: str) -> None:
        self.name = name
        self._plugin = plugins.load(GROUP, name, asked_by, built_in=BUILT_IN)

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return True

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        return plugins.ask(self._plugin, "look", Hints, environ, limit_s)


def _make_source(name: str, devices: Sequence[Device], asked_by: str) -> Source:
    return make_built_in(name, devices) if name in BUILT_IN else PluginSource(name, asked_by)


def _is_likely(source: Source, environ: Mapping[str, str]) -> bool:
    try:
        return source.is_likely(environ)
    except OSError:
        return False


def _describe_unknown(levels: Sequence[Level], found: Sequence[SourceResult]) -> str:
    """Return why nothing is known, or nothing that is nearer than a zone, in one sentence."""
    asked = "; ".join(f"{source}: {reason}" for source, _, reason in found if source not in INFORMATIONAL)
    why = asked or "there is no sign here of Kubernetes, Slurm or a cloud that tells; --locality can"
    what = "which switch this node is on" if levels else "where this node stands"
    return f"no source says {what}: {why}"
