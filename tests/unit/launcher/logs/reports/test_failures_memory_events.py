"""Finding the kernel's count of kills for memory, on the layouts of control groups that hosts and containers have."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.logs.reports.failures import count_oom_kills, is_out_of_memory

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 7\n"
OOM_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


def events(tmp_path: Path, *, cgroup: str, mounts: list[str], files: dict[str, str]) -> str:
    """A /proc/self and a /sys/fs/cgroup below `tmp_path`; {sys} in `mounts` stands for the latter."""
    proc, system = tmp_path / "proc", tmp_path / "sys"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text("".join(f"{mount.format(sys=system)}\n" for mount in mounts))
    for name, content in files.items():
        path = system / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(proc)


ROOT = "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
V2 = "30 21 0:26 / {sys} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "expected"),
    [
        pytest.param(
            "0::/user.slice/session-1.scope\n",
            [ROOT, V2],
            {"user.slice/session-1.scope/memory.events": EVENTS, "user.slice/memory.events": "oom_kill 9\n"},
            2,
            id="a host with version 2",
        ),
        pytest.param("0::/\n", [ROOT, V2], {"memory.events": EVENTS}, 2, id="a container with its own name space"),
        pytest.param("0::/\n", [ROOT, V2], {"cpu.stat": ""}, None, id="the root group, which has no count"),
        pytest.param(
            "0::/kubepods/pod1/c2\n",
            [ROOT, V2.replace(" / {sys}", " /kubepods/pod1/c2 {sys}")],
            {"memory.events": EVENTS},
            2,
            id="a container that sees its group's path as the host does",
        ),
        pytest.param(
            "0::/../other\n", [ROOT, V2], {"memory.events": EVENTS}, 2, id="a group outside of what is mounted"
        ),
        pytest.param(
            "9:cpu,cpuacct:/job\n4:memory:/job\n0::/\n",
            [
                ROOT,
                "31 21 0:27 / {sys}/cpu rw - cgroup cgroup rw,cpu,cpuacct",
                "32 21 0:28 / {sys}/memory rw - cgroup cgroup rw,memory",
                "33 21 0:29 / {sys}/unified rw - cgroup2 cgroup2 rw",
            ],
            {"memory/job/memory.oom_control": OOM_CONTROL, "unified/memory.events": "oom_kill 9\n"},
            5,
            id="version 1, with an empty version 2 beside it",
        ),
        pytest.param(
            "4:memory:/docker/abc\n",
            [ROOT, "32 21 0:28 /docker/abc {sys}/memory ro - cgroup cgroup rw,memory"],
            {"memory/memory.oom_control": OOM_CONTROL},
            5,
            id="a container with version 1",
        ),
        pytest.param(
            "4:memory:/\n",
            [ROOT, "32 21 0:28 / {sys}/memory rw - cgroup cgroup rw,memory"],
            {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"},
            None,
            id="a kernel before 4.13",
        ),
        pytest.param("0::/\n", [ROOT], {"memory.events": EVENTS}, None, id="nothing mounted"),
        pytest.param("", [], {}, None, id="no control groups"),
        pytest.param("rubbish\n::\n", ["rubbish", "a b - c"], {}, None, id="rubbish"),
    ],
)
def test_the_count_of_the_own_group_is_found(
    tmp_path: Path, cgroup: str, mounts: list[str], files: dict[str, str], expected: int | None
) -> None:
    assert count_oom_kills(events(tmp_path, cgroup=cgroup, mounts=mounts, files=files)) == expected


def test_the_count_is_read_anew_each_time(tmp_path: Path) -> None:
    memory = events(tmp_path, cgroup="0::/\n", mounts=[V2], files={"memory.events": EVENTS})
    assert count_oom_kills(memory) == 2
    (tmp_path / "sys" / "memory.events").write_text("oom_kill 3\n")
    assert count_oom_kills(memory) == 3
    (tmp_path / "sys" / "memory.events").unlink()
    assert count_oom_kills(memory) is None


def test_without_proc_nothing_is_claimed(tmp_path: Path) -> None:
    assert count_oom_kills(str(tmp_path / "missing")) is None


@pytest.mark.parametrize(
    ("exit_code", "before", "after", "expected"),
    [
        (-9, 2, 3, True),
        (-9, 2, 2, False),
        (-9, None, 3, False),
        (-9, 2, None, False),
        (-15, 2, 3, False),
        (137, 2, 3, False),
        (1, 2, 3, False),
    ],
)
def test_only_a_sigkill_while_the_count_grew_is_a_kill_for_memory(
    exit_code: int, before: int | None, after: int | None, expected: bool
) -> None:
    assert is_out_of_memory(exit_code, before, after) is expected
