"""Slurm's lists of hosts: ranges, padding, several brackets, and what is none."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.schedulers.hostlist import expand_hostlist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login1", ["login1"]),
        ("a,b,c", ["a", "b", "c"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[1,3,7-8]", ["gpu1", "gpu3", "gpu7", "gpu8"]),
        ("gpu[008-011]", ["gpu008", "gpu009", "gpu010", "gpu011"]),
        ("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
        ("gpu[01,2-3]", ["gpu01", "gpu2", "gpu3"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("n[1-2].example.org", ["n1.example.org", "n2.example.org"]),
        ("r[0-1]n[0-2]", ["r0n0", "r0n1", "r0n2", "r1n0", "r1n1", "r1n2"]),
        ("r[0-1]c[2]n[09-10]-x", ["r0c2n09-x", "r0c2n10-x", "r1c2n09-x", "r1c2n10-x"]),
        ("a[1-2],b,c[3]d[4-5]", ["a1", "a2", "b", "c3d4", "c3d5"]),
        ("[7-8]", ["7", "8"]),
    ],
)
def test_a_list_stands_for_its_hosts_in_order(text: str, names: list[str]) -> None:
    assert list(expand_hostlist(text)) == names


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", "a[", "a]", "a[1", "a[1]]", "a[[1]]", "a[]", "a[-3]", "a[3-]", "a[x]", "a[1-2-3]", "a[3-1]",
     "a[1 - 2]", "a[²]", "a[1-9999999999999999999]", "a\nb", "a[1]b["],
)  # fmt: skip
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        list(expand_hostlist(text))


def test_the_first_of_very_many_hosts_is_there_at_once() -> None:
    assert list(islice(expand_hostlist("n[0-999999999]r[0-999999999]"), 2)) == ["n0r0", "n0r1"]


@given(st.text(alphabet="ab[]-,0129 \n²", max_size=12))
def test_any_text_gives_names_or_an_error(text: str) -> None:
    try:
        names = list(islice(expand_hostlist(text), 100))
    except ValueError:
        return
    assert names
    assert all(names)
