"""Where a node stands: lining levels up, and merging what sources say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.locality.contract import Level
from launcher.locality.keys import RemarkedLevels
from launcher.locality.merge import SourceResult, keep_usable_levels, merge, order_levels
from launcher.model.locality_path import LEVELS, LEVELS_MAX


@pytest.mark.parametrize(
    ("lists", "levels", "remarks"),
    [
        ([("zone", "leaf"), ("region", "nvl")], ("region", "zone", "leaf", "nvl"), ()),
        ([("zone", "row", "leaf")], ("zone", "row", "leaf"), ()),
        ([("zone", "spine", "leaf"), ("spine", "row", "leaf"), ("hall", "spine")],
         ("zone", "hall", "spine", "row", "leaf"), ()),
        ([("hall", "spine"), ("zone", "core", "leaf"), ("aisle", "hall")],
         ("zone", "core", "aisle", "hall", "spine", "leaf"), ()),
        ([("rack",), ("zone", "leaf", "nvl")], ("zone", "leaf", "rack", "nvl"), ()),
        ([("row", "rack"), ("rack", "row"), ("row", "rack")], ("row", "rack"),
         ("rack is taken to be inside row, though 1 has it the other way round",)),
        ([("leaf", "zone")], ("zone", "leaf"), ("levels were given as leaf, zone and are used as zone, leaf",)),
        ([()], (), ()),
    ],
)  # fmt: skip
def test_levels_have_one_order(lists: list[tuple[str, ...]], levels: tuple[str, ...], remarks: tuple[str, ...]) -> None:
    assert order_levels({one: lists.count(one) for one in lists}) == (levels, remarks)


names = st.sampled_from([*LEVELS, "row", "rack", "hall", "cage"])
lists = st.dictionaries(st.lists(names, unique=True, max_size=5).map(tuple), st.integers(1, 9), max_size=6)


@settings(max_examples=60)
@given(lists)
def test_the_order_depends_on_what_is_said_and_not_on_who_speaks_first(said: dict[tuple[str, ...], int]) -> None:
    found = order_levels(said)
    assert order_levels(dict(reversed(said.items()))) == found
    assert sorted(found[0]) == sorted({name for one in said for name in one})
    known = [LEVELS.index(name) for name in found[0] if name in LEVELS]
    assert known == sorted(known)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["a", "b", "c", "d", "e", "zone", "leaf", "nvl"]), unique=True, min_size=2))
def test_what_one_list_says_holds_unless_it_is_wrong_about_known_levels(one: list[str]) -> None:
    known = [LEVELS.index(name) for name in one if name in LEVELS]
    if known == sorted(known):
        assert order_levels({tuple(one): 1, tuple(one[1:]): 1})[0] == tuple(one)


def looked(source: str, **levels: str) -> SourceResult:
    found = tuple(Level(name, domain, f"key of {name}") for name, domain in levels.items())
    return SourceResult(source, found, "asked")


def test_the_most_trusted_source_counts_and_those_that_contradict_it_are_named() -> None:
    found = merge([looked("--locality", leaf="l3"), looked("slurm", spine="s1", leaf="l3"), looked("gce", zone="a")])
    assert [(level.name, level.domain, level.origin) for level in found.levels] == [
        ("zone", "a", "key of zone"), ("spine", "s1", "key of spine"), ("leaf", "l3", "key of leaf"),
    ]  # fmt: skip
    assert found.remarks == ()
    found = merge([looked("--locality", leaf="l3"), looked("slurm", leaf="s8"), looked("gce", leaf="x")])
    assert [level.domain for level in found.levels] == ["l3"]
    assert found.remarks == (
        "leaf is l3 by --locality (key of leaf), which counts, and s8 by slurm (key of leaf)",
        "leaf is l3 by --locality (key of leaf), which counts, and x by gce (key of leaf)",
    )


def test_levels_of_ones_own_stand_among_those_of_other_sources() -> None:
    found = merge([looked("--locality", zone="a", row="r", leaf="l"), looked("slurm", core="c", spine="s", leaf="l")])
    assert [level.name for level in found.levels] == ["zone", "core", "spine", "row", "leaf"]
    for nothing in ([], [SourceResult("gce", (), "no answer")]):
        assert merge(nothing) == RemarkedLevels((), ())


domains = st.sampled_from(["a", "b"])
answers = st.lists(
    st.dictionaries(names, domains, max_size=4).map(lambda levels: looked("s", **levels)), max_size=4
)  # fmt: skip


@settings(max_examples=60)
@given(answers)
def test_a_source_that_is_trusted_less_changes_no_domain(found: list[SourceResult]) -> None:
    for count in range(len(found)):
        fewer = {level.name: level.domain for level in merge(found[:count]).levels}
        more = {level.name: level.domain for level in merge(found).levels}
        assert len(more) == LEVELS_MAX or fewer.items() <= more.items()


def test_levels_that_cannot_be_told_or_are_too_many_are_left_out() -> None:
    wrong = [("leaf", "l4"), ("spine", ""), ("core", "\x1b[2J"), ("zone", "z" * 300), ("host", "h"), ("nvl", "n ")]
    levels = tuple(Level(name, domain, "k") for name, domain in [("leaf", "l3"), *wrong])
    found = keep_usable_levels(SourceResult("bad", levels, "asked"))
    assert [level.domain for level in found.levels] == ["l3"]
    assert found.reason == "asked; 6 of its levels are duplicate or invalid, and not used"
    many = tuple(Level(f"l{at}", "a", "k") for at in range(1000))
    assert len(keep_usable_levels(SourceResult("bad", many, "asked")).levels) == LEVELS_MAX
    one, two = ({f"{letter}{at:02}": "x" for at in range(12)} for letter in "ab")
    found = merge([looked("one", **one), looked("two", **two)])
    assert len(found.levels) == LEVELS_MAX
    assert found.remarks[-1].startswith("at most 16 levels are used; left out: ")
