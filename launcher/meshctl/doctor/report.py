"""`meshctl doctor --report FILE`: one file to attach to a bug report.

It is text, so that its reader sees what they are about to show, and secrets are removed from it. A report is wanted
most from a machine where something is broken, so each section is read by itself, in a thread with a limit: an exception
or a driver that hangs costs that section. Each is written as soon as it is read.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TextIO

from launcher.hardware.linux.cgroup_limits import list_groups
from launcher.hardware.linux.cgroups import UNIFIED
from launcher.hardware.linux.sysfs import FileTree
from launcher.meshctl.doctor import last_run
from launcher.meshctl.doctor.examine import examine, find_version
from launcher.meshctl.doctor.redact import find_secrets, redact, show_variable
from launcher.meshctl.doctor.render import render_text
from launcher.model.concurrency import NO_THREAD, start_thread
from launcher.model.console import escape, format_time
from launcher.model.errors import LauncherError, UsageError, describe_bug, sanitize
from launcher.model.text import wrap
from launcher.views.questions.local_socket import find_local_agents
from launcher.views.version import HOME, find_commit
from rendezvous import __version__
from rendezvous.errors import MeshrunError

SECTION_LIMIT_S = 60.0
"""An examination waits for a store and a metadata service, each for some seconds."""
PACKAGES = (
    "click", "grpcio", "h2", "msgspec", "numpy", "psutil", "py-spy", "cloudpickle", "nvidia-ml-py",
    "prometheus-client", "pyyaml", "ray", "textual", "torch", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
    "jax", "jaxlib", "torch-xla", "libtpu", "paddlepaddle", "paddlepaddle-gpu", "accelerate", "deepspeed", "lightning",
    "megatron-core", "torchx", "transformers",
)  # fmt: skip
VARIABLES = (
    "ASCEND_", "CCL_", "CONDA_", "CUDA_", "FI_", "FLAGS_", "GLOO_", "HIP_", "HSA_", "JAX_", "JOB", "KMP_",
    "KUBERNETES_", "LAUNCHER_", "LD_", "LSB_", "LWS_", "MALLOC_", "MASTER_", "MEGASCALE_", "MESHRUN_", "MKL_", "MPI_",
    "NCCL_", "NVIDIA_", "OMP", "OPENBLAS_", "PADDLE_", "PBS_", "PET_", "PMI", "PYTHON", "PYTORCH_", "RANK", "RAY_",
    "RCCL_", "ROCR_", "SKYPILOT_", "SLURM_", "TORCH", "TPU_", "UCC_", "UCX_", "XLA_", "ZE_", "GROUP_RANK", "LANG",
    "LC_ALL", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV", "WORLD_SIZE",
)  # fmt: skip
"""How the names of the variables begin that launchers, frameworks and their libraries read."""
_DRIVERS = (
    "/proc/driver/nvidia/version", "/sys/module/nvidia/version", "/sys/module/amdgpu/version",
    "/sys/module/mlx5_core/version",
)  # fmt: skip
_GROUP_FILES = {
    UNIFIED: (
        "cgroup.controllers", "cpu.max", "cpu.stat", "memory.max", "memory.high", "memory.current", "memory.peak",
        "memory.swap.max", "memory.events", "memory.oom.group", "pids.max", "pids.current", "pids.events",
    ),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.failcnt"),
    "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.stat"),
    "pids": ("pids.max", "pids.current"),
}  # fmt: skip
STDOUT = "-"
HEAD = """\
meshrun report, written by meshctl doctor --report at {time}

Secrets that could be recognised have been removed. Look through it before you
show it to others: it has names of hosts, users and files, addresses, command
lines and messages of errors.

contents
{contents}
"""


class Section(NamedTuple):
    """A part of the report. `contents` says in a line what is in it."""

    title: str
    contents: str
    read: Callable[[], str]


def make_report(path: str, words: Sequence[str], environ: Mapping[str, str], *, node_count: int | None = None) -> str:
    """Write a report on a run with these arguments, as `examine` takes them; return a text that says what it has."""

    def examine_run() -> Mapping[str, Any]:
        return examine(words, environ, node_count=node_count)

    secrets = find_secrets(environ, find_secret_files(words, environ))
    return write_report(path, list_sections(examine_run, environ), secrets)


def list_sections(examine_run: Callable[[], Mapping[str, Any]], environ: Mapping[str, str]) -> list[Section]:
    """List the parts of a report. The first examines the run; others use what it has found."""
    found: dict[str, Any] = {}

    def read_findings() -> str:
        found.update(examine_run())
        return render_text(found)

    def read_details() -> str:
        return json.dumps(found, indent=1) if found else "none, see the findings"

    def read_last_run() -> str:
        option = found["options"]["log-dir"] if found else {"value": environ.get("LAUNCHER_LOG_DIR", ""), "origin": ""}
        return last_run.describe("" if option["origin"] == "default" else option["value"], environ)

    return [
        Section("findings", "the output of meshctl doctor: verdict, problems, devices, store", read_findings),
        Section("versions", "meshrun and its commit, Python, packages, kernel, drivers", describe_versions),
        Section("control groups", "limits and counters of this process's groups", describe_groups),
        Section("variables", "those that launchers and frameworks read", lambda: describe_variables(environ)),
        Section("agents", "the agents of meshrun on this machine", describe_agents),
        Section("last run", "files in the newest log directory, reports of rounds and failures", read_last_run),
        Section("details", "the object of meshctl doctor --json: options, limits, network", read_details),
    ]


def write_report(
    path: str, sections: Sequence[Section], secrets: Sequence[str], *, limit_s: float = SECTION_LIMIT_S
) -> str:
    """Write them to a new file, or to stdout, and return a text that says what it has.

    Raises UsageError for a file that exists, LauncherError for one that cannot be written.
    """
    if not path:
        raise UsageError("--report needs the name of a new file", f"set --report report.txt, or {STDOUT} for stdout")
    label = "the report" if path == STDOUT else sanitize(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = -1
    try:
        descriptor = os.dup(1) if path == STDOUT else os.open(path, flags, 0o600)  # this user's until they show it
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            failed = _write_sections(file, sections, secrets, limit_s)
    except FileExistsError:
        raise UsageError(f"{label} already exists", "name a new file: a report overwrites nothing") from None
    except BrokenPipeError:
        return f"{label} was not read to its end"
    except OSError as error:
        if descriptor >= 0 and path != STDOUT:  # a part of it would be in the way of the next
            with suppress(OSError):
                os.unlink(path)
        raise LauncherError(f"{label} cannot be written: {error.strerror}") from None
    rows = (_format_row(one.title, "not read" if one.title in failed else one.contents) for one in sections)
    warning = "Secrets that could be recognised are removed: read it before you attach it."
    return "\n".join([f"{label} is written; it contains:", *rows, warning])


def _format_row(title: str, text: str) -> str:
    return f"  {title:<16}{text}"


def _write_sections(file: TextIO, sections: Sequence[Section], secrets: Sequence[str], limit_s: float) -> set[str]:
    """Return the titles of those that could not be read."""
    contents = "\n".join(_format_row(section.title, section.contents) for section in sections)
    file.write(HEAD.format(time=format_time(time.time()), contents=contents))
    failed = set()
    for section in sections:
        text, is_whole = _read_within(section.read, limit_s)
        if not is_whole:
            failed.add(section.title)
        plain = "\n".join(map(escape, redact(text, secrets).rstrip().split("\n")))
        file.write(f"\n=== {section.title} ===\n\n{plain}\n")
        file.flush()
    return failed


def _read_within(read: Callable[[], str], limit_s: float) -> tuple[str, bool]:
    """Return the text and True, or why there is none and False."""
    texts: list[tuple[str, bool]] = []

    def run() -> None:
        try:
            texts.append((read(), True))
        except MeshrunError as error:
            texts.append((f"not read: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), False))
        except (Exception, SystemExit) as error:
            texts.append((f"not read: {describe_bug(error)}\n\n{traceback.format_exc()}", False))

    thread = start_thread(run, "section of a report")
    if thread is None:
        return f"not read: {NO_THREAD}", False
    thread.join(limit_s)
    if texts:
        return texts[0]
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
    return f"not read: it took more than {limit_s:g} s\n\n{stack}", False


# --- what the sections say ---


def describe_versions(files: FileTree | None = None) -> str:
    """Describe the software. `files`: the kernel's."""
    files = files or FileTree()
    system = os.uname()
    pretty = re.search(r'^PRETTY_NAME="?([^"\n]*)', files.read_text("/etc/os-release"), re.MULTILINE)
    lines = {
        "meshrun": f"{__version__}, commit {find_commit() or 'not known'}",
        "installed in": HOME,
        "Python": f"{sys.version} ({sys.executable})",
        "kernel": f"{system.sysname} {system.release} {system.version} {system.machine}",
        "system": pretty[1] if pretty else "not known",
        "C library": " ".join(filter(None, platform.libc_ver())) or "not glibc",
        **{path: " ".join(files.read_text(path).split()) for path in _DRIVERS if files.exists(path)},
        **{name: version for name in PACKAGES if (version := find_version(name))},
    }
    missing = [name for name in PACKAGES if name not in lines]
    rows = [f"{name:<22}{text}" for name, text in lines.items()]
    return "\n".join([*rows, *wrap(f"not installed: {', '.join(missing)}")])


def describe_groups(files: FileTree | None = None) -> str:
    """Describe this process's control groups, the innermost first."""
    files = files or FileTree()
    lines = [files.read_text("/proc/self/cgroup") or "/proc/self/cgroup cannot be read"]
    for controller, names in _GROUP_FILES.items():
        for group in list_groups(files, controller):
            rows = ((name, " ".join(files.read_text(f"{group}/{name}").split())) for name in names)
            shown = [f"  {name:<22}{text}" for name, text in rows if text]
            lines += ["", group, *(shown or ["  no limit and no counter"])]
    return "\n".join(lines)


def describe_variables(environ: Mapping[str, str]) -> str:
    """Describe the variables that matter, without secrets."""
    names = [name for name in sorted(environ) if name.startswith(VARIABLES) or name.lower().endswith("_proxy")]
    return "\n".join(f"{name}={escape(show_variable(name, environ[name]))}" for name in names) or "none of them is set"


def describe_agents() -> str:
    """Describe the agents of this user here."""
    agents, silent = find_local_agents()
    lines = [
        f"run {sanitize(agent.run_id)}, node {sanitize(agent.node)}, pid {agent.pid}, meshrun {sanitize(agent.version)}"
        for agent in agents
    ]
    return "\n".join([*lines, *(f"pid {pid} does not answer" for pid in silent)]) or "none"


def find_secret_files(words: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the files of passwords that an option names, or its variable."""
    texts = (*words, *(text for name, text in environ.items() if name.endswith("_RDZV_CONF")))
    return (found[1] for text in texts for found in re.finditer(r"password_file=([^,\s]+)", text))
