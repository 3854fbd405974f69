"""Where a node stands, as people write it."""

from __future__ import annotations

import pytest

from launcher.model.errors import UsageError
from launcher.model.locality_path import LEVELS, LEVELS_MAX, parse_path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("zone=a,spine=s1,leaf=l3", (("zone", "a"), ("spine", "s1"), ("leaf", "l3"))),
        (" zone = a , leaf=l 3 ", (("zone", "a"), ("leaf", "l 3"))),
        ("tier-4=t,row=r=7/2,leaf=l", (("tier-4", "t"), ("row", "r=7/2"), ("leaf", "l"))),
        ("nvl=7b968a6d.1", (("nvl", "7b968a6d.1"),)),
    ],
)
def test_a_place_is_levels_and_domains(text: str, path: object) -> None:
    assert parse_path(text, "it") == path


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("leaf", "it: 'leaf' is not LEVEL=DOMAIN"),
        ("", "it: '' is not LEVEL=DOMAIN"),
        ("=a", "it: '=a' is not LEVEL=DOMAIN"),
        ("le af=a", "it: 'le af' is not a level name"),
        ("-x=a", "it: '-x' is not a level name"),
        ("l" * 64 + "=a", f"it: '{'l' * 37}...' is not a level name"),
        ("leaf=a\x1b[2J", "it: the domain 'a\\x1b[2J' has more than 255 or unprintable characters"),
        ("leaf=" + "a" * 256, f"it: the domain '{'a' * 37}...' has more than 255 or unprintable characters"),
        ("zone=a,zone=b", "it sets the level zone twice, to 'a' and 'b'"),
        ("host=h1", "it names 'host', which is the node itself"),
        ("leaf=l,zone=a", "it: leaf comes before zone, which contains it"),
        (",".join(f"l{at}=a" for at in range(1000)), f"it has 1000 levels; the limit is {LEVELS_MAX}"),
    ],
)
def test_a_place_that_cannot_be_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_path(text, "it")
    assert str(caught.value) == sentence


def test_every_level_that_is_known_can_be_written() -> None:
    assert [parse_path(f"{level}=1", "it") for level in LEVELS] == [((level, "1"),) for level in LEVELS]
