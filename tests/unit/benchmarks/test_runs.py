"""Records of benchmarks: whose sample counts, what pairs come to, and what a broken file is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import figures, tables
from benchmarks.figures import AIMS, KINDS, Aim
from benchmarks.runs import OURS, THEIRS, History, RecordError, read
from benchmarks.tables import verdict

HEAD = {"benchmark": "startup", "arguments": [], "machine": {"cores": 2}, "unix_time_s": 0}
FIGURE = "exec to first line, 8 workers"


def sample(side: str, pair: int, value: float | None, name: str = FIGURE, **more: Any) -> dict[str, Any]:
    return {"sample": side, "pair": pair, "counts": pair > 0, name: value, **more}


def history(*lines: dict[str, Any], head: dict[str, Any] = HEAD) -> History:
    return History(read("".join(f"{json.dumps(line)}\n" for line in (head, *lines)), "startup.jsonl"))


def test_the_ratio_is_taken_within_a_pair_whatever_the_order_of_the_lines() -> None:
    found = history(sample(THEIRS, 2, 20.0), sample(OURS, 1, 1.0), sample(OURS, 2, 10.0), sample(THEIRS, 1, 4.0))
    assert found.series[FIGURE].ratios() == [0.25, 0.5]


def test_a_warm_up_does_not_count() -> None:
    found = history(sample(OURS, 0, 9.0), sample(OURS, 1, 1.0))
    assert found.series[FIGURE].values(OURS) == {1: 1.0}


def test_a_pair_of_which_one_half_is_missing_has_no_ratio() -> None:
    found = history(sample(OURS, 1, 1.0), sample(THEIRS, 1, 2.0), sample(OURS, 2, 1.0))
    assert found.series[FIGURE].ratios() == [0.5]


def test_the_newest_run_with_a_figure_counts_and_hides_no_other_figure() -> None:
    found = history(
        sample(OURS, 1, 1.0, other=5.0), sample(OURS, 2, 3.0), HEAD | {"unix_time_s": 1}, sample(OURS, 1, 7.0)
    )
    assert found.series[FIGURE].values(OURS) == {1: 7.0}
    assert found.series["other"].values(OURS) == {1: 5.0}
    assert [run.head["unix_time_s"] for run in found.used()] == [0, 1]


def test_one_side_alone_does_not_take_the_place_of_a_pair() -> None:
    pair = (sample(OURS, 1, 1.0), sample(THEIRS, 1, 4.0))
    found = history(*pair, HEAD, sample(OURS, 1, 7.0)).series[FIGURE]
    assert found.ratios() == [0.25]
    assert history(sample(OURS, 1, 7.0), HEAD, *pair).series[FIGURE].ratios() == [0.25]


def test_a_timeout_of_torchrun_has_no_ratio_unless_most_runs_succeeded() -> None:
    never = history(sample(OURS, 1, 1.0), sample(THEIRS, 1, None, limit_s=20))
    assert never.series[FIGURE].ratio() is None
    times = (sample(THEIRS, pair, value, limit_s=20) for pair, value in ((1, 10.0), (2, 10.0), (3, None)))
    once = history(*(sample(OURS, pair, 1.0) for pair in (1, 2, 3)), *times).series[FIGURE].ratio()
    assert once is not None
    assert (once.median, once.least) == (0.1, 0.05)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{\n", "startup.jsonl, line 1: no JSON: '{'"),
        ("[1]\n", "startup.jsonl, line 1: not an object: '[1]'"),
        ('{"sample": "meshrun"}\n', "line 1: no head of a record stands before it"),
        ('{"machine": {}}\n', "line 1: a head of a record that names no benchmark"),
        (json.dumps(HEAD) + '\n{"sample": "mpirun", "pair": 1}\n', "line 2: a sample of 'mpirun', neither meshrun nor"),
        (json.dumps(HEAD) + '\n{"sample": "meshrun", "x": 1}\n', "line 2: a sample without the number of its pair"),
    ],
)
def test_what_is_no_record_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(RecordError, match="line") as refused:
        read(text, "startup.jsonl")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_record_whose_writer_was_killed_within_a_line_is_good_up_to_it() -> None:
    text = f"{json.dumps(HEAD)}\n{json.dumps(sample(OURS, 1, 1.0))}\n" + '{"sample": "mesh'
    (run,) = read(text, "startup.jsonl")
    assert run.figures() == [FIGURE]
    assert run.seconds is None


def test_growth_is_told_of_three_sizes_that_are_large_enough() -> None:
    def grown(*points: tuple[int, float | None]) -> float | None:
        named = [sample(OURS, 1, value, figures.AGENTS_REQUESTS.format(n=count)) for count, value in points]
        return history(*named).growth(figures.AGENTS_REQUESTS)

    assert grown((8, 1.0), (64, 384.0), (256, 1536.0), (1024, 6144.0)) == pytest.approx(1.0)
    assert grown((8, 64.0), (16, 256.0), (64, 384.0), (256, 1536.0)) is None
    assert grown((64, 384.0), (256, None), (1024, 6144.0)) is None


def test_requests_at_rest_are_counted_without_the_keep_alives() -> None:
    names = [each.format(n=64) for each in (figures.REST_REQUESTS, figures.REST_KEPT)]
    found = history({"sample": OURS, "pair": 1, names[0]: 70.4, names[1]: 64.0})
    spread = found.series[figures.IDLE].spread(OURS)
    assert spread is not None
    assert spread.median == pytest.approx(0.1)


def test_a_figure_is_of_one_kind_and_every_aim_has_a_kind() -> None:
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names)
    assert not [aim.figure for aim in AIMS if figures.kind(aim.figure) is None]
    assert not [aim for aim in AIMS if (aim.ratio is None) == (aim.value is None)]


def test_names_with_numbers_are_told_apart() -> None:
    assert figures.number(figures.FIRST_ROUND, "first round of 128 members") == 128
    assert figures.number(figures.FIRST_ROUND, "first round of 128 agents") is None
    assert figures.workers(figures.FIRST_LINE, 1) == "exec to first line, 1 worker"
    kind = figures.kind("exec to first line, 1 worker")
    assert kind is not None
    assert kind.name == figures.FIRST_LINE


def test_an_aim_is_reached_missed_or_was_not_measured() -> None:
    both = history(sample(OURS, 1, 1.0), sample(THEIRS, 1, 4.0)).series[FIGURE]
    assert verdict(Aim("", FIGURE, ratio=0.25), both) is True
    assert verdict(Aim("", FIGURE, ratio=0.2), both) is False
    assert verdict(Aim("", FIGURE, ratio=0.2, least=True), both) is True
    assert verdict(Aim("", FIGURE, value=1.0), both) is True
    assert verdict(Aim("", FIGURE, value=1.0), None) is None
    vain = history(sample(OURS, 1, 1.0), sample(THEIRS, 1, None, limit_s=20)).series[FIGURE]
    assert verdict(Aim("", FIGURE, ratio=0.1), vain) is True, "it would be less, had it been waited for longer"
    assert verdict(Aim("", FIGURE, ratio=0.01), vain) is None
    twice = history(sample(OURS, 1, -1.0), sample(OURS, 2, -1.0), sample(OURS, 3, 0.1)).series[FIGURE]
    assert verdict(Aim("", FIGURE, value=0.0), twice) is True
    assert verdict(Aim("", FIGURE, value=0.0, every=True), twice) is False
    late = history(sample(OURS, 1, None)).series[FIGURE]
    assert verdict(Aim("", FIGURE, value=1.0), late) is False
    assert verdict(Aim("", FIGURE, ratio=1.0), late) is None


def test_a_job_that_came_to_no_first_round_is_told_below_the_events() -> None:
    head = {**HEAD, "benchmark": "failover"}
    times = sample(OURS, 1, 0.3, "crash, 4 agents")
    found = history(times, {"failed": "crash, 4 agents", "side": THEIRS, "pair": 1, "why": "x"}, head=head)
    assert tables.events(found).endswith("Not counted, since they came to no first round: torchrun: crash, 4 agents.")
    assert "Not counted" not in tables.events(history(times, head=head))


def test_a_timeout_of_torchrun_bounds_the_ratio_of_a_first_round() -> None:
    name = figures.FIRST_ROUND.format(n=256)
    found = history(sample(OURS, 1, 3.6, name, limit_s=180.0), sample(THEIRS, 1, None, name, limit_s=180.0))
    assert (
        "| 256 | 3.6\N{NO-BREAK SPACE}s | not within 180\N{NO-BREAK SPACE}s | less than 0.020 (1) |"
        in tables.rounds(found)
    )
    assert "| not known |" in tables.aims(history(sample(OURS, 1, 9.0, name), sample(THEIRS, 1, None, name)))
