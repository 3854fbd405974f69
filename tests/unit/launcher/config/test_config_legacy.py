"""What is accepted because older command lines have it: one line says so, and rubbish is refused."""

from __future__ import annotations

import pytest

from launcher.config import config
from launcher.config.config import Config
from launcher.config.options import command_line, table
from launcher.config.options.worker_options import parse_texts
from launcher.model.errors import UsageError


def resolve(*words: str, **environ: str) -> Config:
    return config.resolve(command_line.parse([*words, "train.py"]), environ, "/usr/bin/python3")


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_start_method_means_nothing_for_programs_and_that_is_said(method: str) -> None:
    sentence = f"--start-method {method} has no effect: workers are programs, each is started afresh"
    assert resolve("--start-method", method).notes == (sentence,)
    assert resolve(PET_START_METHOD=method).notes == (sentence.replace("--start-method ", "PET_START_METHOD="),)


def test_a_start_method_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--start-method thread is neither spawn nor fork nor forkserver$"):
        resolve("--start-method", "thread")


def test_a_script_gets_its_local_rank_as_an_argument_only_if_asked() -> None:
    assert not resolve().legacy_local_rank
    assert not resolve("--use_env").legacy_local_rank
    assert resolve("--use-env").notes == ("--use-env has no effect: LOCAL_RANK is always in the environment",)
    assert resolve("--legacy-local-rank").legacy_local_rank
    assert resolve("--legacy-local-rank").notes == ()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--use-env"], "--use-env and --legacy-local-rank contradict each other"),
        (["--no-python"], "--no-python and --legacy-local-rank exclude each other"),
    ],
)
def test_what_cannot_be_beside_the_local_rank_argument_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve("--legacy-local-rank", *words)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("name", "value", "is_said"),
    [
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "8080", True),
        ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "30", True),
        ("TORCH_ELASTIC_WORKER_IDENTICAL", "1", True),
        ("TORCH_ELASTIC_WORKER_IDENTICAL", "0", False),
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "", False),
    ],
)
def test_a_variable_that_torchruns_agent_reads_and_ours_does_not_is_named(name: str, value: str, is_said: bool) -> None:
    notes = resolve(**{name: value}).notes
    assert [note.startswith(f"{name}={value} has no effect: ") for note in notes] == [True] * is_said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("apple", ("apple",)),
        ("apple,orange", ("apple", "orange")),
        ("a,,b,c", ("a,b", "c")),
        ("a,,,b", ("a,", "b")),
        ("apple,", ("apple",)),
        ("", ()),
        (" a ,b", (" a ", "b")),
        ("a,a", ("a",)),
    ],
)
def test_texts_are_parted_by_commas_and_two_commas_are_one(text: str, expected: tuple[str, ...]) -> None:
    assert parse_texts(command_line.Value(table.BY_NAME["duplicate-stdout-filters"], text, "--x")) == expected
    assert resolve("--duplicate-stdout-filters", text).duplicate_stdout_filters == expected
    assert resolve(PET_DUPLICATE_STDERR_FILTERS=text).duplicate_stderr_filters == expected


def test_modes_of_binding_are_known_by_name() -> None:
    assert resolve("--numa-binding", "core-complex").numa_binding == "core-complex"
    assert resolve(LAUNCHER_NUMA_BINDING="node").numa_binding == "node"
    with pytest.raises(UsageError, match=r"^--numa-binding numa is neither node, socket, exclusive nor core-complex$"):
        resolve("--numa-binding", "numa")


def test_the_built_in_logs_have_a_name_of_their_own_as_with_torchrun() -> None:
    assert resolve("--logs-specs", "default").logs_specs is None
    assert resolve("--logs-specs", "mine").logs_specs == "mine"
