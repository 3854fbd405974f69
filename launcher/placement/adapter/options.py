"""Parses the placement options: Limits and Costs.

The same options have the same meaning for a job and for `meshctl plan`. Each text is validated against the mesh
whose axes it names and against the levels of the network. "host" is a level of every network; the names of the
others come with the nodes. Where none are known yet, no option can name a level. Only a cost may be set for any
level, since a level whose domains no traffic leaves costs nothing.

Limits and Costs can be made options again, in one way only, so that the nodes of a job can compare theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from launcher.model import traffic
from launcher.model.errors import UsageError, sanitize, suggest
from launcher.model.mesh import Mesh
from launcher.model.topology import HOST
from launcher.model.traffic import parse_number
from launcher.placement.limits import AllOrNothing, Costs, Limits

if TYPE_CHECKING:
    from launcher.model.rates import Rates

_Value = TypeVar("_Value")

_DIGITS_MAX = 9  # more is a typing error
_ELASTIC_EXAMPLE = "use for example --elastic 1:64"
_WHOLE_EXAMPLE = "use for example --whole slice:4"


def parse_limits_and_costs(
    texts: Mapping[str, str],
    mesh: Mesh,
    *,
    levels: Sequence[str] = (),
    nodes_min: int = 1,
    nodes_max: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> tuple[Limits, Costs]:
    """Parse these texts for this mesh; `texts` are those of PLACEMENT_OPTIONS that were set, by name.

    `levels`: the network's levels, outermost first, as far as they are known. `variables`: name -> the variable or file
    of its text, for messages. Raises UsageError.
    """

    def read(name: str, parse: Callable[[str, str], _Value]) -> _Value | None:
        if name not in texts:
            return None
        try:
            return parse(texts[name], f"--{name} {sanitize(texts[name]) or repr('')}")
        except UsageError as error:
            from launcher.model import odd_text

            origin = f"{variables[name]}: " if variables and name in variables else ""
            raise UsageError(f"{origin}{error}", odd_text.explain(texts[name]) or error.hint) from None

    place = "on one machine" if nodes_max == 1 else "here"
    elastic_min, elastic_max = read("elastic", lambda text, what: _parse_elastic(text, what, mesh)) or (1, None)
    limits = Limits(
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        elastic_min=elastic_min,
        elastic_max=elastic_max,
        levels=tuple(levels),
        block_size=read("unit", _parse_count),
        within=read("within", lambda text, what: _parse_within(text, what, mesh, levels, place)) or {},
        all_or_nothing=read("whole", lambda text, what: _parse_all_or_nothing(text, what, levels, place)),
    )
    costs = Costs(
        traffic=read("traffic", lambda text, what: traffic.parse(text, mesh, what)),
        level_costs=read("level-costs", lambda text, what: _parse_level_costs(text, what, levels)) or {},
        rates=read("rates", lambda text, what: _parse_rates(text, what, levels)),
    )
    return limits, costs


def list_options(limits: Limits, costs: Costs) -> dict[str, str]:
    """Return limits and costs as options with their values, in one spelling: equal limits give equal texts."""
    options = {"--nnodes": _format_bounds(limits.nodes_min, limits.nodes_max)}
    if (limits.elastic_min, limits.elastic_max) != (1, None):
        options["--elastic"] = _format_bounds(limits.elastic_min, limits.elastic_max)
    if limits.block_size is not None:
        options["--unit"] = str(limits.block_size)
    if limits.within:
        options["--within"] = _format_pairs(limits.within)
    if limits.all_or_nothing is not None:
        options["--whole"] = f"{limits.all_or_nothing.level}:{limits.all_or_nothing.hosts}"
    if costs.traffic is not None:
        options["--traffic"] = ",".join(map(str, costs.traffic))
    if costs.level_costs:
        options["--level-costs"] = _format_pairs(costs.level_costs)
    if costs.rates is not None:
        options["--rates"] = str(costs.rates)
    return options


def _format_pairs(values: Mapping[str, object]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(values.items()))


def _format_bounds(least: int, most: int | None) -> str:
    return f"{least}:{'' if most is None else most}"


def _parse_elastic(text: str, what: str, mesh: Mesh) -> tuple[int, int | None]:
    if mesh.elastic_axis is None:
        raise UsageError(f"{what}: mesh {mesh} has no elastic axis", "set the size of one of its axes to *")
    least, colon, most = (piece.strip() for piece in text.partition(":"))
    if colon and not (least or most):
        raise UsageError(f"{what} has neither a minimum nor a maximum", _ELASTIC_EXAMPLE)
    low = _parse_count(least, f"{what}: {least!r}", _ELASTIC_EXAMPLE) if least or not colon else 1
    high = low if not colon else _parse_count(most, f"{what}: {most!r}", _ELASTIC_EXAMPLE) if most else None
    if high is not None and low > high:
        raise UsageError(f"{what}: the minimum, {low}, is greater than the maximum, {high}")
    return low, high


def _parse_within(text: str, what: str, mesh: Mesh, levels: Sequence[str], place: str) -> dict[str, str]:
    axes = [axis.name for axis in mesh.axes]
    rules = _parse_pairs(text, what, "AXIS=LEVEL", "--within tp=host")
    for axis, level in rules.items():
        if axis not in axes:
            raise UsageError(f"{what}: mesh {mesh} has no axis {axis!r}", f"use one of {', '.join(axes)}")
        _require_level(level, what, (*levels, HOST), place)
    return rules


def _parse_all_or_nothing(text: str, what: str, levels: Sequence[str], place: str) -> AllOrNothing:
    level, _, count = (piece.strip() for piece in text.partition(":"))
    if level == HOST:
        raise UsageError(f"{what}: a host is a single node", "use --within AXIS=host to keep ranks on one host")
    _require_level(level, what, levels, place)
    if not count:
        raise UsageError(f"{what} has no number of hosts", _WHOLE_EXAMPLE)
    return AllOrNothing(level=level, hosts=_parse_count(count, f"{what}: {count!r}", _WHOLE_EXAMPLE))


def _parse_level_costs(text: str, what: str, levels: Sequence[str]) -> dict[str, int | float]:
    pairs = _parse_pairs(text, what, "LEVEL=COST", "--level-costs leaf=2,host=1")
    for level in pairs if levels else ():
        _require_level(level, what, (*levels, HOST), "")
    return {level: parse_number(cost, f"{what}: the cost of {level}") for level, cost in pairs.items()}


def _parse_rates(text: str, what: str, levels: Sequence[str]) -> Rates:
    from launcher.model.rates import DEVICE, parse_rates  # most jobs have none

    rates = parse_rates(text, what)
    for link in rates.links if levels else ():
        _require_level(link.level, what, (*levels, HOST, DEVICE), "")
    return rates


def _require_level(level: str, what: str, usable: Sequence[str], place: str) -> None:
    """`usable`: those that the option may name; `place`: where, for a network whose levels are not known."""
    if level in usable:
        return
    if not {*usable}.difference([HOST]):
        raise UsageError(
            f"{what}: unknown level {sanitize(level)}; {place} only host exists",
            f"use {HOST}" if usable else "leave it out",
        )
    question = suggest(level, {name: name for name in usable})
    hint = " ".join(filter(None, (question, f"use one of {', '.join(usable)}")))
    raise UsageError(f"{what}: unknown level {sanitize(level)}", hint)


def _parse_pairs(text: str, what: str, form: str, example: str) -> dict[str, str]:
    """Parse NAME=VALUE with commas between, every name once."""
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{what}: {part.strip()!r} is not {form}", f"use for example {example}")
        if name in pairs:
            raise UsageError(f"{what} names {name} twice")
        pairs[name] = value
    return pairs


def _parse_count(text: str, what: str, hint: str | None = None) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) > 0):
        raise UsageError(f"{what} is not a whole number from 1 to 999999999", hint)
    return int(text)
