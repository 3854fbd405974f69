"""meshctl doctor: what a run would work with, without starting one."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from launcher.agent import command
from launcher.config.options import table
from launcher.meshctl.doctor.examine import describe_evidence, examine
from launcher.meshctl.doctor.machine import MachineInfo
from launcher.meshctl.doctor.render import render_text
from launcher.model.errors import UsageError
from tests.cli.running import Call, Outcome, run

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def rows(outcome: Outcome) -> list[list[str]]:
    return [line.split() for line in outcome.out.splitlines()]


def words(outcome: Outcome) -> str:
    """The text as if it had not been broken into lines."""
    return " ".join(outcome.out.split())


def test_doctor_shows_every_working_option_with_its_value_and_origin(call: Call) -> None:
    environ = {**NO_GPU, "PET_ROLE": "trainer", "LAUNCHER_MAX_RESTARTS": "3", "PET_MAX_RESTARTS": "9"}
    given = ("--", "--nproc-per-node=2")
    outcome = run("meshctl", "doctor", *given, environ=environ)
    assert (outcome.code, outcome.err) == (0, "")
    assert ["nproc-per-node", "2", "--nproc-per-node"] in rows(outcome)
    assert ["max-restarts", "3", "LAUNCHER_MAX_RESTARTS"] in rows(outcome)
    assert ["role", "trainer", "PET_ROLE"] in rows(outcome)
    options = json.loads(call("meshctl", "doctor", "--json", *given, environ=environ).out)["options"]
    assert options["nnodes"] == {"value": "1:1", "origin": "default"}
    assert options.keys() >= {option.name for option in table.list_options() if option.read is not None}


def test_the_text_fits_80_columns_and_begins_with_a_verdict(call: Call) -> None:
    environ = {**NO_GPU, "LAUNCHER_DUPLICATE_STDOUT_FILTERS": "loss", "HTTPS_PROXY": "http://proxy:3128"}
    outcome = call("meshctl", "doctor", "--", "--log-dir=" + "d" * 90, "--nproc-per-node=1", environ=environ)
    lines = outcome.out.splitlines()
    assert max(map(len, (line for line in lines if " " in line.strip()))) <= 80  # a word that is longer is not torn
    assert not re.search(r"[^\x20-\x7e\n]", outcome.out)
    assert lines[0] == "verdict: a job would start here; no problem was found"
    at = lines.index("  duplicate-stdout-filters")
    assert lines[at + 1].split() == ["loss", "LAUNCHER_DUPLICATE_STDOUT_FILTERS"]


def test_doctor_as_json_is_one_object_and_nothing_else(call: Call) -> None:
    outcome = call("meshctl", "doctor", "--json", environ={**NO_GPU, "PYTHON_EXEC": sys.executable})
    found = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    assert found["version"] == 1
    assert os.path.samefile(found["python"]["agent"], sys.executable)
    assert found["python"]["workers"] == sys.executable
    kinds = [kind["kind"] for kind in found["devices"]]
    assert (kinds[0], kinds[-1]) == ("nvidia", "cpu")
    assert all(kind["reason"] and len(kind["ids"]) == kind["count"] for kind in found["devices"])
    assert found["options"]["rdzv-backend"] == {"value": "static", "origin": "default"}
    assert found["framework"]["names"][0] == "torch"
    assert found["machine"]["cpus"] == len(os.sched_getaffinity(0))
    assert found["verdict"] == {
        "would_start": True, "sentence": "a job would start here; no problem was found",
    }  # fmt: skip
    assert set(found) == FIELDS


FIELDS = {
    "version", "meshrun", "python", "torch", "workers", "devices", "tpu_slice", "frameworks", "framework", "locality",
    "network", "hangs", "controller", "options", "secrets", "machine", "store", "notes", "findings", "verdict",
}  # fmt: skip


def test_the_verdict_comes_first_and_all_fits_half_a_screen(call: Call) -> None:
    lines = call("meshctl", "doctor", environ=NO_GPU).out.splitlines()
    assert lines[0].startswith("verdict: ")
    assert lines[-1].startswith("--json shows every option")
    quiet = examine([], NO_GPU) | {"findings": []}
    assert len(render_text(quiet).splitlines()) < 12


def hurts(*given: str, **environ: str) -> list[tuple[str, str]]:
    found = examine(given, {**NO_GPU, **environ})["findings"]
    return [(finding["check"], finding["seen"]) for finding in found if finding["level"] == "hurt"]


def test_a_loopback_address_may_hurt_a_job_of_several_nodes_only() -> None:
    place = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29400", "--nproc-per-node=1")
    seen = "this node's address is 127.0.0.1, which nodes on other machines cannot reach"
    assert ("address", seen) in hurts("--nnodes=2", *place)
    etcd = ("--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-id=job", "--nproc-per-node=1")
    assert ("address", seen) in hurts("--nnodes=1:2", *etcd)
    assert "address" not in dict(hurts("--nnodes=1", *etcd))


def test_a_mesh_is_that_of_all_nodes_that_are_assumed() -> None:
    given = ("--nproc-per-node=4", "--mesh=pp=2,dp=*,tp=3")
    with pytest.raises(UsageError, match="needs a multiple of 6 workers, not 4"):
        examine(given, NO_GPU)
    assert not [one for one in examine(given, NO_GPU, node_count=3)["findings"] if one["check"] == "placement"]


def test_a_program_that_cannot_be_run_would_stop_a_job(tmp_path: Path) -> None:
    (tmp_path / "plain.sh").write_text("")
    for program in ("no-such-program", str(tmp_path / "plain.sh")):
        found = examine(["--no-python", program], NO_GPU)
        assert [finding["seen"] for finding in found["findings"]] == [f"the program {program} cannot be run"]
        assert not found["verdict"]["would_start"]
    assert examine(["--no-python", sys.executable], NO_GPU)["verdict"]["would_start"]
    assert examine(["--no-python"], NO_GPU)["verdict"]["would_start"]  # it may be missing here


STATIC = ("--nnodes=2", "--nproc-per-node=1", "--node-rank=0")


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (("--lease-ttl=0.1", "--master-addr=127.0.0.1"), "--lease-ttl: a lease of 0.1 s is too short"),
        (("--local-addr=198.51.100.7", "--master-addr=127.0.0.1"), "198.51.100.7 is not an address of this node"),
        (("--mesh=dp=*,tp=2", "--within=tp=leaf", "--master-addr=127.0.0.1"), "no node reports its leaf"),
    ],
)
def test_what_a_run_of_several_nodes_would_refuse_would_stop_a_job(given: tuple[str, ...], seen: str) -> None:
    found = examine([*STATIC, *given], NO_GPU)["findings"]
    assert [finding["level"] for finding in found if seen in finding["seen"]] == ["stop"]


def test_a_port_of_rank_0_that_is_taken_would_stop_a_job() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = examine([*STATIC, "--master-addr=127.0.0.1", f"--master-port={port}"], NO_GPU)["findings"]
    assert [(finding["check"], finding["level"]) for finding in found if "listens there" in finding["seen"]] == [
        ("master-port", "stop")
    ]


def test_doctor_runs_no_health_check_and_writes_nothing(tmp_path: Path) -> None:
    found = examine([f"--health-check=touch {tmp_path}/asked", f"--log-dir={tmp_path}/logs"], NO_GPU)["findings"]
    assert "--health-check is not run by this command" in [finding["seen"] for finding in found]
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_which_secrets_are_set_and_not_what_they_are(call: Call) -> None:
    environ = {**NO_GPU, "LAUNCHER_STORE_TOKEN": "hunter2", "LAUNCHER_ETCD_PASSWORD_FILE": "/run/password"}
    place = ("--rdzv-endpoint=etcds://127.0.0.1:1,127.0.0.1:2", "--rdzv-id=7")
    for more in ((), ("--json",)):
        outcome = call("meshctl", "doctor", *more, "--", *place, environ=environ)
        assert "hunter2" not in outcome.out + outcome.err
        if not more:
            assert ["LAUNCHER_STORE_TOKEN", "set", "by", "LAUNCHER_STORE_TOKEN"] in rows(outcome)
            assert "LAUNCHER_ETCD_PASSWORD set by LAUNCHER_ETCD_PASSWORD_FILE" in words(outcome)
            assert "rdzv-endpoint etcds://127.0.0.1:1,127.0.0.1:2 --rdzv-endpoint" in words(outcome)


def test_an_unnamed_run_is_random_on_one_node_and_none_on_several() -> None:
    def name(*given: str) -> str:
        return str(examine(given, NO_GPU)["options"]["rdzv-id"]["value"])

    assert name() == "random"
    assert name("--nnodes=2", "--master-addr=127.0.0.1", "--node-rank=1") == "none"
    assert name("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1", "--nnodes=2", "--rdzv-conf=is_host=0") == "none"


def test_doctor_imports_no_framework() -> None:
    code = "import sys; from launcher.meshctl.doctor.examine import examine; "
    code += "from launcher.meshctl.doctor.render import render_text; render_text(examine([], {})); "
    code += "print(sorted(sys.modules))"
    loaded = run("python", "-c", code).out
    assert "'launcher.meshctl.doctor'" in loaded
    assert not {"'torch'", "'jax'", "'numpy'", "'grpc'", "'psutil'"} & set(re.findall(r"'[\w.]+'", loaded))


def test_a_detector_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.hardware.accelerators import nvidia

    def broken(*_: object) -> None:
        raise OSError("driver is gone")

    monkeypatch.setattr(nvidia.Detector, "detect", broken)
    found = examine(["--nproc-per-node=cpu"], NO_GPU)["devices"][0]
    assert (found["kind"], found["count"], found["reason"]) == ("nvidia", 0, "OSError: driver is gone")


SLICE = {
    "TPU_WORKER_ID": "1",
    "TPU_WORKER_HOSTNAMES": "t-0.x,t-1.x,t-2.x,t-3.x",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_SKIP_MDS_QUERY": "1",
}


def test_the_slice_of_a_tpu_host_is_shown_and_its_worlds_are_whole_slices() -> None:
    given = (
        "--devices=tpu:4", "--visible-env=TPU_VISIBLE_CHIPS", "--devices-per-worker=all", "--framework=jax",
        "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-conf=is_host=0", "--nnodes=4:8",
    )  # fmt: skip
    found = examine(given, SLICE)
    assert (found["tpu_slice"]["name"], found["tpu_slice"]["worker_id"]) == ("t-0.x", 1)
    assert (found["tpu_slice"]["host_count"], found["tpu_slice"]["hostnames"][3]) == (4, "t-3.x")
    assert {"name": "slice", "domain": "t-0.x", "origin": "TPU_WORKER_HOSTNAMES"} in found["locality"]["levels"]
    assert examine([], NO_GPU)["tpu_slice"] is None
    seen = [one["seen"] for one in examine(given, SLICE, node_count=3)["findings"] if one["check"] == "placement"]
    assert len(seen) == 1
    assert "slice t-0.x has 3 of 4 hosts" in seen[0]
    assert not [one for one in examine(given, SLICE, node_count=5)["findings"] if one["check"] == "placement"]


def test_where_a_node_stands_is_shown_with_origins_and_conflicts() -> None:
    environ = {
        **NO_GPU, "SLURM_JOB_ID": "3", "SLURM_TOPOLOGY_ADDR": "s1.l2.n1", "SLURM_TOPOLOGY_ADDR_PATTERN":
        "switch.switch.node",
    }  # fmt: skip
    locality = examine(["--locality=zone=a,leaf=l7"], environ)["locality"]
    assert [(level["name"], level["domain"], level["origin"]) for level in locality["levels"]] == [
        ("zone", "a", "--locality"), ("spine", "s1", "SLURM_TOPOLOGY_ADDR"), ("leaf", "l7", "--locality"),
    ]  # fmt: skip
    assert locality["remarks"] == ["leaf is l7 by --locality, which counts, and l2 by slurm (SLURM_TOPOLOGY_ADDR)"]
    assert {"kubernetes", "aws"} <= set(locality["no_sign_of"])
    found = examine([], NO_GPU)["locality"]
    assert (found["levels"], found["reason"]) == ([], "no source gives the location of this node")


def test_a_place_that_cannot_be_read_would_stop_a_job_of_several_nodes() -> None:
    def level(*more: str) -> list[str]:
        found = examine(["--locality=@/no/such", "--nproc-per-node=1", *more], NO_GPU)["findings"]
        return [finding["level"] for finding in found if finding["check"] == "locality"]

    assert level() == ["note"]
    place = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-conf=is_host=0")
    assert level(*place) == ["stop"]


def test_a_kind_that_is_not_built_in_is_shown_where_it_is_named() -> None:
    kinds = examine(["--devices=foo:3", "--visible-env=FOO"], NO_GPU)["devices"]
    named = next(kind for kind in kinds if kind["kind"] == "foo")
    assert (named["count"], named["visible_by"]) == (3, "FOO")


@pytest.mark.parametrize(
    ("given", "environ", "known"),
    [
        (("train.py",), {}, {"stacks": "by py-spy", "collectives": "by torch's flight recorder"}),
        (("--framework=jax", "train.py"), {}, {"collectives": "not known: JAX has no flight recorder"}),
        (("train.py",), {"LAUNCHER_HANG_EVIDENCE": "0"}, {"collectives": "not known: LAUNCHER_HANG_EVIDENCE=0"}),
        (("--no-python", "bash"), {"LAUNCHER_HANG_EVIDENCE": "1"}, {"collectives": "by torch's flight recorder"}),
    ],
)
def test_doctor_says_what_will_be_known_of_a_job_that_hangs(
    given: tuple[str, ...], environ: dict[str, str], known: dict[str, str]
) -> None:
    found = examine(given, {"PATH": "/usr/bin:/bin", **environ})["hangs"]
    assert known.items() <= found.items()
    bare = MachineInfo(has_stack_reader=False)
    ours, other = (command.parse([*words, "x"], {}).workers for words in ([], ["--no-python"]))
    assert [describe_evidence(bare, each, ())["stacks"] for each in (ours, other)] == ["written by the workers", "none"]
    assert "set LAUNCHER_HANG_EVIDENCE=1" in describe_evidence(bare, other, ())["collectives"]
