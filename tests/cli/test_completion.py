"""Completion in real shells: what stands on the command line after Tab, not what the scripts say.

bash and zsh complete in a terminal only, so each runs in one; fish tells its completions to a script.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.config import completion
from launcher.config.options.table import BY_NAME, list_options
from tests.cli.running import run
from tests.support.processes.terminal import Terminal

BIN = os.path.dirname(sys.executable)
READY, DONE = "ready>", "<done"
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
# A terminal without colours, one candidate in a line is enough, and no bell.
START = {
    "bash": 'bind "set bell-style none"; bind "set completion-query-items 0"; bind "set page-completions off"; ',
    "zsh": "unsetopt zle_bracketed_paste auto_remove_slash prompt_cr prompt_sp beep; LISTMAX=10000; "
    "autoload -Uz compinit; compinit -D; ",
}


class Shell(Terminal):
    """A shell in a terminal, with completion of one command loaded."""

    def __init__(self, shell: str, script: Path, place: Path) -> None:
        super().__init__()
        environ = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(place), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
        environ |= {"COLUMNS": "200", "LINES": "100"}
        self.start(["setsid", "--ctty", *SHELLS[shell]], cwd=place, env=environ)
        self.type(f"stty -echo cols 200 rows 100; {START[shell]}source {script}; PS1='{READY}'\n")
        self.wait_for(READY)

    def complete(self, words: str) -> str:
        """The command as it is run after Tab."""
        self.type(f"{words}\t\n")
        return self.wait_for(DONE).rpartition("got:")[2].strip()


@pytest.fixture(scope="module", params=list(SHELLS))
def terminal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in which `meshrun` prints its words; files to complete lie in its directory."""
    shell = str(request.param)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    place = tmp_path_factory.mktemp(shell)
    (place / "train_long_name.py").touch()
    (place / "logs_of_runs").mkdir()
    script = place / "completion"
    shown = f'meshrun() {{ echo "got: $* {DONE}"; }}'
    texts = [run("meshrun", "--completion", shell).out, run("meshctl", "completion", shell).out]
    script.write_text("\n".join([*texts, shown, ""]))
    with Shell(shell, script, place) as opened:
        yield opened


@pytest.mark.parametrize(
    ("typed", "run_as"),
    [
        ("meshrun --nproc-per", "--nproc-per-node"),
        ("meshrun --on-hang rest", "--on-hang restart"),
        ("meshrun --on-hang=rest", "--on-hang=restart"),
        ("meshrun --rdzv-backend c1", "--rdzv-backend c10d"),
        ("meshrun -h rendez", "-h rendezvous"),
        ("meshrun --completion fi", "--completion fish"),
        ("meshrun train_lo", "train_long_name.py"),
        ("meshrun --nnodes 1:4 --mesh dp=2,tp=4 --standal", "--nnodes 1:4 --mesh dp=2,tp=4 --standalone"),
        ("meshrun --nnodes=1:4 train_lo", "--nnodes=1:4 train_long_name.py"),
        ("meshrun --log-dir logs_", "--log-dir logs_of_runs/"),
        ("meshrun train_long_name.py --data logs_", "train_long_name.py --data logs_of_runs/"),
    ],
)  # fmt: skip
def test_tab_completes_options_values_and_files(terminal: Shell, typed: str, run_as: str) -> None:
    assert terminal.complete(typed) == run_as


FISH = {
    "meshrun --nproc-per": ["--nproc-per-node"],
    "meshrun --on-hang r": ["report", "restart"],
    "meshrun --on-hang=rest": ["--on-hang=restart"],
    "meshrun -h loca": ["locality"],
    "meshrun --mesh dp=2 --standal": ["--standalone"],
    "meshrun train_lo": ["train_long_name.py"],
    "meshctl undr": ["undrain"],
}


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_the_same(tmp_path: Path) -> None:
    (tmp_path / "train_long_name.py").touch()
    program = f"{BIN}/meshrun --completion fish | source; {BIN}/meshctl completion fish | source"
    program += "".join(f"; complete -C '{typed}'; echo" for typed in FISH)
    environ = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    command = ["fish", "--no-config", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=60, check=True)
    offered = [[line.partition("\t")[0] for line in text.splitlines()] for text in done.stdout.split("\n\n")]
    assert dict(zip(FISH, offered, strict=False)) == FISH


def test_words_of_a_value_are_those_of_its_metavar() -> None:
    assert completion.list_words(BY_NAME["rdzv-backend"]) == ("static", "c10d", "etcd")
    assert completion.list_words(BY_NAME["nproc-per-node"]) == ("auto", "gpu", "cpu", "xpu")
    assert completion.list_words(BY_NAME["tee"]) == ()


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_option_is_completed(shell: str) -> None:
    text = completion.render(shell)
    for option in list_options():
        assert (f"-l {option.name} " if shell == "fish" else option.flag) in text
