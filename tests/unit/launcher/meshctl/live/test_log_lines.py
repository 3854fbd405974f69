"""Lines of many workers in one stream: each once, equal ones together, in the order of their files."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.meshctl.live.log_lines import HOLD_S, UNFINISHED_MAX, LineMerger, MergedLine, OutputFile, format_line


def make_file(rank: int, round: int = 1, stream: str = "stdout") -> OutputFile:
    return OutputFile(rank=rank, node=f"m{rank}", round=round, stream=stream, file=f"{rank}/{stream}.log")


def merge(*texts: str) -> list[str]:
    """What is shown of the whole outputs of ranks 0, 1, ..."""
    merger = LineMerger()
    for rank, text in enumerate(texts):
        merger.add(make_file(rank), text, 0.0)
    return [format_line(line) for line in merger.take(0.0, is_final=True)]


def test_equal_lines_of_several_ranks_are_one_line_and_others_do_not_tear_them_apart() -> None:
    same = "step 1\nstep 2\n"
    assert merge(same, same, "step 1\n") == ["[0-2] step 1", "[0-1] step 2"]
    assert merge("a\nb\nc\n", "a\nmine\nb\nc\n") == ["[0-1] a", "[1] mine", "[0-1] b", "[0-1] c"]
    assert merge("hello 0\nend\n", "hello 1\nend\n") == ["[0] hello 0", "[1] hello 1", "[0-1] end"]
    assert merge("x\n", "y\n", "x\n", "x\n") == ["[0,2-3] x", "[1] y"]


def test_a_line_waits_for_other_ranks_and_for_its_end_and_no_longer_than_that() -> None:
    merger = LineMerger()
    merger.add(make_file(0), "one\n", 0.0)
    merger.add(make_file(1), "", 0.0)
    assert list(merger.take(HOLD_S / 2)) == []
    merger.add(make_file(1), "one\n", HOLD_S / 2)
    assert [line.ranks for line in merger.take(HOLD_S / 2)] == [(0, 1)]
    merger.add(make_file(0), "two\n", 10.0)
    assert list(merger.take(10.0)) == []
    assert [line.ranks for line in merger.take(10.0 + HOLD_S)] == [(0,)]
    merger = LineMerger()
    merger.add(make_file(0), "half", 0.0)
    assert list(merger.take(HOLD_S)) == []
    merger.add(make_file(0), " whole\n", HOLD_S)
    assert [line.text for line in merger.take(HOLD_S)] == ["half whole"]
    merger.add(make_file(0), "x" * UNFINISHED_MAX, 1.0)
    merger.add(make_file(0), "y", 1.0)
    assert [len(line.text) for line in merger.take(1.0)] == [UNFINISHED_MAX + 1]
    merger.add(make_file(0), "last words", 2.0)
    assert [line.text for line in merger.take(100.0)] == ["last words"]


def test_lines_of_other_streams_and_rounds_are_other_lines_and_older_ones_go_first() -> None:
    merger = LineMerger()
    for file in (make_file(0), make_file(0, stream="stderr"), make_file(1, round=2)):
        merger.add(file, "x\n", 0.0)
    found = {(line.ranks, line.stream, line.round) for line in merger.take(0.0, is_final=True)}
    assert found == {((0,), "stdout", 1), ((0,), "stderr", 1), ((1,), "stdout", 2)}
    merger = LineMerger()
    merger.add(make_file(0), "one\ntwo\n", 0.0)
    merger.add(make_file(0, round=2), "three\n", 0.0)
    merger.add(make_file(1), "Traceback\nKeyError\n", 0.0)
    rounds = [line.round for line in merger.take(0.0, is_final=True)]
    assert rounds == [1, 1, 1, 1, 2]
    merger = LineMerger()
    for round in (1, 2):
        for rank in range(50):
            merger.add(make_file(rank, round), "x\n", 0.0)
        assert len(list(merger.take(0.0, is_final=True))) == 1
    assert {file.round for file in merger._files} == {2}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07\x1b[2J", "\\x1b]0;owned\\x07\\x1b[2J"),
        ("10 %\r50 %\r100 %", "100 %"),
        ("dos line\r", "dos line"),
        ("tab\tstays", "tab\tstays"),
        ("\u202etxt.exe\u2028", "\\u202etxt.exe\\u2028"),
        ("\x85\x9b31m", "\\x85\\x9b31m"),
    ],
)
def test_what_controls_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert format_line(MergedLine(ranks=(0,), round=1, stream="stdout", text=text)) == f"[0] {shown}"


def collect(lines: list[MergedLine]) -> dict[int, list[str]]:
    found = defaultdict(list)
    for line in lines:
        for rank in line.ranks:
            found[rank].append(line.text)
    return found


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "c", "", "own"]), max_size=12), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_no_line_is_lost_or_doubled_however_the_pieces_arrive(outputs: list[list[str]], rng: random.Random) -> None:
    merger = LineMerger(lines_max=7)
    texts = ["".join(f"{line}\n" for line in lines) for lines in outputs]
    offsets = [0] * len(texts)
    shown: list[MergedLine] = []
    now = 0.0
    while any(offset < len(text) for offset, text in zip(offsets, texts, strict=True)):
        rank = rng.randrange(len(texts))
        size = rng.randrange(6)
        merger.add(make_file(rank), texts[rank][offsets[rank] : offsets[rank] + size], now)
        offsets[rank] += size
        now += rng.random() / 20  # a piece in time: no line is taken for one without an end
        shown += merger.take(now) if rng.random() < 0.5 else []
        for one in merger._files.values():
            one.unfinished_at = now
    shown += merger.take(now, is_final=True)
    assert merger.line_count == 0
    assert collect(shown) == {rank: lines for rank, lines in enumerate(outputs) if lines}
