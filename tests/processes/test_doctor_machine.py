"""meshctl doctor on machines that really lack something: a group with a quota, a full /dev/shm, small limits."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 60.0
CTL = (sys.executable, "-m", "launcher.meshctl.main", "doctor", "--json")
NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "", "PATH": os.environ.get("PATH", os.defpath)}


def examined(command: tuple[str, ...], prepare: Callable[[], None] | None = None) -> dict[str, Any]:
    done = subprocess.run(
        command, env=NO_DEVICES, capture_output=True, text=True, timeout=LIMIT_S, preexec_fn=prepare, check=False
    )  # fmt: skip
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["verdict"]["would_start"] else 1)
    return found


def seen(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {finding["check"]: (finding["level"], finding["seen"]) for finding in found["findings"]}


@pytest.fixture
def group() -> Iterator[tuple[Path, str]]:
    """A control group of our own with half a CPU, and the name of the file that says so."""
    name = f"meshrun-test-{os.getpid()}"
    unified, old = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")
    folder, file, text = unified / name, "cpu.max", "50000 100000"
    if (old / "cpu.cfs_quota_us").exists():
        folder, file, text = old / name, "cpu.cfs_quota_us", "50000"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        (folder / file).write_text(text)
    except OSError as error:
        folder.rmdir()
        pytest.skip(f"no quota can be given here: {error.strerror}")
    yield folder, file
    folder.rmdir()


def test_a_quota_of_half_a_cpu_is_seen(group: tuple[Path, str]) -> None:
    folder, file = group

    def enter() -> None:
        (folder / "cgroup.procs").write_text("0")

    level, words = seen(examined((*CTL, "--", "--nproc-per-node=2"), enter))["cpu-quota"]
    assert (level, words) == ("hurt", f"a quota of 0.5 CPUs for 2 workers, in {folder}/{file}")


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of mounts and networks take root")
LISTEN = (
    "import os, socket, sys\n"
    "held = [socket.create_server(('127.0.0.1', port)) for port in (15001, 15006)]\n"
    "sys.exit(os.spawnv(os.P_WAIT, sys.argv[1], sys.argv[1:]))\n"
)


@NEEDS_ROOT
def test_full_disks_and_somebody_who_listens_like_a_sidecar_are_seen(tmp_path: Path) -> None:
    steps = " && ".join(
        f"mount -t tmpfs -o size=1m none {disk} && {{ cat /dev/zero > {disk}/left 2> /dev/null; true; }}"
        for disk in ("/dev/shm", tmp_path)
    )
    inside = ("unshare", "--mount", "--net", "sh", "-c", f'{steps} && ip link set lo up && exec "$@"', "sh")
    found = examined((*inside, sys.executable, "-c", LISTEN, *CTL, "--", f"--log-dir={tmp_path}/logs"))
    assert seen(found)["shared-memory"] == ("hurt", "/dev/shm has 1 MiB, of which 0 bytes are free")
    assert found["machine"]["shared_memory"]["size"] == 1 << 20
    assert seen(found)["logs"] == ("stop", f"{tmp_path}/logs is full: 0 bytes are free")
    assert seen(found)["sidecar"] == ("hurt", "a proxy of Istio is in this pod: it listens on ports 15001 and 15006")


@NEEDS_ROOT
def test_a_disk_for_logs_that_is_read_only_would_stop_a_job(tmp_path: Path) -> None:
    steps = f'mount -t tmpfs -o ro none {tmp_path} && exec "$@"'
    found = examined(("unshare", "--mount", "sh", "-c", steps, "sh", *CTL, "--", f"--log-dir={tmp_path}/logs"))
    assert seen(found)["logs"] == ("stop", f"{tmp_path}/logs cannot be written: its file system is read-only")


def test_a_few_open_files_are_too_few_for_an_agent_and_enough_for_doctor() -> None:
    found = examined(CTL, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)))
    level, words = seen(found)["open-files"]
    assert level == "stop"
    assert words.startswith("at most 8 files may be open (ulimit -Hn)")
