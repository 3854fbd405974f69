"""The guide to meshes tells the truth: each mesh numbers the ranks as the framework it is meant for does.

Every framework's rule is written down here a second time, in the form in which that framework states it: strides
along an order, an enumeration of all places, a reshaped range. The mesh and the formula come from the page itself.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pytest

from launcher.model import mesh as meshes
from launcher.model import traffic
from launcher.model.mesh import Axis, Mesh
from tests.support.documents.pages import ROOT, blocks

PAGE = ROOT / "docs/train/meshes.md"
Numbers = Mapping[str, int]
Rule = Callable[[Numbers, Numbers], int]
"""(coordinates by name, sizes by name) -> rank."""


class Recipe(NamedTuple):
    """One text block of the page: what to write, and what follows from it."""

    heading: str
    mesh: str
    options: dict[str, str]
    formulas: dict[str, str]


def recipes() -> Iterator[Recipe]:
    headings = [
        (number, line.lstrip("# "))
        for number, line in enumerate(PAGE.read_text().splitlines(), 1)
        if re.match(r"##+ ", line)
    ]
    for block in blocks(PAGE):
        if block.language != "text":
            continue
        options = dict(re.findall(r"^--([\w-]+) (\S+)$", block.text, flags=re.MULTILINE))
        formulas = dict(re.findall(r"^(\w+) = (.+)$", block.text, flags=re.MULTILINE))
        assert len(options) + len(formulas) == len(block.text.splitlines()), f"{block.where}: a line of another form"
        yield Recipe([name for number, name in headings if number < block.line][-1], options["mesh"], options, formulas)


RECIPES = list(recipes())


def strides(order: str) -> Rule:
    """Megatron-LM: "tp-cp-dp-pp", the fastest first; global_rank = tp_rank + cp_rank * tp_size + ..."""

    def rank(at: Numbers, sizes: Numbers) -> int:
        stride, total = 1, 0
        for axis in order.split("-"):
            total += at[axis] * stride
            stride *= sizes[axis]
        return total

    return rank


def enumerated(*axes: str) -> Rule:
    """DeepSpeed's ProcessTopology: ranks are given out along the Cartesian product of the axes."""

    def rank(at: Numbers, sizes: Numbers) -> int:
        places = itertools.product(*(range(sizes[axis]) for axis in axes))
        return list(places).index(tuple(at[axis] for axis in axes))

    return rank


def reshaped(*axes: str) -> Rule:
    """torch's DeviceMesh and a JAX mesh: the numbers of all ranks, reshaped."""

    def rank(at: Numbers, sizes: Numbers) -> int:
        shape = [sizes[axis] for axis in axes]
        return int(np.arange(math.prod(shape)).reshape(shape)[tuple(at[axis] for axis in axes)])

    return rank


def runs(group: str, others: str) -> Rule:
    """DeepSpeed's tensor, sequence and expert groups: group i is the ranks from i * size to (i + 1) * size - 1."""
    return lambda at, sizes: range(at[others] * sizes[group], (at[others] + 1) * sizes[group])[at[group]]


def hybrid(at: Numbers, sizes: Numbers) -> int:
    """JAX's create_hybrid_device_mesh: one mesh per slice, put together in blocks."""
    slow, fast = (sizes["data_dcn"], sizes["fsdp_dcn"]), (sizes["data"], sizes["fsdp"])
    slices = np.arange(math.prod(slow) * math.prod(fast)).reshape(*slow, *fast)
    joined = np.block([list(row) for row in slices])
    row = at["data_dcn"] * fast[0] + at["data"]
    return int(joined[row, at["fsdp_dcn"] * fast[1] + at["fsdp"]])


MAXTEXT_AXES = (
    *("diloco", "data", "stage", "fsdp", "fsdp_transpose"),
    *("context", "context_usp_ulysses", "context_autoregressive"),
    *("tensor", "tensor_sequence", "expert", "autoregressive"),
)


def maxtext(at: Numbers, sizes: Numbers) -> int:
    """The mesh of its base.yml: one slice after the other along data, devices of a slice by the axes in order."""
    zeros = dict.fromkeys(MAXTEXT_AXES, 0)
    return reshaped(*MAXTEXT_AXES)({**zeros, **at}, {**dict.fromkeys(zeros, 1), **sizes})


def of_experts(order: str) -> Rule:
    """Megatron-LM's grid of experts with expert-tensor groups of one rank: ep and edp are coordinates."""
    rule = strides(order)
    return lambda at, sizes: rule({**at, "etp": 0}, {**sizes, "etp": 1, "ep": sizes["pair"] * sizes["tp"]})


def whole_dp(rule: Rule, inner: str, dp: str, outer: str) -> Rule:
    """The grid in which the axes `outer` and `inner` of the mesh are one."""
    return lambda at, sizes: rule(at, {**sizes, dp: sizes[outer] * sizes[inner]})


# Heading -> the framework's own rules. Several: its grids over the same ranks, which must agree.
RULES: dict[str, list[Rule]] = {
    "Megatron-LM": [strides("tp-cp-dp-pp")],
    "Megatron-LM with --use-tp-pp-dp-mapping": [strides("tp-cp-pp-dp")],
    "Megatron-LM with experts": [strides("tp-ep-edp-pp"), whole_dp(strides("tp-dp-pp"), "ep", "dp", "edp")],
    "Megatron-LM with experts 2": [of_experts("etp-ep-edp-pp"), whole_dp(strides("tp-dp-pp"), "pair", "dp", "edp")],
    "torchtitan": [reshaped("pp", "dp_replicate", "dp_shard", "cp", "tp")],
    "torchtitan with experts": [
        reshaped("pp", "dp_replicate", "efsdp", "ep"),
        whole_dp(reshaped("pp", "dp_replicate", "dp_shard"), "ep", "dp_shard", "efsdp"),
    ],
    "DeepSpeed with num_stages": [enumerated("pipe", "data")],
    "DeepSpeed with PipeModelDataParallelTopology": [enumerated("pipe", "data", "model")],
    "DeepSpeed with groups of consecutive ranks": [runs("sp", "dp"), reshaped("dp", "sp")],
    "accelerate": [reshaped("dp_replicate", "dp_shard", "cp", "tp")],
    "PyTorch": [reshaped("dp")],
    "PyTorch HSDP": [reshaped("dp_replicate", "dp_shard")],
    "JAX": [reshaped("data", "model")],
    "JAX hybrid meshes": [hybrid],
    "MaxText": [maxtext],
}


def keys() -> list[str]:
    """The headings; a second block below the same one has the number 2."""
    seen: dict[str, int] = {}
    found = []
    for recipe in RECIPES:
        seen[recipe.heading] = seen.get(recipe.heading, 0) + 1
        found.append(recipe.heading + (f" {seen[recipe.heading]}" if seen[recipe.heading] > 1 else ""))
    return found


CASES = list(zip(keys(), RECIPES, strict=True))
EACH_RECIPE = pytest.mark.parametrize(("key", "recipe"), CASES, ids=[key for key, _ in CASES])


def resized(mesh: Mesh) -> Iterator[Mesh]:
    """The mesh as the page has it, with 3 for *, and the same axes in small sizes of every kind."""
    yield Mesh(axes=tuple(Axis(name=axis.name, size=axis.size or 3) for axis in mesh.axes))
    for start in range(4):
        sizes = itertools.islice(itertools.cycle((2, 3, 1, 4)), start, None)
        yield Mesh(axes=tuple(Axis(name=axis.name, size=next(sizes)) for axis in mesh.axes))


def value(formula: str, names: Numbers) -> int:
    """A formula of the page: · multiplies, and nothing is there but names, sums and brackets."""
    assert re.fullmatch(r"[\w ·+()]+", formula), formula
    return int(eval(formula.replace("·", "*"), {"__builtins__": {}}, dict(names)))


@EACH_RECIPE
def test_the_mesh_numbers_ranks_as_the_framework_does(key: str, recipe: Recipe) -> None:
    for mesh in resized(meshes.parse(recipe.mesh)):
        shape = mesh.resolve_shape(mesh.replica_size)
        sizes = {axis.name: size for axis, size in zip(mesh.axes, shape, strict=True)}
        for rank in range(0, mesh.replica_size, max(1, mesh.replica_size // 40)):
            at = dict(zip(sizes, mesh.find_coordinates(rank, shape), strict=True))
            names = {**at, **{name.upper(): size for name, size in sizes.items()}}
            assert value(recipe.formulas["rank"], names) == rank
            derived = {name: value(formula, names) for name, formula in recipe.formulas.items() if name != "rank"}
            for rule in RULES[key]:
                assert rule({**at, **derived}, sizes) == rank


def test_every_framework_has_its_rule_and_the_table_of_traffic_says_what_is_usual() -> None:
    assert [key for key, _ in CASES] == list(RULES)
    section = (ROOT / "docs/concepts/placement.md").read_text().split("\n## Traffic: ")[1].split("\n## ")[0]
    found = {}
    for axes, kind, weight in re.findall(r"^\| (`.*`) \| (\w+) \| (\d+) \|$", section, flags=re.MULTILINE):
        found |= {axis: traffic.DefaultTraffic(kind, int(weight)) for axis in re.findall(r"`(\w+)`", axes)}
    assert found == traffic.DEFAULTS


@EACH_RECIPE
def test_what_stands_below_a_mesh_fits_it(key: str, recipe: Recipe) -> None:
    mesh = meshes.parse(recipe.mesh)
    assert set(recipe.options) <= {"mesh", "traffic"}
    traffic.parse(recipe.options.get("traffic", f"{mesh.axes[0].name}=1"), mesh)


def test_meshes_and_traffic_in_tables_and_text_are_those_of_the_recipes_and_can_be_read() -> None:
    text = PAGE.read_text()
    overview = re.findall(r"^\| \[.*?\| `(\S+)` \|", text, flags=re.MULTILINE)
    assert len(overview) == 10
    assert set(overview) <= {recipe.mesh for recipe in RECIPES}
    inline = re.findall(r"`--mesh (\S+?)(?: --traffic (\S+))?`", PAGE.read_text())
    assert inline
    for mesh, talk in inline:
        traffic.parse(talk or f"{meshes.parse(mesh).axes[0].name}=1", meshes.parse(mesh))
