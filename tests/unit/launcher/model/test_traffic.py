"""How much the ranks along each axis talk: what is usual, what is asked for, and numbers made whole."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.model import mesh as meshes
from launcher.model.errors import UsageError
from launcher.model.traffic import KINDS, Communicator, make_default_traffic, parse, parse_number, scale_to_integers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.model.traffic import Kind

MESH = meshes.parse("pp=4,dp=*,cp=2,ep=2,tp=8")


def one(name: str, kind: Kind, weight: int | float) -> Communicator:
    return Communicator(axes=tuple(name.split("+")), kind=kind, weight=weight)


def refusal(text: str) -> tuple[str, str | None]:
    with pytest.raises(UsageError) as caught:
        parse(text, MESH)
    return str(caught.value), caught.value.hint


def test_each_axis_talks_as_is_usual_for_its_name_unless_it_is_named() -> None:
    assert make_default_traffic(MESH) == (
        one("pp", "line", 3),
        one("dp", "ring", 10),
        one("cp", "ring", 30),
        one("ep", "all", 20),
        one("tp", "ring", 100),
    )
    others = meshes.parse("stage=2,dp_shard=2,Expert=2,rows=2,tensor=2")
    assert [(rule.kind, rule.weight) for rule in make_default_traffic(others)] == [
        ("line", 3), ("ring", 10), ("all", 20), ("ring", 10), ("ring", 100),
    ]  # fmt: skip
    found = parse("tp=7,dp=2.5", MESH)
    assert found == (
        one("pp", "line", 3), one("dp", "ring", 2.5), one("cp", "ring", 30), one("ep", "all", 20), one("tp", "ring", 7),
    )  # fmt: skip


def test_several_axes_can_be_one_ring_in_any_order_and_of_a_given_kind() -> None:
    found = parse("cp + dp = 10, dp=1:all, tp=0, pp=3:ring, ep=1", MESH)
    assert found == (
        one("pp", "ring", 3), one("dp", "all", 1), one("dp+cp", "ring", 10), one("ep", "all", 1), one("tp", "ring", 0),
    )  # fmt: skip
    assert parse("tp=1,pp=2,dp=3:ring,dp=4:all", MESH) == parse("dp=4:all,dp=3,pp=2,tp=1", MESH)
    assert one("dp+ep", "all", 1) in parse("dp+ep=1", MESH)
    assert one("dp+ep", "ring", 1) in parse("ep+dp=1", MESH)


def test_bytes_are_read_with_units_for_all_axes_or_none_and_rounded() -> None:
    found = parse("tp=20GB,dp=1.25 MB,pp=3kB:ring,cp=0,ep=1B", MESH)
    assert {rule.name: (rule.weight, rule.is_bytes) for rule in found} == {
        "tp": (20_000, True), "dp": (1.25, True), "pp": (0.003, True), "cp": (0, False), "ep": (0.000001, True),
    }  # fmt: skip
    assert parse(",".join(map(str, found)), MESH) == found
    assert refusal("tp=20GB,dp=1GB,ep=0,cp=3") == (
        "--traffic gives bytes for some axes, and pp, cp has a weight without a unit",
        "set pp=300MB, or pp=0 if it has no traffic",
    )
    hint = "use for example 1.2GB or 300MB; k, M, G and T are powers of 1000"
    for text in ("1.2.3GB", "1gb", "1GiB", "1 Mb"):
        what = f"--traffic: the weight of tp is {text!r}, neither a number nor bytes"
        assert refusal(f"tp={text}") == (what, hint)
    assert refusal("tp=9999999TB")[0] == "--traffic: the weight of tp is '9999999TB', more than 1e9 MB"
    alone = meshes.parse("dp=8,tp=1")
    assert [(rule.weight, rule.is_bytes) for rule in parse("dp=12.34567kB", alone)] == [(0.012346, True), (100, False)]


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("tp", "--traffic: 'tp' is not AXIS=WEIGHT", "use for example --traffic tp=100,dp=10,pp=3"),
        ("tp=1,", "--traffic: '' is not AXIS=WEIGHT", "use for example --traffic tp=100,dp=10,pp=3"),
        ("tp=", "--traffic: the weight of tp is '', not a number from 0 to 1e9", None),
        ("tp=1:", "--traffic: '' is not a kind of traffic", "use ring, line, all"),
        ("tp=1:star", "--traffic: 'star' is not a kind of traffic", "use ring, line, all"),
        ("xp=1", f"--traffic: mesh {MESH} has no axis 'xp'", "use its axes: pp, dp, cp, ep, tp"),
        ("dp+=1", f"--traffic: mesh {MESH} has no axis ''", "use its axes: pp, dp, cp, ep, tp"),
        ("tp+tp=1", "--traffic: 'tp+tp' names an axis twice", None),
        ("tp=1,tp=2:ring", "--traffic names tp twice", None),
        ("tp=0.0000001", "--traffic: the weight of tp is '0.0000001', more than 6 decimals",
         "round it: only proportions matter"),
    ],
)  # fmt: skip
def test_traffic_that_cannot_be_is_refused_with_what_is_amiss(text: str, sentence: str, hint: str | None) -> None:
    assert refusal(text) == (sentence, hint)


@pytest.mark.parametrize(
    ("text", "found"),
    [("100", 100), (" 1e3 ", 1000), ("0.25", 0.25), ("0", 0), ("2.0", 2), ("1e9", 10**9), ("1e-6", 1e-06)],
)
def test_a_number_is_whole_where_it_can_be(text: str, found: int | float) -> None:
    assert parse_number(text, "it") == found
    assert isinstance(parse_number(text, "it"), type(found))


@pytest.mark.parametrize("text", ["", "one", "0x10", "1,5", "-1", "nan", "inf", "1000000001", "1e400", "9" * 400])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^the cost is '.*', not a number from 0 to 1e9$"):
        parse_number(text, "the cost")


DECIMALS = st.integers(0, 10**15).map(lambda millionths: parse_number(str(millionths / 10**6), "it"))


@given(st.lists(DECIMALS, max_size=4))
@example([621897.4622])
def test_numbers_made_whole_keep_their_proportions(numbers: list[int | float]) -> None:
    whole, scale = scale_to_integers(numbers)
    assert scale in [10**power for power in range(7)]
    assert [each / scale for each in whole] == numbers
    smaller = scale // 10
    assert scale == 1 or any(round(each * 10**6) * smaller % 10**6 for each in numbers), "the scale is the smallest"


@given(
    st.permutations([axis.name for axis in MESH.axes]),
    st.lists(st.tuples(DECIMALS, st.sampled_from(KINDS)), max_size=5),
)
def test_what_is_read_can_be_written_and_read_again(names: list[str], rules: list[tuple[int | float, Kind]]) -> None:
    found = parse(
        ",".join(f"{name}={weight}:{kind}" for name, (weight, kind) in zip(names, rules, strict=False)) or "tp=100",
        MESH,
    )
    assert parse(",".join(f"{each.name}={each.weight}:{each.kind}" for each in found), MESH) == found
