"""The ways to start something on one machine, and jobs beside and inside each other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.jobs.single_node import Job


def test_the_script_s_arguments_with_a_dollar_arrive_as_under_torchrun(tmp_path: Path) -> None:
    arguments = ("$HOME", "$$", "${local_rank}x", "$local_rank", "a$", "$${local_rank}", "${rank}", "$1 $", "--", "")
    with Job(tmp_path, "--nproc-per-node", "2", arguments=arguments,
             script="import json; mark('got', json.dumps(sys.argv[1:]))") as job:  # fmt: skip
        assert job.wait().exit_code == 0
    for rank in range(2):
        expected = ["$HOME", "$", f"{rank}x", str(rank), "a$", "${local_rank}", "${rank}", "$1 $", "--", ""]
        assert json.loads(job.mark("got", rank, 1)) == expected


SEES = "mark('sees', ' '.join([__name__, *sys.argv]))"


def test_a_module_runs_as_by_python_m(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "work.py").write_text(
        "import os, sys\nopen('saw', 'w').write(' '.join([__name__, __package__, *sys.argv[1:]]))\n"
    )
    with Job(tmp_path, "-m", "package.work", script="") as job:
        assert job.wait().exit_code == 0
    assert (tmp_path / "saw").read_text() == "__main__ package train.py"


@pytest.mark.parametrize("options", [(), ("--run-path",)], ids=["script", "run-path"])
def test_a_script_sees_itself_as_the_main_program(tmp_path: Path, options: tuple[str, ...]) -> None:
    with Job(tmp_path, *options, script=SEES, arguments=("-x", "1")) as job:
        assert job.wait().exit_code == 0
    assert job.mark("sees", 0, 1) == "__main__ train.py -x 1"


@pytest.mark.parametrize(("code", "expected"), [("sys.exit(0)", 0), ("sys.exit(4)", 4), ("1 / 0", 1)])
def test_the_exit_code_of_run_path_is_the_script_s(tmp_path: Path, code: str, expected: int) -> None:
    with Job(tmp_path, "--run-path", script=code) as job:
        ended = job.wait()
    assert ended.exit_code == expected
    assert ("ZeroDivisionError" in ended.stderr) == (code == "1 / 0")


def test_a_directory_with_main_runs(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "__main__.py").write_text("import os, helper; open('ran', 'w').write(helper.NAME)\n")
    (tmp_path / "project" / "helper.py").write_text("NAME = 'beside it'\n")
    with Job(tmp_path, "project", script="") as job:
        assert job.wait().exit_code == 0
    assert (tmp_path / "ran").read_text() == "beside it"


def test_with_a_virtual_local_rank_a_worker_has_rank_0_and_its_own_device(tmp_path: Path) -> None:
    script = "mark('has', os.environ['LOCAL_RANK'] + ' ' + os.environ['CUDA_VISIBLE_DEVICES'])"
    with Job(tmp_path, "--nproc-per-node", "2", "--virtual-local-rank", script=script,
             env={"CUDA_VISIBLE_DEVICES": "5,3"}) as job:  # fmt: skip
        assert job.wait().exit_code == 0
    assert [job.mark("has", rank, 1) for rank in range(2)] == ["0 5", "0 3"]


def test_a_virtual_local_rank_without_a_device_is_a_usage_error(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node", "3", "--virtual-local-rank", script="mark('ran')",
             env={"CUDA_VISIBLE_DEVICES": "5,3"}) as job:  # fmt: skip
        ended = job.wait()
    assert ended.exit_code == 2
    assert "CUDA_VISIBLE_DEVICES=5,3, and local rank 2 finds none" in ended.stderr
    assert not any(job.has_mark("ran", rank, 1) for rank in range(3))


# Rank 0 listens where the others are told to come, as the store behind env:// does.
MEET = """
import socket
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if RANK == 0:
    server = socket.create_server(address)
    mark("listens")
    peer = server.accept()[0]
    mark("met", peer.recv(100).decode())
else:
    wait_for(f"listens-0-{ROUND}")
    with socket.create_connection(address) as peer:
        peer.send(os.environ["TORCHELASTIC_RUN_ID"].encode())
wait_for("../go")
"""


def test_two_jobs_side_by_side_do_not_meet(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    words = ("--nproc-per-node", "2", "--log-dir", str(tmp_path / "logs"))
    with (
        Job(tmp_path / "one", *words, "--rdzv-id", "one", script=MEET) as one,
        Job(tmp_path / "two", *words, "--rdzv-id", "two", script=MEET) as two,
    ):
        assert one.mark("met", 0, 1) == "one"
        assert two.mark("met", 0, 1) == "two"
        (tmp_path / "go").touch()
        assert (one.wait().exit_code, two.wait().exit_code) == (0, 0)
    assert len(os.listdir(tmp_path / "logs")) == 2


def test_a_job_inside_a_worker_is_a_job_of_its_own(tmp_path: Path) -> None:
    """And its failure reaches the outer report: the inner agent writes to the error file it was given."""
    script = """
if "inner" not in sys.argv:
    sys.exit(subprocess.call([sys.executable, "-m", "launcher", "--nproc-per-node", "2", "train.py", "inner"]))
mark("inner", " ".join(os.environ[name] for name in ("WORLD_SIZE", "TORCHELASTIC_RUN_ID")))
if RANK == 1:
    import json
    content = {"message": {"message": "the inner reason", "extraInfo": {"py_callstack": "the inner reason"}}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump(content, file)
    sys.exit(7)
"""
    with Job(tmp_path, "--rdzv-id", "outer", "--rdzv-backend", "c10d", script=script) as job:
        ended = job.wait()
    assert ended.exit_code == 7
    world_size, run_id = job.mark("inner", 1, 1).split()
    assert world_size == "2"
    assert run_id != "outer"
    assert ended.stderr.rpartition("Root Cause")[2].count("the inner reason") == 1
