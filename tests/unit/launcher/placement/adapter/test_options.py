"""What options ask of the placement: texts to limits and costs and back, and what cannot be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config import config
from launcher.config.options import command_line
from launcher.model import mesh as meshes
from launcher.model.errors import UsageError
from launcher.model.rates import parse_rates
from launcher.model.traffic import KINDS, parse
from launcher.placement.adapter import feasibility
from launcher.placement.adapter.options import list_options, parse_limits_and_costs
from launcher.placement.limits import AllOrNothing, Costs, Limits

MESH = "pp=4,dp=*,tp=8"
LEVELS = ("pod", "leaf")


def ask(texts: Mapping[str, str], mesh: str = MESH, levels: Sequence[str] = LEVELS) -> tuple[Limits, Costs]:
    return parse_limits_and_costs(texts, meshes.parse(mesh), levels=levels)


def refusal(texts: Mapping[str, str], mesh: str = MESH, levels: Sequence[str] = LEVELS) -> tuple[str, str | None]:
    with pytest.raises(UsageError) as caught:
        ask(texts, mesh, levels)
    return str(caught.value), caught.value.hint


def test_without_options_only_numbers_and_levels_are_set_and_bounds_need_their_axis() -> None:
    assert ask({}, levels=()) == (Limits(), Costs())
    found = parse_limits_and_costs({}, meshes.parse(MESH), levels=["leaf"], nodes_min=2, nodes_max=5)
    assert found == (Limits(nodes_min=2, nodes_max=5, levels=("leaf",)), Costs())
    hint = "set the size of one of its axes to *"
    assert refusal({"elastic": "1:4"}, "dp=4") == ("--elastic 1:4: mesh dp=4 has no elastic axis", hint)


def test_equal_wishes_are_written_alike_and_every_option_arrives() -> None:
    limits, costs = ask(
        {
            "traffic": "tp=100,dp=10", "unit": "8", "within": "tp=host, dp=pod", "whole": "leaf:4",
            "level-costs": "leaf=2,pod=4.5,host=0", "elastic": "2:64", "rates": "leaf=40Gbit,host=1GB",
        }
    )  # fmt: skip
    assert limits == Limits(
        elastic_min=2, elastic_max=64, levels=LEVELS, block_size=8, within={"tp": "host", "dp": "pod"},
        all_or_nothing=AllOrNothing(level="leaf", hosts=4),
    )  # fmt: skip
    traffic = parse("tp=100,dp=10", meshes.parse(MESH))
    assert costs == Costs(traffic=traffic, level_costs={"leaf": 2, "pod": 4.5, "host": 0},
                          rates=parse_rates("host=8Gbit,leaf=40Gbit"))  # fmt: skip
    one = ask({"traffic": "tp=100,dp=5", "within": "tp=host,dp=leaf", "level-costs": "leaf=2,host=1", "elastic": ":4"})
    other = ask(
        {
            "traffic": "dp=5:ring, tp=100.0",
            "within": "dp=leaf, tp=host",
            "level-costs": "host=1.0,leaf=2",
            "elastic": "1:4",
        }
    )
    assert list_options(*one) == list_options(*other)
    assert list_options(*one) == {
        "--nnodes": "1:",
        "--elastic": "1:4",
        "--within": "dp=leaf,tp=host",
        "--traffic": "pp=3:line,dp=5:ring,tp=100:ring",
        "--level-costs": "host=1,leaf=2",
    }
    assert list_options(Limits(nodes_min=2, nodes_max=4), Costs()) == {"--nnodes": "2:4"}


@pytest.mark.parametrize(
    ("texts", "least", "most"),
    [({"elastic": "1:64"}, 1, 64), ({"elastic": "3"}, 3, 3), ({"elastic": "3:"}, 3, None), ({"elastic": ":64"}, 1, 64)],
)
def test_the_elastic_axis_is_bounded_whatever_its_name(texts: dict[str, str], least: int, most: int | None) -> None:
    for mesh in (MESH, "fsdp=*,tp=8"):
        limits, _ = ask(texts, mesh)
        assert (limits.elastic_min, limits.elastic_max) == (least, most)


RANGE = "use for example --elastic 1:64"
NUMBER = "not a whole number from 1 to 999999999"


@pytest.mark.parametrize(
    ("texts", "sentence", "hint"),
    [
        ({"elastic": "4:2"}, "--elastic 4:2: the minimum, 4, is greater than the maximum, 2", None),
        ({"elastic": ":"}, "--elastic : has neither a minimum nor a maximum", RANGE),
        ({"elastic": "0:4"}, f"--elastic 0:4: '0' is {NUMBER}", RANGE),
        ({"elastic": "1:2:3"}, f"--elastic 1:2:3: '2:3' is {NUMBER}", RANGE),
        ({"rates": "leaf=40"}, "--rates leaf=40: the rate of leaf is '40', not a rate with a unit",
         "use for example 400Gbit (bits per second) or 50GB (bytes per second)"),
        ({"rates": "rack=4Gbit"}, "--rates rack=4Gbit: unknown level rack",
         "use one of pod, leaf, host, device"),
        ({"unit": "0"}, f"--unit 0 is {NUMBER}", None),
        ({"unit": "9999999999"}, f"--unit 9999999999 is {NUMBER}", None),
        ({"level-costs": "leaf"}, "--level-costs leaf: 'leaf' is not LEVEL=COST",
         "use for example --level-costs leaf=2,host=1"),
        ({"level-costs": "leaf=nan"}, "--level-costs leaf=nan: the cost of leaf is 'nan', not a number from 0 to 1e9",
         None),
        ({"level-costs": "leaf=1,leaf=2"}, "--level-costs leaf=1,leaf=2 names leaf twice", None),
        ({"level-costs": "rack=1"}, "--level-costs rack=1: unknown level rack", "use one of pod, leaf, host"),
        ({"within": "tp"}, "--within tp: 'tp' is not AXIS=LEVEL", "use for example --within tp=host"),
        ({"within": "ep=leaf"}, f"--within ep=leaf: mesh {MESH} has no axis 'ep'", "use one of pp, dp, tp"),
        ({"within": "tp=nvl"}, "--within tp=nvl: unknown level nvl", "use one of pod, leaf, host"),
        ({"within": "tp=leaf,tp=host"}, "--within tp=leaf,tp=host names tp twice", None),
        ({"whole": "slice:4"}, "--whole slice:4: unknown level slice", "use one of pod, leaf"),
        ({"whole": "leaf:none"}, f"--whole leaf:none: 'none' is {NUMBER}", "use for example --whole slice:4"),
        ({"whole": "leaf"}, "--whole leaf has no number of hosts", "use for example --whole slice:4"),
        ({"whole": "host"}, "--whole host: a host is a single node",
         "use --within AXIS=host to keep ranks on one host"),
        ({"traffic": "tp"}, "--traffic tp: 'tp' is not AXIS=WEIGHT", "use for example --traffic tp=100,dp=10,pp=3"),
        ({"traffic": "ep=1"}, f"--traffic ep=1: mesh {MESH} has no axis 'ep'", "use its axes: pp, dp, tp"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_in_a_sentence(texts: dict[str, str], sentence: str, hint: str | None) -> None:
    assert refusal(texts) == (sentence, hint)


def test_an_error_names_the_variable_and_a_job_says_by_which_it_was_asked() -> None:
    with pytest.raises(UsageError, match=r"^LAUNCHER_UNIT: --unit x is not a whole number") as caught:
        parse_limits_and_costs({"unit": "x", "elastic": "2"}, meshes.parse(MESH), variables={"unit": "LAUNCHER_UNIT"})
    assert caught.value.exit_code == 2
    with pytest.raises(
        UsageError, match=r"^LAUNCHER_WITHIN: --within tp=nvl: unknown level nvl; on one machine only host exists$"
    ):
        demands("--mesh=dp=*,tp=2", LAUNCHER_WITHIN="tp=nvl")
    with pytest.raises(UsageError, match=r"^--within tp=nvl: unknown level nvl; on one machine only host exists$"):
        demands("--mesh=dp=*,tp=2", "--within=tp=nvl")


COUNTS = st.integers(1, 99)
DECIMALS = st.one_of(st.integers(0, 10**9), st.integers(0, 10**9).map(lambda number: number / 10**6))


@st.composite
def texts(draw: st.DrawFn) -> dict[str, str]:
    """Options of which any may be missing, in any order and spelling."""

    def chosen(names: tuple[str, ...], values: st.SearchStrategy[object]) -> str:
        keys = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        return ", ".join(f"{key} = {draw(values)}" for key in keys)

    least = draw(COUNTS)
    weights = st.builds("{}{}".format, DECIMALS, st.sampled_from(["", *(f":{kind}" for kind in KINDS)]))
    every = {
        "elastic": draw(st.sampled_from([f"{least}", f"{least}:", f":{least}", f"{least}:{least + draw(COUNTS)}"])),
        "unit": str(draw(COUNTS)),
        "within": chosen(("pp", "dp", "tp"), st.sampled_from((*LEVELS, "host"))),
        "whole": f"leaf:{draw(COUNTS)}",
        "traffic": chosen(("pp", "dp", "tp", "tp+dp"), weights),
        "level-costs": chosen((*LEVELS, "host"), DECIMALS),
        "rates": chosen((*LEVELS, "host", "leaf:p0/l1", "leaf/host"), st.builds("{}kbit".format, COUNTS)),
    }
    return {name: every[name] for name in draw(st.lists(st.sampled_from(sorted(every)), unique=True))}


@settings(max_examples=50)
@given(texts())
def test_what_was_asked_can_be_written_as_options_that_ask_the_same(texts: dict[str, str]) -> None:
    mesh = meshes.parse(MESH)
    asked = parse_limits_and_costs(texts, mesh, levels=LEVELS)
    words = {name.removeprefix("--"): value for name, value in list_options(*asked).items()}
    assert words.pop("nnodes") == "1:"
    assert parse_limits_and_costs(words, mesh, levels=LEVELS) == asked


def demands(*words: str, **environ: str) -> tuple[Limits, Costs]:
    made = config.resolve(command_line.parse([*words, "train.py"]), environ, "python3")
    return feasibility.resolve_limits(made.placement)


def test_a_job_asks_what_its_options_and_variables_ask_of_levels_that_are_known() -> None:
    limits, costs = demands(
        "--mesh=dp=*,tp=2", "--within=tp=host", LAUNCHER_LEVEL_COSTS="host=2", LAUNCHER_ELASTIC="1:2"
    )
    assert limits == Limits(nodes_max=1, elastic_max=2, within={"tp": "host"})
    assert costs == Costs(level_costs={"host": 2})
    limits, costs = ask({"within": "tp=host", "level-costs": "leaf=2,host=1"}, levels=())
    assert (limits.within, costs.level_costs) == ({"tp": "host"}, {"leaf": 2, "host": 1})
    assert refusal({"within": "dp=leaf"}, levels=()) == (
        "--within dp=leaf: unknown level leaf; here only host exists",
        "use host",
    )
    assert refusal({"whole": "leaf:4"}, levels=()) == (
        "--whole leaf:4: unknown level leaf; here only host exists",
        "leave it out",
    )


def test_level_costs_of_levels_that_one_machine_does_not_know_are_noted(capfd: pytest.CaptureFixture[str]) -> None:
    demands("--mesh=dp=*", "--level-costs=leaf=2,host=1,pod=4")
    note = "meshrun: --level-costs: unknown level leaf, pod; a single node has only the level host\n"
    assert capfd.readouterr().err == note
