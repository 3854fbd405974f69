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
from collections.abc import Mapping, Sequence

from msgspec import Struct

from launcher.config import plugins
from launcher.config.config import LocalityOptions
from launcher.hardware.slice_identity import SliceIdentity
from launcher.locality.clouds import CloudSource
from launcher.locality.contract import Hints, Level, Source
from launcher.locality.explicit import read_explicit
from launcher.locality.interconnects import NvlinkSource, SliceSource
from launcher.locality.kubernetes import Source as KubernetesSource
from launcher.locality.merge import SourceResult, keep_usable_levels, merge
from launcher.locality.slurm import Source as SlurmSource
from launcher.model.errors import UsageError, sanitize
from launcher.model.node import Device

LIMIT_S = 2.0
GROUP = "meshrun.locality"
BUILT_IN = ("slice", "nvlink", "kubernetes", "slurm", "oci", "azure", "gce", "aws")
"""In order of trust: the hardware, the scheduler that placed this process, the owner of the machine."""
_OUTER = ("region", "zone")  # nodes of one job are rarely in two


class Locality(Struct, frozen=True):
    """This node's place in the network, from all sources."""

    levels: tuple[Level, ...]
    """Outermost first, one domain for each."""
    remarks: tuple[str, ...]
    """Sentences for the user."""
    results: tuple[SourceResult, ...]
    """Of each source that was queried."""
    identity: SliceIdentity | None = None
    """Of the TPU slice that this node is a host of."""
    unknown: str = ""
    """The one of the remarks that says why nothing is known, or nothing that is nearer than a zone."""

    @property
    def path(self) -> tuple[tuple[str, str], ...]:
        """Level and domain, for the other nodes."""
        return tuple((level.name, level.domain) for level in self.levels)


def resolve_locality(
    options: LocalityOptions,
    environ: Mapping[str, str],
    *,
    names: Sequence[str],
    devices: Sequence[Device] = (),
    limit_s: float = LIMIT_S,
) -> Locality:
    """Resolve this node's locality.

    `names`: the node's name, its host's, and its address. Raises UsageError where the user's settings are wrong.
    """
    own = SliceSource(devices)
    sources = _choose_sources(options, environ, devices, own)
    said = read_explicit(options, names)
    found = tuple(map(keep_usable_levels, query_sources(sources, environ, limit_s)))
    merged = merge((*said, *found))
    remarks, unknown = merged.remarks, ""
    if options.locality_sources != () and all(level.name in _OUTER for level in merged.levels):
        unknown = _describe_unknown(merged.levels, found)
        remarks = (*remarks, unknown)
    return Locality(merged.levels, remarks, (*said, *found), own.identity, unknown)


def query_sources(sources: Sequence[Source], environ: Mapping[str, str], limit_s: float) -> tuple[SourceResult, ...]:
    """Query each source in a daemon thread of its own, until the limit; return the results in the order of them."""
    deadline = time.monotonic() + limit_s
    results = [SourceResult(source.name, (), f"no answer within {limit_s:g} s") for source in sources]

    def ask(number: int, source: Source) -> None:
        results[number] = _query(source, environ, limit_s)

    threads = [
        threading.Thread(target=ask, args=(number, source), name=f"locality {source.name}", daemon=True)
        for number, source in enumerate(sources)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return tuple(results)


def _query(source: Source, environ: Mapping[str, str], limit_s: float) -> SourceResult:
    try:
        found = Hints(*source.look(environ, limit_s))
        hints = Hints(tuple(Level(*level) for level in found.levels), sanitize(str(found.reason)))
    except UsageError as error:
        hints = Hints((), str(error))
    except Exception as error:  # the job does not depend on a plug-in
        hints = Hints((), sanitize(f"failed with {type(error).__name__}: {error}"))
    return SourceResult(source.name, *hints)


def make_built_in(name: str, devices: Sequence[Device]) -> Source:
    """The source of that name, one of BUILT_IN except "slice"."""
    if name == "nvlink":
        return NvlinkSource(devices)
    if name == "kubernetes":
        return KubernetesSource()
    return SlurmSource() if name == "slurm" else CloudSource(name)


def _choose_sources(
    options: LocalityOptions, environ: Mapping[str, str], devices: Sequence[Device], slice_source: SliceSource
) -> list[Source]:
    """Choose the sources to query, in order of trust. Raises UsageError for an unknown name.

    The slice is always queried where there are signs of one: its chips cannot be used without.
    """
    found: list[Source] = []
    if options.locality_sources is None:
        built_in = [make_built_in(name, devices) for name in BUILT_IN[1:]]
        found += [source for source in built_in if source.is_likely(environ)]
    for name in options.locality_sources or ():
        if name == "slice":
            found.append(slice_source)
        elif name in BUILT_IN:
            found.append(make_built_in(name, devices))
        else:
            found.append(PluginSource(name, options.origins["locality_sources"]))
    if slice_source not in found and slice_source.is_likely(environ):
        found.insert(0, slice_source)
    return found


class PluginSource:
    """A source from another package."""

    def __init__(self, name: str, asked_by: str) -> None:
        self.name = name
        self._plugin = plugins.load(GROUP, name, asked_by, built_in=BUILT_IN)

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return True

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        return plugins.ask(self._plugin, "look", Hints, environ, limit_s)


def _describe_unknown(levels: Sequence[Level], found: Sequence[SourceResult]) -> str:
    """Return why nothing is known, or nothing that is nearer than a zone, in one sentence."""
    asked = "; ".join(f"{one.source}: {one.reason}" for one in found)
    why = asked or "no sign of Kubernetes, Slurm or a cloud; set it with --locality"
    what = "switch" if levels else "place in the network"
    return f"this node's {what} is unknown: {why}"
