"""The scripts among the recipes, run for real: batch scripts of Slurm, the loop over ssh; and what systemd says.

Stand-ins for srun, scontrol, ssh and meshctl write down how they were called. What they would have started is read by
the launcher's own rules, with the variables that Slurm sets.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.agent import command
from launcher.config import credentials
from launcher.config.config import Config
from tests.support.documents.recipes import EXAMPLES, KUBERNETES

MARGIN_S = 15.0
SLURM = sorted(EXAMPLES.glob("slurm/*.sbatch"))
UNIT = EXAMPLES / "bare-metal" / "meshrun@.service"
LOOP = EXAMPLES / "bare-metal" / "ssh-loop.sh"
CERTIFICATES = KUBERNETES / "etcd-certificates.sh"
# Writes down its words and variables, and ends as CODE_<its name> says.
STAND_IN = f"""#!{sys.executable} -IS
import json, os, sys
name = os.path.basename(sys.argv[0])
with open(os.path.join(os.path.dirname(sys.argv[0]), "calls"), "a") as file:
    file.write(json.dumps([name, sys.argv[1:], dict(os.environ)]) + "\\n")
sys.exit(int(os.environ.get("CODE_" + name, "0")))
"""

# Starts the agent of one node with the recipe's folder of logs, and ends its run when the worker prints.
SRUN = """#!/bin/bash
for word in "$@"; do case $word in --log-dir=* | --tee=*) options+=("$word") ;; esac; done
unset "${!SLURM_@}" "${!LAUNCHER_@}"
export LAUNCHER_RDZV_CONF=is_host=1 LAUNCHER_JOIN_GRACE=0
"$PYTHON" -m meshrun --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29477 --rdzv-id="$ENDS-$$" --nnodes=1:2 \\
    --nproc-per-node=1 --node-name=gpu01 "${options[@]}" "$SCRIPT" > "$STATE/output" &
until grep -qs ready "$STATE/output"; do sleep 0.05; kill -0 $! || break; done
if [ "$ENDS" = stop ]; then "$PYTHON" -m launcher.meshctl.main stop $!; else kill -TERM $!; fi
wait $!
"""


class Call:
    """How a stand-in was called: its words, and its variables."""

    def __init__(self, words: list[str], environ: Mapping[str, str]) -> None:
        self.words = words
        self.environ = environ


def run(directory: Path, script: Path, *words: str, **environ: str) -> tuple[int, dict[str, list[Call]]]:
    """Run a script with stand-ins for what it calls: its exit code, and the calls of each."""
    directory.mkdir(exist_ok=True)
    for name in ("srun", "scontrol", "ssh", "meshctl"):
        (directory / name).write_text(STAND_IN)
        (directory / name).chmod(0o755)
    ended = subprocess.run(
        ["bash", str(script), *words],
        cwd=directory,
        env={"PATH": f"{directory}:{os.environ['PATH']}", "HOME": "/home/me", **environ},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert not ended.stderr or ended.returncode, ended.stderr
    calls: dict[str, list[Call]] = {}
    lines = (directory / "calls").read_text().splitlines() if (directory / "calls").exists() else []
    for name, called, variables in map(json.loads, lines):
        calls.setdefault(name, []).append(Call(called, variables))
    return ended.returncode, calls


def batch_options(script: Path) -> dict[str, str]:
    """What #SBATCH lines say, as sbatch reads them: up to the first command."""
    head = script.read_text().split("\nset -u", 1)[0]
    pairs = (line.partition("=") for line in re.findall(r"^#SBATCH --(\S+)", head, re.MULTILINE))
    return {name: value for name, _, value in pairs}


def step(nodes: int) -> dict[str, str]:
    """What srun tells the task on the second node; the job was started again once."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_CPUS_PER_TASK": "96",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_RESTART_COUNT": "1",
    }


def task(call: Call, nodes: int) -> dict[str, str]:
    """The variables of a task of that step."""
    return {
        **call.environ,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": f"gpu[01-{nodes:02}]",
        "SLURM_JOB_NODELIST": f"gpu[01-{nodes:02}]",
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(nodes),
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{nodes})",
        "SLURM_PROCID": "1",
        "SLURMD_NODENAME": "gpu02",
    }


def agent(call: Call, environ: Mapping[str, str]) -> Config:
    """The Config of the agent that srun would start."""
    return command.parse(call.words[call.words.index("meshrun") + 1 :], environ)


def test_there_are_recipes_for_slurm() -> None:
    assert [script.name for script in SLURM] == ["elastic.sbatch", "train.sbatch"]


@pytest.mark.parametrize("script", [*SLURM, LOOP, CERTIFICATES], ids=lambda script: script.name)
def test_every_script_is_one_that_bash_can_read_and_says_what_it_is_for(script: Path) -> None:
    assert script.read_text().startswith("#!/bin/bash\n# ")
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)
    assert re.search(r"^set -(u|uo pipefail|euo pipefail)$", script.read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")
def test_the_printed_kubectl_commands_name_the_certificate_files(tmp_path: Path) -> None:
    command = [str(CERTIFICATES), str(tmp_path / "two words"), "training"]
    made = subprocess.run(command, capture_output=True, timeout=60, check=True, text=True)
    commands = [shlex.split(line) for line in made.stdout.splitlines() if line.startswith("kubectl ")]
    assert [words[:7] for words in commands] == [
        ["kubectl", "--namespace", "training", "create", "secret", "generic", f"etcd-{who}-tls"]
        for who in ("server", "client")
    ]
    for words in commands:
        files = dict(word.removeprefix("--from-file=").split("=") for word in words[7:])
        assert list(files) == ["ca.crt", "tls.crt", "tls.key"]
        assert all(Path(file).is_file() for file in files.values())


@pytest.mark.parametrize("script", SLURM, ids=lambda script: script.name)
def test_a_batch_script_keeps_the_step_after_a_lost_node_and_has_a_grace(script: Path, tmp_path: Path) -> None:
    options = batch_options(script)
    nodes = int(options["nodes"])
    _, calls = run(tmp_path, script, **step(nodes))
    [call] = calls["srun"]
    words = call.words[: call.words.index("meshrun")]
    assert {"--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"} == set(words)
    assert {"no-kill", "requeue", "exclusive"} <= options.keys()
    assert options["mem"] == "0"  # --exclusive is about cores and GPUs; memory would be the default of the partition
    assert options["ntasks-per-node"] == "1"
    assert call.environ["SRUN_CPUS_PER_TASK"] == "96"
    # TERM to the step and not to the shell, early enough for the agent's grace.
    name, _, before_s = options["signal"].partition("@")
    config = agent(call, task(call, nodes))
    assert (name, f"SIG{name}" in config.shutdown.signals_to_handle) == ("TERM", True)
    assert float(before_s) >= config.shutdown.shutdown_timeout_s + MARGIN_S


@pytest.mark.parametrize("script", SLURM, ids=lambda script: script.name)
def test_the_command_of_a_batch_script_is_one_job_with_spares(script: Path, tmp_path: Path) -> None:
    nodes = int(batch_options(script)["nodes"])
    _, calls = run(tmp_path, script, **step(nodes))
    config = agent(calls["srun"][0], task(calls["srun"][0], nodes))
    assert config.placement.nodes_max is not None
    assert config.placement.nodes_max < nodes
    assert config.rendezvous.network is not None
    assert config.rendezvous.attempt == 1
    assert config.workers.max_restarts
    assert not [note for note in config.notes if "Slurm step" not in note]
    if config.rendezvous.network.backend == "etcd":
        assert (
            config.rendezvous.run_id,
            config.rendezvous.network.uses_tls,
            config.placement.nodes_min < config.placement.nodes_max,
        ) == ("4711.0", True, True)
        given = credentials.find_variables(calls["srun"][0].environ)
        assert given == {name: f"{name}_FILE" for name in ("LAUNCHER_ETCD_USER", "LAUNCHER_ETCD_PASSWORD")}
    else:
        assert config.rendezvous.network.endpoints[0].startswith("gpu01:")


def test_without_an_etcd_the_elastic_script_meets_at_the_first_node(tmp_path: Path) -> None:
    script = tmp_path / "elastic.sbatch"
    lines = (EXAMPLES / "slurm" / "elastic.sbatch").read_text().splitlines(keepends=True)
    script.write_text("".join(line for line in lines if not line.startswith("export LAUNCHER_RDZV")))
    _, calls = run(tmp_path / "run", script, **step(34))
    config = agent(calls["srun"][0], task(calls["srun"][0], 34))
    assert config.rendezvous.network is not None
    assert (config.rendezvous.network.backend, config.placement.nodes_min, config.placement.nodes_max) == (
        "served",
        16,
        32,
    )


@pytest.mark.parametrize("script", SLURM, ids=lambda script: script.name)
@pytest.mark.parametrize("code", [0, 1, 2, 75, 137, 143])
def test_a_batch_script_is_requeued_where_it_helps_and_keeps_the_exit_code(
    script: Path, code: int, tmp_path: Path
) -> None:
    ended, calls = run(tmp_path, script, CODE_srun=str(code), **step(4))
    again = {75, 143} | ({137} if script.name == "elastic.sbatch" else set())
    assert ended == code
    assert [call.words for call in calls.get("scontrol", [])] == ([["requeue", "4711"]] if code in again else [])


@pytest.mark.parametrize("script", SLURM, ids=lambda script: script.name)
def test_a_batch_job_that_meshctl_has_stopped_stays_stopped(script: Path, tmp_path: Path) -> None:
    """A real agent with the script's folder of logs, once ended by `meshctl stop` and once by Slurm's SIGTERM."""
    (tmp_path / "job.py").write_text("import signal\nprint('ready', flush=True)\nsignal.pause()\n")
    for ends, requeued in (("stop", False), ("term", True)):
        place = tmp_path / ends
        place.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", f'#!/bin/sh\necho "$@" > {place}/requeued\n')):
            (place / name).write_text(text)
            (place / name).chmod(0o755)
        environ = {"PATH": f"{place}:{os.environ['PATH']}", "HOME": str(tmp_path), "SLURM_JOB_ID": "4711"}
        environ |= {"PYTHON": sys.executable, "SCRIPT": str(tmp_path / "job.py"), "ENDS": ends, "STATE": str(place)}
        ended = subprocess.run(
            ["bash", str(script)], cwd=place, env=environ, capture_output=True, timeout=60, check=False
        )
        assert ended.returncode == 143, ended.stderr.decode()
        assert (place / "requeued").exists() == requeued
        assert [path.read_text() for path in place.glob("logs/4711/latest-run/*/attempt_0/0/stdout.log")] == ["ready\n"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/train/venv/bin/meshrun", shutil.which("true") or ""))
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert not [line for line in (ended.stdout + ended.stderr).decode().splitlines() if UNIT.stem[:7] in line]
    assert ended.returncode == 0


def test_the_loop_over_ssh_replaces_the_shell_of_each_host_by_one_agent(tmp_path: Path) -> None:
    words = ["exp-41", "node0", "node1", "node2", "--", "--nproc-per-node", "8", "train.py", "--name", "a b"]
    ended, calls = run(tmp_path, LOOP, *words)
    assert ended == 0
    remote = {call.words[-2]: call.words[-1] for call in calls["ssh"]}
    assert sorted(remote) == ["node0", "node1", "node2"]
    assert len(set(remote.values())) == 1
    change, _, line = remote["node0"].partition(" && exec ")
    assert shlex.split(change) == ["cd", str(tmp_path)]
    program, *options = shlex.split(line)
    config = command.parse(options, {})
    assert (program, config.rendezvous.run_id, config.placement.nodes_min, config.placement.nodes_max) == (
        "meshrun",
        "exp-41",
        3,
        3,
    )
    assert config.rendezvous.network is not None
    assert (config.rendezvous.network.backend, config.rendezvous.network.endpoints, config.notes) == (
        "served",
        ("node0:29400",),
        (),
    )
    assert (config.workers.script, config.workers.script_args) == ("train.py", ("--name", "a b"))
    assert all({"-n", "BatchMode=yes"} <= set(call.words) for call in calls["ssh"])
    assert sorted(path.name for path in (tmp_path / "exp-41").iterdir()) == ["node0.log", "node1.log", "node2.log"]


def test_the_loop_ends_with_the_exit_code_of_the_job(tmp_path: Path) -> None:
    ended, _ = run(tmp_path, LOOP, "exp-41", "node0", "node1", "--", "train.py", CODE_ssh="3")
    assert ended == 3


@pytest.mark.parametrize(
    "words", [[], ["exp-41"], ["exp-41", "node0"], ["exp-41", "--", "train.py"], ["exp-41", "n", "--"]]
)
def test_the_loop_says_how_it_is_called_when_words_are_missing(words: list[str], tmp_path: Path) -> None:
    ended, calls = run(tmp_path, LOOP, *words)
    assert ended == 2
    assert not calls


def test_the_loop_stops_the_job_in_its_store_when_it_is_told_to_end(tmp_path: Path) -> None:
    # ssh goes on until meshctl has stopped the run, as an agent does.
    run(tmp_path, LOOP, "exp-41", "node0", "--", "train.py")
    (tmp_path / "ssh").write_text(
        '#!/bin/sh\nkill -TERM "$PPID"\nuntil [ -e stopped ]; do sleep 0.01; done\nexit 143\n'
    )
    (tmp_path / "meshctl").write_text('#!/bin/sh\necho "$@" > words\n: > stopped\n')
    ended = subprocess.run(
        ["bash", str(LOOP), "exp-41", "node0", "--", "train.py"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 143
    assert (tmp_path / "words").read_text().split()[:2] == ["stop", "exp-41"]
