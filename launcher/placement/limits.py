"""The contract of the planner, which assigns ranks to nodes.

Two pure functions over frozen values. `assess_feasibility` returns quickly how large a world the present nodes could
form; `plan` assigns the ranks. Neither reads a clock, a file or a random number, and neither depends on the order of
its nodes. `Limits` say which plans are valid, `Costs` which of them is better.

A valid plan uses every rank once, makes the largest world that fits, gives a node's ranks in device order
and consecutively, and leaves the other nodes as spares. Where the user has numbered the nodes, their ranks follow the
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from launcher.model.traffic import Communicator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.model.rates import Rates


class AllOrNothing(Struct, frozen=True, kw_only=True):
    """Domains of `level` are used entirely or not at all; a complete one has `hosts` nodes (a TPU slice)."""

    level: str
    hosts: int


# docs/internals/decisions/0006-constraints-separate-from-costs.md
class Limits(Struct, frozen=True, kw_only=True):
    """The conditions of a valid plan.

    `nodes_min`, `nodes_max`: how many nodes may be active; `elastic_min`, `elastic_max`: sizes of the elastic axis.
    None is unbounded. `levels`: names of the levels of the nodes' paths, outermost first. `block_size`: aligned
    consecutive ranks that must sit on one node; None: the innermost axes that divide a node. `within`: axis -> level,
    every group of the axis stays inside one domain of the level ("host" is one, too). `is_contiguous`: all of a
    node's ranks are consecutive; else it may hold several runs of `block_size`.
    """

    nodes_min: int = 1
    nodes_max: int | None = None
    elastic_min: int = 1
    elastic_max: int | None = None
    levels: tuple[str, ...] = ()
    block_size: int | None = None
    within: Mapping[str, str] = field(default_factory=dict)
    all_or_nothing: AllOrNothing | None = None
    is_contiguous: bool = True


class Costs(Struct, frozen=True, kw_only=True):
    """The cost of a valid plan: its traffic times the level costs, and the ranks that move.

    `traffic` None: the usual one for the axes' names. `level_costs`: level or "host" -> cost of a hop that leaves
    a domain of it; a level that is not named has its usual cost. `move_cost`: of a rank whose coordinates move to
    another node; None: moving all ranks is worth 5 % of the plan's cost. `rates`: of the network's links; where they
    are known, the time of a step chooses between the plans that the search finds by cost.
    """

    traffic: tuple[Communicator, ...] | None = None
    level_costs: Mapping[str, int | float] = field(default_factory=dict)
    move_cost: int | float | None = None
    rates: Rates | None = None


class PartTime(Struct, frozen=True, kw_only=True):
    """The time of one communicator, and the link it waits for: "leaf l1's uplink"; "" if nothing limits it.

    `amount`: the weight that the link carries one way. `rate`: in bits per second, 0 without a link.
    """

    communicator: Communicator
    seconds: float
    link: str = ""
    amount: float = 0.0
    rate: int = 0


class StepTime(Struct, frozen=True, kw_only=True):
    """The time of a step's communication, whose parts follow each other and overlap a little.

    `seconds`: at most the sum of the parts. `is_absolute`: in seconds; else only in proportion, because the weights are
    no bytes.
    """

    parts: tuple[PartTime, ...]
    seconds: float
    is_absolute: bool

    @property
    def overlap(self) -> float:
        """How much shorter the step is than its parts one after the other."""
        total = 0.0
        for part in self.parts:  # `sum` rounds differently from Python 3.12 on
            total += part.seconds
        return max(0.0, total - self.seconds)


class Feasibility(Struct, frozen=True, kw_only=True):
    """The largest world the nodes could form; 0 ranks on 0 nodes if none.

    `is_full`: further nodes could not enlarge it.
    """

    world_size: int
    node_count: int
    is_full: bool
    reason: str


class Plan(Struct, frozen=True, kw_only=True):
    """Slot <-> rank for a round.

    `ranks`: node id -> its ranks, one per used slot in slot order; `spares`: nodes left out, in the order of
    use; `moved`: the number of ranks whose coordinates were on another node before. `cost`: level costs
    times traffic, called J; `lower_bound`: of any plan of this world. `unusable`: of the spares those
    whose domain cannot be used as a whole, with the reason. `step_time`: None where no rates are known.
    """

    shape: tuple[int, ...]
    ranks: Mapping[str, tuple[int, ...]]
    spares: tuple[str, ...]
    moved: int
    reasons: tuple[str, ...]
    cost: int | float = 0
    lower_bound: int | float = 0
    unusable: Mapping[str, str] = field(default_factory=dict)
    step_time: StepTime | None = None

    @property
    def world_size(self) -> int:
        return sum(len(ranks) for ranks in self.ranks.values())


NO_ITEM = -1
"""In place of an item: no present item held the unit before."""


class BlockRun(Struct, frozen=True):
    """Consecutive units on one item."""

    item: int
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


class LayoutChoice(Struct, frozen=True):
    """The chosen layout; J and its lower bound, both times `scale`; and remarks on it."""

    runs: list[BlockRun]
    cost: int
    bound: int
    scale: int = 1
    notes: tuple[str, ...] = ()
