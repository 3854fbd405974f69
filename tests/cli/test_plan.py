"""meshctl plan: what it prints, where, and the exit code it ends with; the real command is run."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import LIMIT_S, Call, run
from tests.support.documents.pages import ROOT, blocks

MESH = ("--mesh", "pp=4,dp=*,tp=8")


def cluster_of_31(path: Path, **wishes: Any) -> str:
    """31 nodes on leaves of 7, 8, 8 and 8."""
    homes = [f"l{leaf}" for leaf, size in enumerate((7, 8, 8, 8)) for _ in range(size)]
    nodes = [{"id": f"h{at}", "path": [home], "devices": 8} for at, home in enumerate(homes)]
    path.write_text(json.dumps({"levels": ["leaf"], "nodes": nodes, "mesh": "pp=4,dp=*,tp=8", **wishes}))
    return str(path)


Answer = Callable[..., dict[str, Any]]


@pytest.fixture
def answer_of(call: Call) -> Answer:
    def asked(*words: str, code: int = 0) -> dict[str, Any]:
        """The answer as JSON, checked to be one whole object that says what a plan must say."""
        outcome = call("meshctl", "plan", *words, "--json")
        assert (outcome.code, outcome.err) == (code, "")
        assert outcome.out.count("\n") == 1
        answer: dict[str, Any] = json.loads(outcome.out)
        if code:
            assert set(answer) == {"plan", "error"}
            assert answer["plan"] == {}
            return answer
        expected = {"dims", "plan", "spares", "J", "moved", "lower_bound", "reasons"}
        assert set(answer) - {"warnings", "time"} == expected
        ranks = sorted(rank for ranks in answer["plan"].values() for rank in ranks)
        assert ranks == list(range(math.prod(answer["dims"])))
        assert not set(answer["plan"]) & set(answer["spares"])
        assert 0 <= answer["lower_bound"] <= answer["J"]
        assert all(isinstance(reason, str) for reason in answer["reasons"])
        return answer

    return asked


def test_31_of_32_nodes_make_28_in_use_with_seven_on_every_leaf(call: Call, answer_of: Answer, tmp_path: Path) -> None:
    answer = answer_of(cluster_of_31(tmp_path / "c.json"), "--level-costs", "host=0")
    assert answer["dims"] == [4, 7, 8]
    assert (len(answer["plan"]), len(answer["spares"])) == (28, 3)
    assert (answer["J"], answer["lower_bound"], answer["moved"]) == (1008, 0, 0)
    outcome = call("meshctl", "plan", str(tmp_path / "c.json"), "--level-costs", "host=0")
    assert "every leaf keeps 7 active" in outcome.out
    assert "path order  1,552  54.0 % more" in outcome.out


def test_an_answer_is_the_plan_before_of_the_next_question(answer_of: Answer, tmp_path: Path) -> None:
    cluster, before = cluster_of_31(tmp_path / "c.json"), tmp_path / "before.json"
    before.write_text(json.dumps(answer_of(cluster)))
    assert answer_of(cluster, "--previous", str(before))["moved"] == 0
    lost = next(iter(json.loads(before.read_text())["plan"]))
    after = answer_of(cluster, "--previous", str(before), "--lose", lost)
    assert (after["dims"], after["moved"]) == ([4, 7, 8], 8)


def test_a_node_that_comes_is_used(answer_of: Answer, tmp_path: Path) -> None:
    cluster = cluster_of_31(tmp_path / "c.json")
    answer = answer_of(cluster, "--join", "new=l0")
    assert answer["dims"] == [4, 8, 8]
    assert len(answer["plan"]["new"]) == 8


def test_a_flag_wins_over_the_file(answer_of: Answer, tmp_path: Path) -> None:
    cluster = cluster_of_31(tmp_path / "c.json", dp_max=5, leave_cost={"host": 0})
    assert answer_of(cluster)["dims"] == [4, 5, 8]
    assert answer_of(cluster, "--elastic", ":6")["dims"] == [4, 6, 8]
    assert answer_of(cluster, "--elastic", "1:2")["dims"] == [4, 2, 8]
    assert answer_of(cluster, "--nnodes", "1:9")["dims"] == [4, 2, 8]
    assert answer_of(cluster, "--level-costs", "leaf=0,host=0")["J"] == 0


def test_yaml_json_and_stdin_give_the_same_answer(answer_of: Answer, tmp_path: Path) -> None:
    cluster = cluster_of_31(tmp_path / "c.json")
    (tmp_path / "c.yaml").write_text((tmp_path / "c.json").read_text())
    command = [os.path.join(os.path.dirname(sys.executable), "meshctl"), "plan", "-", "--json"]
    with open(cluster) as file:
        from_stdin = subprocess.run(command, stdin=file, capture_output=True, timeout=LIMIT_S, check=True).stdout
    assert answer_of(cluster) == answer_of(str(tmp_path / "c.yaml")) == json.loads(from_stdin)


def test_a_world_that_cannot_be_is_exit_code_1_and_says_what_is_missing(answer_of: Answer) -> None:
    sentence = "mesh pp=4,dp=*,tp=8 needs at least 4 nodes with 8 devices each; 3 are present"
    assert answer_of("dgx:3x8", *MESH, code=1)["error"] == sentence


def test_small_clusters_are_listed_in_columns_unless_told_otherwise(call: Call) -> None:
    text = call("meshctl", "plan", "dgx:7x9x8").out
    assert text.count("  node  leaf  ranks") == 3
    assert re.search(r"^  h0    l0    0-7 .* h21   l2    168-175 .* h42   l4    336-343$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80
    assert "node  leaf" not in call("meshctl", "plan", "dgx:8x8x8").out
    assert "node  leaf" not in call("meshctl", "plan", "dgx:2x2x8", "--no-ranks").out


def test_nodes_are_lost_and_join_as_often_as_the_flags_are_given(answer_of: Answer) -> None:
    words = ("dgx:2x2x8", "--mesh", "dp=*,tp=8", "--lose", "h0", "--lose", "h1", "--join", "h8", "--join", "h9=l1")
    assert set(answer_of(*words)["plan"]) == {"h2", "h3", "h8", "h9"}


def test_groups_that_are_split_are_warned_of_with_the_other_choice(answer_of: Answer) -> None:
    words = ("dgx:2x4x8", "--mesh", "pp=3,dp=*,tp=7")
    (warning,) = answer_of(*words)["warnings"]
    assert warning == (
        "tp=7 does not divide the 8 devices of a node, so 6 of 9 groups of 7 ranks are split across nodes; --unit 7 "
        "keeps each group on one node: 42 ranks on 6 nodes instead of 63 on 8, J 588 instead of 2,712"
    )
    other = answer_of(*words, "--unit", "7")
    assert (math.prod(other["dims"]), len(other["plan"]), other["J"]) == (42, 6, 588)
    assert "warnings" not in other


def test_the_text_stays_short_for_a_thousand_nodes(call: Call) -> None:
    outcome = call("meshctl", "plan", "dgx:8x8x16x8", "--mesh", "pp=16,dp=*,tp=8", "--lose", "h2,h400")
    assert (outcome.code, outcome.err) == (0, "")
    assert len(outcome.out.splitlines()) < 50
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_an_answer_is_whole_through_a_pipe_of_any_speed() -> None:
    outcome = run("meshctl", "plan", "dgx:8x32x8x8", "--mesh", "pp=16,dp=*,tp=8", "--json")
    assert len(outcome.out) > 1 << 16  # what a pipe holds
    assert math.prod(json.loads(outcome.out)["dims"]) == 16384


def test_a_reader_who_leaves_early_is_no_error() -> None:
    command = f"{os.path.dirname(sys.executable)}/meshctl plan dgx:8x32x8x8 --ranks | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")


def test_help_shows_every_way_to_name_a_cluster_and_examples(call: Call) -> None:
    outcome = call("meshctl", "plan", "-h")
    assert (outcome.code, outcome.err) == (0, "")
    for word in ("dgx:4x8x8", "nvl72:8", "tpu:v5e-16:6", "--lose h17", "--within AXIS=LEVEL,..."):
        assert word in outcome.out


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere/plan.svg", "cannot write 'nowhere/plan.svg': No such file or directory"),
        (".", "cannot write '.': Is a directory"),
        ("plan.html/x", "cannot write 'plan.html/x': Not a directory"),
        ("-", "'-' is not the name of a file"),
        ("x" * 300, f"cannot write '{'x' * 300}': File name too long"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_answer(
    call: Call, path: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "plan.html").write_text("old")
    outcome = call("meshctl", "plan", "dgx:2x2x8", "--svg", path, "--html", "plan.html", cwd=tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines()[0] == f"meshctl: error: {why}"
    assert (tmp_path / "plan.html").read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["plan.html"]


def test_what_was_written_is_said_beside_the_answer(tmp_path: Path) -> None:
    words = ("meshctl", "plan", "dgx:2x2x8", "--svg", "plan.svg", "--html", "plan.html", "--json")
    outcome = run(*words, cwd=tmp_path)
    assert outcome.code == 0
    assert json.loads(outcome.out)["dims"] == [32]
    assert outcome.err == "meshctl: the picture is in plan.svg\nmeshctl: the page is in plan.html\n"
    assert "</html>" in (tmp_path / "plan.html").read_text()
    assert (tmp_path / "plan.svg").read_text().rstrip().endswith("</svg>")
    assert len(list(tmp_path.iterdir())) == 2


def test_the_picture_about_placement_is_what_its_page_s_command_draws(tmp_path: Path) -> None:
    page, picture = ROOT / "docs/concepts/placement.md", ROOT / "docs/images/placement.svg"
    words, *_ = [shlex.split(block.script) for block in blocks(page) if block.script.startswith("meshctl plan dgx")]
    outcome = run(*words, "--svg", "plan.svg", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "plan.svg").read_text() == picture.read_text(), "make docs draws it anew"
    recipe = f"\t.venv/bin/{shlex.join(words)} --svg {picture.relative_to(ROOT)} >/dev/null\n"
    assert recipe in (ROOT / "Makefile").read_text()
