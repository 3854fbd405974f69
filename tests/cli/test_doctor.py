"""meshctl doctor: what a run would work with, without starting one."""

from __future__ import annotations

import json
import os
import sys

import pytest

from launcher import doctor, options
from tests.cli.running import run

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def test_doctor_shows_every_working_option_with_its_value_and_origin() -> None:
    environ = {**NO_GPU, "PET_ROLE": "trainer", "LAUNCHER_MAX_RESTARTS": "3", "PET_MAX_RESTARTS": "9"}
    outcome = run("meshctl", "doctor", "--", "--nproc-per-node=2", "train.py", "--lr", environ=environ)
    assert (outcome.code, outcome.err) == (0, "")
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["nproc-per-node", "2", "--nproc-per-node"] in rows
    assert ["max-restarts", "3", "LAUNCHER_MAX_RESTARTS"] in rows
    assert ["role", "trainer", "PET_ROLE"] in rows
    assert ["nnodes", "1:1", "default"] in rows
    shown = {row[0] for row in rows if row}
    assert shown.issuperset(
        option.name for option in options.TABLE if option.state != "not yet" and option.kind != "ask"
    )


def test_doctor_as_json_is_one_object_and_nothing_else() -> None:
    outcome = run("meshctl", "doctor", "--json", environ={**NO_GPU, "PYTHON_EXEC": "/opt/python"})
    findings = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    assert os.path.samefile(findings["python"]["agent"], sys.executable)
    assert findings["python"]["workers"] == "/opt/python"
    assert [found["kind"] for found in findings["devices"]] == ["nvidia", "cpu"]
    assert all(found["reason"] and len(found["ids"]) == found["count"] for found in findings["devices"])
    assert findings["options"]["rdzv-backend"] == {"value": "static", "origin": "default"}


def test_doctor_says_what_a_run_would_start_or_why_not() -> None:
    assert "\na run would start: 3 workers" in run("meshctl", "doctor", "--", "--nproc-per-node=3", environ=NO_GPU).out
    outcome = run("meshctl", "doctor", "--", "--nproc-per-node=gpu", environ=NO_GPU)
    assert "\na run would not start: --nproc-per-node=gpu, but no GPU was found" in outcome.out
    assert outcome.code == 0


def test_doctor_says_which_secrets_are_set_and_not_what_they_are() -> None:
    environ = {**NO_GPU, "LAUNCHER_STORE_TOKEN": "hunter2", "LAUNCHER_ETCD_PASSWORD_FILE": "/run/password"}
    outcome = run("meshctl", "doctor", "--", "--rdzv-endpoint=etcds://h1,h2", "--rdzv-id=7", environ=environ)
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["LAUNCHER_STORE_TOKEN", "given", "by", "LAUNCHER_STORE_TOKEN"] in rows
    assert ["LAUNCHER_ETCD_PASSWORD", "given", "by", "LAUNCHER_ETCD_PASSWORD_FILE"] in rows
    assert ["rdzv-endpoint", "etcds://h1,h2", "--rdzv-endpoint"] in rows
    assert "hunter2" not in outcome.out + outcome.err


STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[03-06]",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_PROCID": "1",
}


def test_doctor_says_which_controller_it_knows_by_what_and_what_is_made_of_that() -> None:
    words = ("--", "--rdzv-endpoint=gpu03:29400", "--rdzv-backend=c10d")
    outcome = run("meshctl", "doctor", *words, environ={**NO_GPU, **STEP})
    rows = [line.split() for line in outcome.out.splitlines()]
    known = ", ".join(("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST"))
    assert f"\n  Slurm step 4711.2, by {known}\n  this is node 1 of 4, and node 0 is gpu03\n" in outcome.out
    assert ["nnodes", "4", "SLURM_STEP_NUM_NODES,", "used"] in rows
    assert ["nnodes", "4", "SLURM_STEP_NUM_NODES"] in rows
    assert ["rdzv-endpoint", "gpu03:29400", "--rdzv-endpoint"] in rows
    why = "not used: --rdzv-endpoint gpu03:29400 is given"
    assert any(row[:1] == ["rdzv-endpoint"] and " ".join(row).endswith(why) for row in rows)


def test_doctor_says_why_nothing_is_made_of_a_controller() -> None:
    findings = doctor.examine([], {**NO_GPU, "SLURM_JOB_ID": "4711"})
    reason = "no SLURM_STEP_ID: srun has not started this command"
    assert findings["controller"] == {
        "name": "Slurm job 4711", "known_by": ["SLURM_JOB_ID"], "reason": reason, "says": {},
    }  # fmt: skip
    assert f"\njob controller\n  Slurm job 4711, by SLURM_JOB_ID\n  {reason}\n\n" in doctor.describe(findings)
    assert "\njob controller\n  none is recognised\n\n" in doctor.describe(doctor.examine([], NO_GPU))


def test_doctor_repeats_the_remarks_of_a_run() -> None:
    assert "note: --monitor-interval 5 has no effect" in run("meshctl", "doctor", "--", "--monitor-interval=5").out


def test_doctor_does_not_import_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    findings = doctor.examine([], NO_GPU)
    assert "torch" not in sys.modules
    assert findings["torch"] is None or findings["torch"][0].isdigit()


def test_a_detector_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.devices import nvidia

    def broken(*_: object) -> None:
        raise OSError("driver is gone")

    monkeypatch.setattr(nvidia.Detector, "detect", broken)
    found = doctor.examine(["--nproc-per-node=cpu"], NO_GPU)["devices"][0]
    assert found == {"kind": "nvidia", "count": 0, "reason": "OSError: driver is gone", "ids": []}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["doctor", "--", "--nproc-per-node=0"], "meshctl: error: --nproc-per-node 0: at least 1 worker is needed\n"),
        (["doctor", "--no-such"], "meshctl: error: No such option"),
        (["docter"], "meshctl: error: No such command 'docter'."),
        (["status"], "meshctl: error: Missing argument 'RUN_ID'."),
    ],
)
def test_meshctls_errors_look_like_meshruns(words: list[str], sentence: str) -> None:
    outcome = run("meshctl", *words)
    assert outcome.err.startswith(sentence)
    assert (outcome.out, outcome.code) == ("", 2)


def test_meshctl_alone_shows_its_commands() -> None:
    outcome = run("meshctl")
    assert (outcome.code, outcome.err) == (0, "")
    assert {"doctor", "plan"} <= {line.split()[0] for line in outcome.out.partition("Commands:\n")[2].splitlines()}
    assert run("meshctl", "--version").out.startswith("meshctl 0.")
