"""--preload and --standby: which modules are imported once, and how many workers wait for a restart."""

from __future__ import annotations

import pytest

from launcher.calls import payload
from launcher.config import config
from launcher.config.config import Config
from launcher.config.options import command_line, warm
from launcher.model.errors import UsageError


def resolve(*words: str, **environ: str) -> Config:
    return config.resolve(command_line.parse([*words, "train.py"]), environ, "/usr/bin/python3")


def refusal(*words: str, **environ: str) -> tuple[str, str | None]:
    with pytest.raises(UsageError) as caught:
        resolve(*words, **environ)
    return str(caught.value), caught.value.hint


def test_modules_arrive_in_the_order_in_which_they_are_to_be_imported() -> None:
    assert resolve("--preload", "torch, torch.distributed,my_models").preload == (
        "torch", "torch.distributed", "my_models",
    )  # fmt: skip
    by_variable = resolve(LAUNCHER_PRELOAD="torch", LAUNCHER_STANDBY="2", LAUNCHER_MAX_RESTARTS="1")
    assert (by_variable.preload, by_variable.standby) == (("torch",), 2)
    assert by_variable.origins["preload"] == "LAUNCHER_PRELOAD"
    assert resolve(LAUNCHER_PRELOAD="").preload == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("torch,,jax", "--preload torch,,jax holds an empty name"),
        ("torch,", "--preload torch, holds an empty name"),
        (" ", "--preload ' ' holds an empty name"),
        ("my-models", "--preload my-models: my-models is no name of a module"),
        ("models/net.py", "--preload models/net.py: models/net.py is no name of a module"),
        (".torch", "--preload .torch: .torch is no name of a module"),
        ("a.import", "--preload a.import: a.import is no name of a module"),
        ("torch,jax,torch", "--preload torch,jax,torch names torch twice"),
    ],
)
def test_what_no_import_statement_could_name_is_refused(text: str, sentence: str) -> None:
    assert refusal(f"--preload={text}")[0] == sentence


@pytest.mark.parametrize("text", ["-1", "some", "1.5", "17"])
def test_a_number_of_sets_that_makes_no_sense_is_refused(text: str) -> None:
    assert refusal(f"--standby={text}")[0].startswith(f"--standby {text}")


def test_only_python_can_be_warm() -> None:
    sentence = "{}: --no-python runs a program, and only Python can be forked with modules in memory"
    assert refusal("--preload=torch", "--no-python")[0] == sentence.format("--preload torch")
    assert refusal("--no-python", LAUNCHER_STANDBY="1") == (
        sentence.format("LAUNCHER_STANDBY=1"),
        "leave out LAUNCHER_STANDBY, or give Python's script itself",
    )
    assert not resolve("--no-python", "--standby=0").standby


def test_a_function_in_workers_is_python_whatever_its_command_says() -> None:
    assert resolve("--preload=torch", "--no-python", LAUNCHER_CALL="/tmp/call").preload == ("torch",)
    assert payload.CALL_VARIABLE == warm.CALL_VARIABLE


def test_workers_may_wait_without_any_module_in_memory() -> None:
    made = resolve("--standby=1", "--max-restarts=3")
    assert (made.preload, made.standby, made.notes) == ((), 1, ())


def test_where_nothing_is_restarted_nobody_waits_for_a_restart() -> None:
    made = resolve("--standby=1")
    assert made.standby == 0
    assert made.notes == ("--standby 1 has no effect without --max-restarts: nothing is restarted here",)
    network = ("--nnodes=1:2", "--rdzv-backend=etcd", "--rdzv-endpoint=k:2379", "--rdzv-id=x")
    assert resolve("--standby=1", *network).standby == 1
