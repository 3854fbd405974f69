"""Everything that is known of where this node stands: what the user says, and what sources find.

The user's word is read first, and if it is wrong the start ends. The sources of which there is any sign are asked at
the same time, each in a thread, because most wait for somebody: a metadata server, Kubernetes. All together they have
two seconds, since a place in the network is worth less than a start; who has not answered by then is left behind. What
is known is merged in a fixed order of trust, so that the same answers give the same place on every start.

Threads are begun here, so it runs after the warden's fork, and only where there are other nodes to stand beside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from launcher import plugins
from launcher.config import Config
from launcher.errors import UsageError
from launcher.locality import Hints, Level, Source
from launcher.locality.explicit import explicit
from launcher.locality.merge import Looked, merge, usable
from launcher.locality.slice import Source as SliceSource
from launcher.node import Device
from launcher.options import shown
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.devices.tpu_slice import Identity

LIMIT_S = 2.0
GROUP = "meshrun.locality"
BUILT_IN = ("slice", "nvlink", "kubernetes", "slurm", "oci", "azure", "gce", "aws")
"""In order of trust: what the hardware says, what whoever placed this process says, what the machine's owner says."""
WEAK = ("infiniband", "firmware")
"""Nothing follows from what these say."""
_OUTER = ("region", "zone")  # nodes of one job are seldom in two


class Locality(NamedTuple):
    """`levels`: outermost first, one domain for each. `remarks`: sentences for people. `looked`: who was asked.

    `identity`: of the TPU slice that this node is a host of.
    """

    levels: tuple[Level, ...]
    remarks: tuple[str, ...]
    looked: tuple[Looked, ...]
    identity: Identity | None = None

    @property
    def place(self) -> tuple[tuple[str, str], ...]:
        """Level and domain, for the others."""
        return tuple((level.name, level.domain) for level in self.levels)


def gather(
    config: Config,
    environ: Mapping[str, str],
    *,
    names: Sequence[str],
    devices: Sequence[Device] = (),
    is_thorough: bool = False,
    limit_s: float = LIMIT_S,
) -> Locality:
    """What is known of this node's place.

    `names`: what the node is called, its host, and its address. `is_thorough`: look at what says nothing certain, too.
    Raises UsageError and TemporaryError where what the user says is wrong.
    """
    own = SliceSource(devices)
    asking = Asking(_sources(config, environ, devices, own, is_thorough), environ, limit_s)
    said = explicit(config, environ, names)
    found = tuple(map(usable, asking.answers()))
    looked = (*said, *found)
    levels, remarks = merge(looked)
    if config.locality_sources != () and all(level.name in _OUTER for level in levels):
        remarks = (*remarks, _unknown(levels, found))
    return Locality(levels, remarks, looked, own.identity)


class Asking:
    """Sources that are being asked, each in a thread of its own that nobody waits for in the end."""

    def __init__(self, sources: Iterable[Source], environ: Mapping[str, str], limit_s: float) -> None:
        self._names: list[str] = []
        self._limit_s = limit_s
        self._until = time.monotonic() + limit_s
        self._found: dict[int, Looked] = {}
        self._news = threading.Condition()
        for number, source in enumerate(sources):
            self._names.append(source.name)
            threading.Thread(
                target=self._ask, args=(number, source, environ), name=f"locality {source.name}", daemon=True
            ).start()

    def answers(self) -> tuple[Looked, ...]:
        """What has been answered once all have, or the time is up; in the order in which the sources were given."""
        with self._news:
            self._news.wait_for(lambda: len(self._found) == len(self._names), max(0.0, self._until - time.monotonic()))
            late = f"it has not answered within {self._limit_s:g} s"
            return tuple(self._found.get(at) or Looked(name, (), late) for at, name in enumerate(self._names))

    def _ask(self, number: int, source: Source, environ: Mapping[str, str]) -> None:
        try:
            levels, reason = source.look(environ, self._limit_s)
            hints = Hints(tuple(Level(*level) for level in levels), shown(str(reason)))
        except UsageError as error:
            hints = Hints((), str(error))
        except Exception as error:  # whatever is wrong in a plug-in, the job can do without it
            hints = Hints((), shown(f"it has failed with {type(error).__name__}: {error}"))
        with self._news:
            self._found[number] = Looked(source.name, *hints)
            self._news.notify_all()


def built_in(name: str, devices: Sequence[Device]) -> Source:
    """The source of that name, one of BUILT_IN or WEAK."""
    if name == "nvlink":
        from launcher.locality import nvlink

        return nvlink.Source(devices)
    if name in WEAK:
        from launcher.locality import hints

        return hints.Infiniband() if name == "infiniband" else hints.Firmware()
    from importlib import import_module

    source: Source = import_module(f"launcher.locality.{name}").Source()
    return source


def _sources(
    config: Config, environ: Mapping[str, str], devices: Sequence[Device], own: SliceSource, is_thorough: bool
) -> list[Source]:
    """Whom to ask, in order of trust. Raises UsageError for a name that means none.

    The slice is always asked for where there are signs of one: its chips cannot be used without.
    """
    named = config.locality_sources
    if named is None:
        likely = [built_in(name, devices) for name in BUILT_IN[1:]]
        found = [source for source in likely if _is_likely(source, environ)]
    else:
        origin = config.origins["locality_sources"]
        found = [own if name == "slice" else _named(name, devices, origin) for name in named]
    if own not in found and own.is_likely(environ):
        found.insert(0, own)
    weak = [built_in(name, devices) for name in WEAK] if is_thorough else []
    return [*found, *(source for source in weak if source.is_likely(environ))]


class FromPlugin:
    """A source that another package offers."""

    def __init__(self, name: str, asked_by: str) -> None:
        self.name = name
        self._plugin = plugins.load(GROUP, name, asked_by, built_in=BUILT_IN)

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return True

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        return plugins.ask(self._plugin, "look", Hints, environ, limit_s)


def _named(name: str, devices: Sequence[Device], asked_by: str) -> Source:
    return built_in(name, devices) if name in BUILT_IN else FromPlugin(name, asked_by)


def _is_likely(source: Source, environ: Mapping[str, str]) -> bool:
    try:
        return source.is_likely(environ)
    except OSError:
        return False


def _unknown(levels: Sequence[Level], found: Sequence[Looked]) -> str:
    """Why nothing is known, or nothing that is nearer than a zone, in one sentence."""
    asked = "; ".join(f"{source}: {reason}" for source, _, reason in found if source not in WEAK)
    why = asked or "there is no sign here of Kubernetes, Slurm or a cloud that tells; --locality can"
    what = "which switch this node is on" if levels else "where this node stands"
    return f"no source says {what}: {why}"
