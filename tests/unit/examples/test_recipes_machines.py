"""The recipes that are neither jobs nor scripts: the unit of systemd, the image, the init container, the etcd."""

from __future__ import annotations

import ast
import json
import re
import shlex

from launcher.agent import command
from launcher.config import credentials
from tests.support.documents.pages import ROOT
from tests.support.documents.recipes import EXAMPLES, KUBERNETES, documents

MARGIN_S = 15.0
PAGES = ("cluster/bare-metal", "start/installation", "cluster/kubernetes", "cluster/skypilot", "cluster/slurm")
FOLDERS = ("bare-metal", "kubernetes", "skypilot", "slurm")
UNIT = EXAMPLES / "bare-metal" / "meshrun@.service"
DOCKERFILE = KUBERNETES / "Dockerfile"


def requirements(name: str) -> list[str]:
    """What the project needs, or one of its extras."""
    found = re.search(rf"^{name} = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return list(ast.literal_eval(found[1])) if found else []


def unit() -> dict[str, list[str]]:
    """The settings of the unit: name -> its values in order."""
    settings: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        settings.setdefault(name, []).append(value)
    return settings


def test_the_unit_gives_the_agent_its_grace_and_restarts_it_where_it_helps() -> None:
    settings = unit()
    words, environ = unit_command()
    config = command.parse(words[1:], environ)
    assert settings["KillMode"] == ["mixed"]
    assert float(settings["TimeoutStopSec"][0]) == config.shutdown.shutdown_timeout_s + MARGIN_S
    assert settings["Restart"] == ["on-abnormal"]  # the agent was killed; exit codes are below
    assert settings["RestartForceExitStatus"] == ["75 137"]
    assert settings["SuccessExitStatus"] == ["143"]
    assert settings["OOMPolicy"] == ["continue"]
    assert float(settings["RestartSec"][0]) * int(settings["StartLimitBurst"][0]) < 3600
    assert config.rendezvous.settings["on_finished"] == "exit"


def unit_command() -> tuple[list[str], dict[str, str]]:
    """The words and variables of the unit for run exp-41, with the file of variables that its comment shows."""
    settings = unit()
    assignments = " ".join(settings["Environment"]).split()
    assignments += re.findall(r"^#     (\w+=\S+)$", UNIT.read_text(), re.MULTILINE)
    environ = dict(each.replace("%i", "exp-41").replace("%d", "/run/credentials").split("=", 1) for each in assignments)
    words = settings["ExecStart"][0].replace("$TRAIN_ARGS", environ["TRAIN_ARGS"])
    return shlex.split(words.replace("%i", "exp-41")), environ


def test_the_unit_runs_a_job_of_several_machines_with_secrets_in_files() -> None:
    words, environ = unit_command()
    config = command.parse(words[1:], environ)
    assert words[0].endswith("/bin/meshrun")
    assert (config.rendezvous.run_id, config.notes) == ("exp-41", ())
    assert (config.placement.nodes_min, config.placement.nodes_max) == (4, 8)
    assert config.rendezvous.network is not None
    assert (config.rendezvous.network.backend, config.rendezvous.network.uses_tls) == ("etcd", True)
    loaded = {line.partition(":")[0] for line in unit()["LoadCredential"]}
    given = credentials.find_variables(environ)
    assert {environ[variable].rpartition("/")[2] for variable in given.values()} == loaded
    assert all(variable.endswith("_FILE") for variable in given.values())


def test_the_task_of_skypilot_needs_no_options_for_its_nodes() -> None:
    (task,) = documents(EXAMPLES / "skypilot" / "train.yaml")
    environ = {
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NODE_IPS": "\n".join(f"10.0.0.{number}" for number in range(task["num_nodes"])),
        "SKYPILOT_INTERNAL_JOB_ID": "1",
        "SKYPILOT_TASK_ID": "sky-managed-1",
        "SKYPILOT_NUM_GPUS_PER_NODE": task["resources"]["accelerators"].partition(":")[2],
        "RAY_JOB_ID": "01000000",
    }
    program, *words = shlex.split(re.sub(r"\$(\w+)", lambda found: environ[found[1]], task["run"]))
    config = command.parse(words, environ)
    assert (program, config.devices.worker_count) == ("meshrun", 8)
    assert (config.placement.nodes_min, config.placement.nodes_max) == (4, 4)
    assert config.rendezvous.run_id == "sky-managed-1"
    assert config.notes == ("SkyPilot: this is node 1 of 4, and node 0 is 10.0.0.0",)


def test_the_image_gets_one_layer_that_runs_no_shell_in_front_of_the_agent() -> None:
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert [name for name, _ in lines] == ["ARG", "FROM", "ARG", "RUN"]
    assert lines[2][1] == "COMMIT="
    assert 'MESHRUN_COMMIT="${COMMIT}" ' in lines[3][1]
    extras = re.search(r"'/src\[([\w,]+)\]'", lines[-1][1])
    assert extras
    assert all(requirements(extra) for extra in extras[1].split(","))
    lent = {line[1:] for line in (KUBERNETES / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert lent == {"launcher", "rendezvous", "meshrun.py", "pyproject.toml", "setup.py", "README.md", "LICENSE"}
    for words in re.findall(r"(?:ENTRYPOINT|CMD) (.*)", text):
        assert json.loads(words) == ["meshrun"]


def test_the_init_container_installs_only_what_the_agent_needs() -> None:
    [job] = documents(KUBERNETES / "init-container.yaml")
    spec = job["spec"]["template"]["spec"]
    [init], [main] = spec["initContainers"], spec["containers"]
    words = [*init["command"], *init["args"]]
    assert init["image"] == main["image"]
    assert words[:4] == ["python", "-m", "pip", "install"]
    assert "--no-deps" in words
    target = next(word.partition("=")[2] for word in words if word.startswith("--target="))
    assert {"name": "PYTHONPATH", "value": target} in main["env"]
    for container in (init, main):
        assert target in {mount["mountPath"] for mount in container["volumeMounts"]}
    names = {re.split(r"[<>=]", requirement)[0] for requirement in requirements("dependencies")}
    installed = {word for word in words[4:] if not word.startswith("-")}
    assert names - {"numpy"} <= installed
    [wheel] = [word for word in installed if "meshrun" in word]
    assert re.fullmatch(r"/shared/meshrun-[\d.]+-py3-none-any\.whl", wheel), "meshrun is on no index"
    assert {"name": "shared", "mountPath": "/shared", "readOnly": True} in init["volumeMounts"]
    assert "numpy" not in installed


def test_every_recipe_is_named_in_a_guide() -> None:
    guides = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in PAGES)
    files = {path.name for folder in FOLDERS for path in (EXAMPLES / folder).iterdir() if path.is_file()}
    assert not {name for name in files if name not in guides and not name.endswith(".dockerignore")}
    named = set(re.findall(r"examples/[\w/.@-]+\w", guides)) | {
        f"examples/kubernetes/{name}" for name in re.findall(r"^\| `([\w-]+\.yaml)`", guides, re.MULTILINE)
    }
    assert not {name for name in named if not (ROOT / name).exists()}
