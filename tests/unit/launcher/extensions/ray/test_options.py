"""The options of meshrun-ray beside those of meshrun, and the command line of its agents."""

from __future__ import annotations

import json

import pytest

from launcher.calls.launch import OptionValue, format_arguments
from launcher.config.options import command_line
from launcher.extensions.ray.options import (
    OPTIONS,
    find_run_id,
    find_stop_wait_s,
    make_agent_words,
    select_variables,
    split,
)
from launcher.model.errors import UsageError


def parse(*words: str, **environ: str):  # type: ignore[no-untyped-def]
    return split(command_line.parse(words, OPTIONS), environ)


def test_options_of_both_kinds_stand_in_any_order_beside_the_clusters_variable() -> None:
    words = ["--spares", "2", "--nnodes=2:4", "--bundle=GPU=8,CPU=16", "-m", "train", "--spares", "9"]
    own, rest = parse(*words)
    assert own.spares == 2
    assert own.bundle == {"GPU": 8, "CPU": 16}
    assert make_agent_words(rest, {"nnodes": "9", "rdzv-id": "r"}) == [
        "--nnodes=2:4", "--rdzv-id=r", "--module", "--", "train", "--spares", "9",
    ]  # fmt: skip
    assert parse("t.py", RAY_ADDRESS="h:6379")[0].address == "h:6379"
    assert parse("--address=other:1", "t.py", RAY_ADDRESS="h:6379")[0].address == "other:1"
    with pytest.raises(UsageError, match=r"^RAY_ADDRESS=ray://h:10001: through Ray Client"):
        parse("t.py", RAY_ADDRESS="ray://h:10001")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bundle": {"GPU": 1, "CPU": 0.5}, "spares": 2, "address": None}, ["--bundle=GPU=1,CPU=0.5", "--spares=2"]),
        ({"label_selector": {"rack": "in(a,b)"}, "nnodes": 2}, ["--label-selector=rack=in(a,b)", "--nnodes=2"]),
        ({"export": ["A", "B"]}, ["--export=A,B"]),
        ({"export": {"A": "1"}}, ["--export=A=1"]),  # which is refused, with a hint
    ],
)
def test_options_of_a_call_are_written_as_on_a_command_line(options: dict[str, OptionValue], words: list[str]) -> None:
    assert format_arguments(options, OPTIONS) == words


def test_selectors_may_have_commas_and_misspelt_options_are_recognised() -> None:
    own, _ = parse("--label-selector=ray.io/market-type=!spot,rack=in(a,b),pool=!in(x,y)", "t.py")
    assert own.label_selector == {"ray.io/market-type": "!spot", "rack": "in(a,b)", "pool": "!in(x,y)"}
    args = command_line.parse(["--serve=8080", "--metrics-port", "0", "--module", "m"], OPTIONS)
    assert make_agent_words(args, {}) == ["--serve=8080", "--metrics-port=0", "--module", "--", "m"]
    with pytest.raises(UsageError) as caught:
        command_line.parse(["--bundel=GPU=1", "t.py"], OPTIONS)
    assert caught.value.hint == "did you mean --bundle?"
    with pytest.raises(UsageError, match="unknown option --bundle"):
        command_line.parse(["--bundle=GPU=1", "t.py"])


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("--bundle=GPU", "--bundle GPU: 'GPU' is not NAME=AMOUNT"),
        ("--bundle=GPU=-1", "--bundle GPU=-1: 'GPU=-1' is not NAME=AMOUNT"),
        ("--bundle=GPU=nan", "--bundle GPU=nan: 'GPU=nan' is not NAME=AMOUNT"),
        ("--bundle=GPU=0.5", "--bundle GPU=0.5: an agent cannot share a GPU"),
        ("--bundle=CPU=1,CPU=2", "--bundle CPU=1,CPU=2 names CPU twice"),
        ("--label-selector=rack", "--label-selector rack: 'rack' is not KEY=VALUE"),
        ("--label-selector=a=1,a=2", "--label-selector a=1,a=2 names a twice"),
        ("--spares=-1", "--spares -1 must be an integer >= 0"),
        ("--export=A=1", "--export A=1: A=1 is not the name of a variable"),
        ("--rdzv-endpoint=x:1", "--rdzv-endpoint cannot be set here"),
        ("--address=ray://head:10001", "--address ray://head:10001: through Ray Client the driver"),
        ("--address=http://head:8265", "--address http://head:8265 is the address for ray job, not the cluster's"),
    ],
)
def test_a_mistake_is_refused_with_the_option_s_name(word: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(word, "t.py")
    assert str(caught.value).startswith(sentence)


def test_the_run_is_named_after_the_submission_and_agents_get_its_variables() -> None:
    config = {"metadata": {"job_submission_id": "exp-41", "job_name": "x"}, "runtime_env": {}}
    assert find_run_id({"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(config), "RAY_JOB_ID": "01000000"}) == "exp-41"
    environ = {"LAUNCHER_LOG_DIR": "d", "PET_STANDALONE": "1", "PET_MAX_RESTARTS": "3", "A": "1", "B": "2"}
    environ |= {"LAUNCHER_NODE_LABELS_FILE": "f", "LAUNCHER_STORE_TOKEN_FILE": "f", "LAUNCHER_END_FILE": "f"}
    found, remarks = select_variables(environ, ("A", "C"))
    assert found == {"LAUNCHER_LOG_DIR": "d", "PET_MAX_RESTARTS": "3", "A": "1"}
    assert remarks == ["--export C: the driver has no such variable"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"metadata": null}', '{"metadata": {"job_submission_id": 7}}'])
def test_outside_of_a_ray_job_no_run_is_named(text: str) -> None:
    assert find_run_id({"RAY_JOB_CONFIG_JSON_ENV_VAR": text}) == ""


@pytest.mark.parametrize(("text", "wait_s"), [("30", 30.0), ("x", 3.0), ("-1", 3.0), ("nan", 3.0)])
def test_ray_s_wait_is_read_as_ray_reads_it(text: str, wait_s: float) -> None:
    assert find_stop_wait_s({"RAY_JOB_STOP_WAIT_TIME_S": text}) == wait_s
    assert find_stop_wait_s({}) == 3.0
