"""The file to attach to a bug report: whole where a part of the machine is broken, new, and without secrets."""

from __future__ import annotations

import os
import resource
import signal
import threading
from importlib import metadata
from pathlib import Path

import pytest

from launcher.hardware.linux.sysfs import FileTree
from launcher.meshctl.doctor import last_run, report
from launcher.meshctl.doctor.redact import REMOVED
from launcher.meshctl.doctor.report import Section, list_sections, write_report
from launcher.model.errors import LauncherError, UsageError
from rendezvous import __version__

CALM = Section("calm", "what is well", lambda: "all is well\n")


def fail() -> str:
    raise ZeroDivisionError("of the driver")


def refuse() -> str:
    raise UsageError("--mesh is wrong", "correct it")


def test_a_part_that_fails_or_hangs_costs_itself_alone(tmp_path: Path) -> None:
    over = threading.Event()

    def hang() -> str:
        over.wait(60)
        return "late"

    sections = [
        Section("first", "1", fail),
        Section("second", "2", hang),
        Section("third", "3", refuse),
        Section("fourth", "4", lambda: exit(3)),
        CALM,
    ]
    told = write_report(str(tmp_path / "r.txt"), sections, (), limit_s=0.1)
    over.set()
    text = (tmp_path / "r.txt").read_text()
    parts = dict(part.split(" ===\n\n") for part in text.split("\n=== ")[1:])
    assert parts["first"].startswith("not read: ZeroDivisionError: of the driver\n\nTraceback")
    assert parts["second"].startswith("not read: it took more than 0.1 s\n")
    assert "over.wait(60)" in parts["second"]
    assert parts["third"] == "not read: --mesh is wrong\nhint: correct it\n"
    assert parts["fourth"].startswith("not read: SystemExit: 3")
    assert parts["calm"] == "all is well\n"
    assert told.splitlines()[1:6] == [
        "  first           not read",
        "  second          not read",
        "  third           not read",
        "  fourth          not read",
        "  calm            what is well",
    ]


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    file, link = tmp_path / "r.txt", tmp_path / "link"
    file.write_text("mine")
    link.symlink_to(tmp_path / "elsewhere")
    for path in (file, link, tmp_path, Path("/dev/null")):
        with pytest.raises(UsageError, match="already exists"):
            write_report(str(path), [CALM], ())
    assert file.read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(LauncherError, match="cannot be written: No such file or directory"):
        write_report(str(tmp_path / "no" / "r.txt"), [CALM], ())


def test_a_report_that_does_not_fit_leaves_no_part(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"

    def fill() -> str:
        raise AssertionError("never asked")

    def write_much() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        return "x" * 2000

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(LauncherError, match="cannot be written: File too large"):
            write_report(str(path), [Section("much", "", write_much), Section("more", "", fill)], ())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert not path.exists()


def test_a_name_is_needed_and_a_missing_thread_costs_the_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="--report needs the name of a new file"):
        write_report("", [CALM], ())
    monkeypatch.setattr(report, "start_thread", lambda *_: None)
    told = write_report(str(tmp_path / "r.txt"), [CALM], ())
    assert "  calm            not read" in told
    assert "not read: no thread can be started" in (tmp_path / "r.txt").read_text()


def test_the_file_is_this_users_alone_and_cannot_move_a_terminals_cursor(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    odd = "\x1b[2Jtwo\nlines \udcff of my-secret-word"
    write_report(str(path), [Section("odd", "letters", lambda: odd)], ["my-secret-word"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().endswith(f"=== odd ===\n\n\\x1b[2Jtwo\nlines \\udcff of {REMOVED}\n")


def test_an_examination_that_is_refused_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "job_01234567").mkdir()
    sections = {one.title: one for one in list_sections(refuse, {"LAUNCHER_LOG_DIR": str(tmp_path)})}  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        sections["findings"].read()
    assert sections["last run"].read().startswith(f"{tmp_path}/job_01234567\n0 files")
    assert sections["details"].read() == "none, see the findings"
    assert sections["variables"].read() == f"LAUNCHER_LOG_DIR={tmp_path}"


def test_the_variables_that_matter_are_shown(tmp_path: Path) -> None:
    environ = {
        "NCCL_DEBUG": "INFO",
        "LAUNCHER_JOB_SECRET": "x",
        "https_proxy": "http://u:p@proxy",
        "HOME": "/home/n",
        "SLURM_JOB_NAME": "a\nb",
    }
    assert report.describe_variables(environ).splitlines() == [
        f"LAUNCHER_JOB_SECRET={REMOVED}",
        "NCCL_DEBUG=INFO",
        r"SLURM_JOB_NAME=a\nb",
        f"https_proxy=http://{REMOVED}@proxy",
    ]
    assert report.describe_variables({"HOME": "/home/n"}) == "none of them is set"
    words = ["--rdzv-conf", "user=a,password_file=/x/y,timeout=3"]
    assert [*report.find_secret_files(words, {"PET_RDZV_CONF": "password_file=z"})] == ["/x/y", "z"]


def test_versions_are_shown_and_a_damaged_package_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME=x\nPRETTY_NAME="Example 12"\n')

    def find(name: str) -> str:
        if name == "torch":
            raise ValueError("no version")
        if name == "numpy":
            return "9.9"
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", find)
    shown = report.describe_versions(FileTree(str(tmp_path)))
    rows = {line[:22].strip(): line[22:] for line in shown.splitlines()}
    assert rows["meshrun"].startswith(f"{__version__}, commit ")
    assert (rows["system"], rows["numpy"], rows["torch"]) == ("Example 12", "9.9", "ValueError: no version")
    assert "jax, jaxlib" in shown.partition("not installed:")[2]


def test_control_groups_are_shown_with_their_limits(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/job\n",
        "proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/job/memory.max": "1073741824\n",
        "sys/fs/cgroup/job/memory.events": "low 0\noom_kill 3\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shown = report.describe_groups(FileTree(str(tmp_path)))
    assert shown.splitlines() == [
        "0::/job",
        "",
        "/sys/fs/cgroup/job",
        "  memory.max            1073741824",
        "  memory.events         low 0 oom_kill 3",
        "",
        "/sys/fs/cgroup",
        "  no limit and no counter",
    ]
    assert report.describe_groups(FileTree(str(tmp_path / "none"))) == "/proc/self/cgroup cannot be read"


# --- the last run ---


def make_run(folder: Path, name: str, at: float, **files: str) -> Path:
    place = folder / name
    place.mkdir(parents=True)
    for file, text in files.items():
        (place / file.replace("__", ".")).write_text(text)
    os.utime(place, (at, at))
    return place


def test_the_newest_run_of_a_log_directory_is_found(tmp_path: Path) -> None:
    assert last_run.find_newest(str(tmp_path / "none"), {}) is None
    make_run(tmp_path, "a_00000001", 2000)
    make_run(tmp_path, "b_00000002", 1000)
    make_run(tmp_path, "notes", 9000)
    assert last_run.find_newest(str(tmp_path), {}) == str(tmp_path / "a_00000001")
    (tmp_path / "latest-run").symlink_to("b_00000002")
    assert last_run.find_newest(str(tmp_path), {}) == str(tmp_path / "b_00000002")


def test_a_temporary_directory_counts_only_if_it_is_this_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "meshrun_0000000a", 2e9)
    make_run(tmp_path, "meshrun_other", 3e9)
    (tmp_path / "meshrun_0000000b").symlink_to(tmp_path)
    assert last_run.find_newest("", {"TMPDIR": str(tmp_path)}) == str(tmp_path / "meshrun_0000000a")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert last_run.find_newest("", {"TMPDIR": str(tmp_path)}) is None


def test_reports_are_shown_within_limits_and_the_output_of_workers_is_not(tmp_path: Path) -> None:
    place = make_run(
        tmp_path, "a_00000001", 1000, events__jsonl="one\n" + "{}\n" * 9000, error__json="x" * 20_000,
        stdout__log="private", crash__txt="stacks",
    )  # fmt: skip
    (place / "rank_0.json").symlink_to("/etc/hostname")
    shown = last_run.describe(str(tmp_path), {})
    assert shown.startswith(f"{place}\n4 files, the newest first\n")
    assert "\n\n--- events.jsonl\n\n{}\n" in shown, "its end"
    assert "--- crash.txt\n\nstacks" in shown
    assert f"--- error.json\n\n{'x' * 16_384}\n... (the rest is left out)" in shown
    assert " 7 stdout.log\n" in shown
    assert "private" not in shown
    assert "rank_0" not in shown
