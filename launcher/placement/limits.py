"""The contract of the planner, which assigns ranks to nodes.

Two pure functions over frozen values. `assess_feasibility` returns quickly how large a world the present nodes could
form; `plan` assigns the ranks. Neither reads a clock, a file or a random number, and neither depends on the order of
its nodes. `Limits` say which plans are valid, `Costs` which of them is better.

A valid plan uses every rank once, makes the largest world that fits, gives a node's ranks in device order
and consecutively, and leaves the other nodes as spares. Where the user has numbered the nodes, their ranks follow the
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from launcher.model.traffic import Communicator
from rendezvous.reasons import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fractions import Fraction

    from launcher.model.rates import Rates


NAMES_MAX = 8
"""Nodes that a reason names; with more, a line of a log would be too long."""


class NoWorldError(Exception):
    """There is no valid plan; why not is a value, so that the leader can pass it on."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def name_some(names: Sequence[str]) -> Reason:
    """Return these names as a value of a reason: the first few, and how many there are."""
    return Reason.of("placement/names", names=tuple(names[:NAMES_MAX]), count=len(names))


class AllOrNothing(Struct, frozen=True, kw_only=True):
    """Domains of `level` are used entirely or not at all; a complete one has `hosts` nodes (a TPU slice)."""

    level: str
    hosts: int


# docs/internals/decisions/0006-constraints-separate-from-costs.md
class Limits(Struct, frozen=True, kw_only=True):
    """The conditions of a valid plan. None is unbounded."""

    nodes_min: int = 1
    """How many nodes must be active."""
    nodes_max: int | None = None
    """How many nodes may be active."""
    elastic_min: int = 1
    """The smallest size of the elastic axis."""
    elastic_max: int | None = None
    """The largest size of the elastic axis."""
    levels: tuple[str, ...] = ()
    """Names of the levels of the nodes' paths, outermost first."""
    block_size: int | None = None
    """Aligned consecutive ranks that must be on one node; None: the innermost axes that divide a node."""
    within: Mapping[str, str] = field(default_factory=dict)
    """Axis to level: every group of the axis stays inside one domain of the level ("host" is one, too)."""
    all_or_nothing: AllOrNothing | None = None


class Costs(Struct, frozen=True, kw_only=True):
    """The cost of a valid plan: its traffic times the level costs."""

    traffic: tuple[Communicator, ...] | None = None
    """None: the usual one for the axes' names."""
    level_costs: Mapping[str, int | float] = field(default_factory=dict)
    """Level or "host" to the cost of a hop that leaves a domain of it; a level without an entry has its usual cost."""
    rates: Rates | None = None
    """Of the network's links; those of which none is known are assumed."""


class PartTime(Struct, frozen=True, kw_only=True):
    """The time of one communicator, and the link that limits it."""

    communicator: Communicator
    seconds: float
    link: str = ""
    """Such as "leaf l1's uplink", "" if nothing limits it."""
    amount: float = 0.0
    """The weight that the link carries one way."""
    rate: int = 0
    """In bits per second, 0 without a link or where its rate is assumed."""


class StepTime(Struct, frozen=True, kw_only=True):
    """The time of a step's communication, whose parts follow each other and overlap a little."""

    parts: tuple[PartTime, ...]
    seconds: float
    """At most the sum of the parts."""
    is_absolute: bool
    """In seconds; otherwise only in proportion, because weights are not bytes or rates are assumed."""
    assumed: tuple[str, ...] = ()
    """Levels of whose links nothing is told: they are assumed to be alike."""

    @property
    def overlap(self) -> float:
        """How much shorter the step is than its parts one after the other."""
        total = 0.0
        for part in self.parts:  # `sum` rounds differently from Python 3.12 on
            total += part.seconds
        return max(0.0, total - self.seconds)


class Plan(Struct, frozen=True, kw_only=True):
    """Slot <-> rank for a round."""

    shape: tuple[int, ...]
    ranks: Mapping[str, tuple[int, ...]]
    """Node id to its ranks, one per used slot in slot order."""
    spares: tuple[str, ...]
    """Nodes left out, in the order of use."""
    moved: int
    """Ranks whose coordinates were on another node before."""
    reasons: tuple[Reason, ...]
    cost: int | float = 0
    """Level costs times traffic, called J."""
    lower_bound: int | float = 0
    """Of any plan of this world."""
    unusable: Mapping[str, Reason] = field(default_factory=dict)
    """The spares whose domain cannot be used as a whole, with the reason."""
    step_time: StepTime | None = None
    """None where no search was needed."""

    @property
    def world_size(self) -> int:
        return sum(len(ranks) for ranks in self.ranks.values())


NO_ITEM = -1
"""In place of an item: no present item held the unit before."""


Run = tuple[int, int]
"""An item, and how many units it holds. Runs follow each other along the line of units."""


class LayoutChoice(Struct, frozen=True):
    """The chosen layout, J, and its lower bound."""

    runs: list[Run]
    cost: int | Fraction
    bound: int | Fraction
    step_time: StepTime | None = None
