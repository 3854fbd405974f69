"""What is remarked upon although nothing reads it: names that are nearly ours, options behind the script."""

from __future__ import annotations

import re

import pytest

from launcher.config.options import command_line
from launcher.config.options.readers import PASSWORD_HINT
from launcher.extensions.hints.remarks import KNOWN, explain_missing_script, find_misspelt_variables, list_remarks
from tests.support.documents.pages import ROOT
from tests.support.options import resolve


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LAUNCHER_NPROC_PER_NDOE", "LAUNCHER_NPROC_PER_NODE"),
        ("LAUNCHER_NPROC", "LAUNCHER_NPROC_PER_NODE"),
        ("LAUNCHER_JOB_SECRT", "LAUNCHER_JOB_SECRET"),
        ("LAUNCHER_RDZV_ENDPONT", "LAUNCHER_RDZV_ENDPOINT"),
        ("PET_MAX_RESTART", "PET_MAX_RESTARTS"),
        ("PET_MESH", "LAUNCHER_MESH"),
        ("MESHRUN_NNODES", "LAUNCHER_NNODES"),
        ("TORCHRUN_RDZV_ENDPONT", "LAUNCHER_RDZV_ENDPOINT"),
    ],
)
def test_a_name_that_is_nearly_ours_is_remarked_upon_without_its_value(name: str, meant: str) -> None:
    found = find_misspelt_variables({name: "hunter2", "HOME": "/"})
    assert found == {name: f"unknown variable {name}: did you mean {meant}?"}


@pytest.mark.parametrize(
    "name",
    [
        "LAUNCHER_DIR",
        "LAUNCHER_JOB_FILE",
        "LAUNCHER_WORKDIR",
        "LAUNCHER_GROUP",
        "LAUNCHER_",
        "PET_",
        "LAUNCHERS",
        "MESHRUN_HOME",
    ],
)
def test_other_programs_may_have_variables_of_their_own(name: str) -> None:
    assert find_misspelt_variables({name: "1"}) == {}
    assert find_misspelt_variables({"LAUNCHER_NPROC_PER_NDOE": ""}) == {}, "it counts as not given"


def test_variables_of_kubernetes_and_of_the_code_cause_no_remark() -> None:
    links = {"LAUNCHER_PORT": "tcp://10.0.0.1:9090", "LAUNCHER_METRICS_PORT": "tcp://10.0.0.1:9090"}
    assert find_misspelt_variables(links) == {}
    assert command_line.resolve_values({}, links)["metrics-port"].text == ""
    texts = (path.read_text() for folder in ("launcher", "rendezvous") for path in (ROOT / folder).rglob("*.py"))
    named = {name for text in texts for name in re.findall(r'"(LAUNCHER_[A-Z_]+[A-Z])"', text)}
    assert {"LAUNCHER_ROUND", "LAUNCHER_POD_GRACE"} <= named
    assert named <= KNOWN
    assert find_misspelt_variables(dict.fromkeys(KNOWN, "1")) == {}


def remarks(line: str) -> list[str]:
    return list_remarks(command_line.parse(line.split()), {})


def test_options_behind_the_script_are_remarked_upon_if_only_ours() -> None:
    sentence = " passed to t.py: put options of meshrun before the script"
    assert remarks("t.py --nproc-per-node 2") == ["--nproc-per-node is" + sentence]
    assert remarks("t.py --max_restarts=3 --lr 1 --nnodes 2") == ["--max_restarts, --nnodes are" + sentence]
    assert remarks("t.py --help --version --module --log-dir x --devices 2 --mesh a --nproc 2 -r3") == []
    assert remarks("--nproc-per-node 2 t.py --nproc-per-node 2") == []  # the script has this option too


@pytest.mark.parametrize(
    ("word", "is_remarked"),
    [
        ("--role=$ROLE", True),
        ("--role={{ role }}", True),
        ('--role="a"', True),
        ("--role='a'", True),
        ("--role=`a`", True),
        ("--duplicate-stdout-filters='loss'", False),
        ('--duplicate-stderr-filters={"step":,$1', False),
    ],
)
def test_a_text_that_is_hardly_meant_is_remarked_upon_unless_it_is_looked_for(word: str, is_remarked: bool) -> None:
    assert any(note.startswith(word.replace("=", " ", 1)) for note in resolve(word).notes) == is_remarked


@pytest.mark.parametrize("word", ["--rdzv-endpoint=me:hunter2@h.py", "--rdzv-conf=password=hunter2.py"])
def test_a_password_that_may_be_a_script_is_not_repeated(word: str) -> None:
    assert explain_missing_script(command_line.parse([word])) == PASSWORD_HINT
