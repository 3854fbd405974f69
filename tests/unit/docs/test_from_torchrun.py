"""The pages for those who come from torchrun leave nothing out, and every command line there is understood.

What they say of differences is held against both launchers by `make slow WHAT=compat`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import yaml

from launcher.agent import command
from launcher.config.options import table
from tests.compat.differences import PAGE, differences
from tests.support.documents.pages import ROOT, blocks

GUIDE = ROOT / "docs/start/from-torchrun.md"
TEXT = PAGE.read_text()
# What torchrun's workers find, and what its agent reads beside PET_ variables: torch 2.13's own source.
VARIABLES = """
RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE
MASTER_ADDR MASTER_PORT OMP_NUM_THREADS CUDA_VISIBLE_DEVICES TORCH_NCCL_ASYNC_ERROR_HANDLING
TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE
TORCHELASTIC_ERROR_FILE TORCHELASTIC_SIGNALS_TO_HANDLE TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_TIMER_FILE
TORCHELASTIC_HEALTH_CHECK_PORT TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT
TORCH_ELASTIC_SHUTDOWN_TIMEOUT TORCH_ELASTIC_WORKER_IDENTICAL PYTHON_EXEC
"""


def rows(mark: str) -> set[str]:
    """What stands in code marks in the first cells of the tables' rows and looks like this."""
    cells = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    return {word for cell in cells for word in re.findall(rf"`({mark}[^`]*)`", cell)}


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """The words behind every `meshrun` in blocks of commands, with the line where it stands."""
    for block in blocks(GUIDE):
        if block.language != "bash":
            continue
        for line in block.script.replace("\\\n", " ").splitlines():
            words = shlex.split(line.partition("|")[0], comments=True)
            if words[:1] == ["meshrun"]:
                yield f"{block.where}: {line}", words[1:]


def test_every_flag_and_variable_has_its_row_and_every_difference_its_reason() -> None:
    theirs = {option.flag for option in table.list_options() if option.source != "ours" and option.read is not None}
    assert rows("--") & theirs == theirs
    assert set(VARIABLES.split()) <= rows("[A-Z]")
    found = differences()
    assert len(found) > 20
    assert not [row.behaviour for row in found.values() if not (row.torchrun and row.meshrun and row.why)]
    assert not [row.behaviour for row in found.values() if row.torchrun == row.meshrun]


def test_every_command_line_is_understood_and_one_after_is_the_one_before() -> None:
    lines = list(command_lines())
    assert len(lines) >= 4
    for where, words in lines:
        words = [word.replace("$NODE_RANK", "1").replace("$MASTER_ADDR", "node0") for word in words]
        assert command.parse(words, {}).workers.script, where
    after = [" ".join(words) for _, words in command_lines()]
    before = [
        " ".join(shlex.split(line)[1:])
        for block in blocks(GUIDE)
        for line in block.text.replace("\\\n", " ").splitlines()
        if line.startswith("torchrun ")
    ]
    assert len(before) >= 2
    assert set(before) <= set(after)


def test_the_container_of_the_job_is_understood() -> None:
    (block,) = [block for block in blocks(GUIDE) if block.language == "yaml"]
    (container,) = yaml.safe_load(block.text)["containers"]
    environ = {variable["name"]: variable["value"] for variable in container["env"]}
    config = command.parse(container["args"], environ)
    assert (container["command"], config.workers.script, config.workers.max_restarts) == (["meshrun"], "train.py", 3)
    assert (config.placement.nodes_min, config.placement.nodes_max) == (2, 4)
    assert (config.devices.worker_count, config.rendezvous.run_id) == (8, "job")
