"""The directories and files of a job on this node.

    <log-dir>/<run id>_<random>/attempt_<restart count>/<local rank>/{stdout.log, stderr.log, error.json}
                                                        filtered_{stdout,stderr}.log

is torchrun's layout, on which scripts that collect logs rely. A round that follows another with the same restart
count (a node came or went, which costs no restart) gets `attempt_<count>.round_<n>`. The random part belongs to
this job alone, so existing files are never deleted, truncated or appended to. Beside the attempts there are the
folders of incidents, `incident_<round>_<number>`, which what looks at the workers creates, and `events.jsonl`, what has
happened on this node.

A job of several nodes has one directory on a disk that they share, and in it a folder of each node, named after it:

    <log-dir>/<run id>_<random>/<node>/attempt_<restart count>/<local rank>/...

The random part is the job's own in the store, so no node has to ask another. A folder is made by one agent and used by
no other: the next one of that name, after a restart of the agent, gets `<node>.2`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from launcher.model.console import log
from launcher.model.errors import UsageError

INCIDENTS_MAX = 16
_RANDOM_LENGTH = 8
_RECORDER_DIR_MAX = 90
"""Bytes: the path of a Unix socket has at most 107, see unix(7), and the rest is for round and local rank."""


class LogLayout:
    """The directories of one job on this node, below `root`, created when first requested.

    `root` is "" where no files are kept. Of `node`, one of several, it is known at its first round (`enter_job`).
    Without `log_dir` it is `meshrun_<random>` under TMPDIR, made at once, and error files lie there without the layout;
    raises UsageError if that is impossible. Later failures are left to the code that opens a file there: a full disk
    must not prevent a round. `temporary_dirs`: of `draw_temporary_dirs`, since the keeper, which removes what a killed
    agent has left there, was given them before; by default others.
    """

    def __init__(self, *, log_dir: str | None, run_id: str, temporary_dirs: Sequence[str] = (), node: str = "") -> None:
        self.run_id = run_id
        self.is_temporary = not log_dir
        # torchrun's value for no files at all.
        self.keeps_files = log_dir != os.devnull
        # Absolute: a worker may change its directory before it writes its error file.
        self._log_dir = os.path.abspath(log_dir) if log_dir and self.keeps_files else ""
        self._node = node
        self._round_dirs: dict[int, str] = {}
        self._made_dirs = set[str]()  # in those of the rounds
        self._incident_count = 0
        self._recorder_dir: str | None = None
        self._temporary_dirs = temporary_dirs or draw_temporary_dirs()
        self.job_dir = ""  # of all nodes, if there are several; "" before the first round
        if not log_dir:
            self.root = _make_temporary_dir(self._temporary_dirs)
        elif node or not self.keeps_files:
            self.root = ""
        else:
            self.root = self._name_job_dir(os.urandom(_RANDOM_LENGTH // 2).hex())

    def _name_job_dir(self, random: str) -> str:
        return os.path.join(self._log_dir, f"{make_file_name(self.run_id)}_{random}")

    # docs/internals/decisions/0063-one-log-directory-for-a-run.md
    def enter_job(self, job: str) -> str:
        """Create this node's directory, before its first round; return the place that is news to a user, or "".

        `job`: the job's key in the store, whose random end is in the name of the directory. Of several nodes the first
        on each disk has the news, and one whose folder has not its usual name has that.
        """
        if self.job_dir or not self.keeps_files:
            return ""
        is_first, usual = True, ""
        if self._node and self._log_dir:
            self.job_dir = self._name_job_dir(job[-_RANDOM_LENGTH:])
            is_first = _make_dir(self.job_dir)
            usual = os.path.join(self.job_dir, make_file_name(self._node))
            self.root = _make_own_dir(usual)
        else:
            self.job_dir = self.root = _make_own_dir(self.root) if self._log_dir else self.root
        if is_first and self._log_dir:
            _link_latest(self._log_dir, os.path.basename(self.job_dir))
        return self.job_dir if is_first else self.root if self.root != usual else ""

    def make_stream_path(self, round: int, restart_count: int, local_rank: int, stream: str) -> str | None:
        """Return where `stream` ("stdout" or "stderr") of a worker is kept; None when no files are kept."""
        return self._make_path(round, restart_count, str(local_rank), f"{stream}.log") or None

    def make_filter_path(self, round: int, restart_count: int, stream: str) -> str | None:
        """Return the file for matching lines of `stream`, of all workers; None when no files are kept."""
        return self._make_path(round, restart_count, f"filtered_{stream}.log") or None

    def make_error_path(self, round: int, restart_count: int, local_rank: int) -> str:
        """Return the value of TORCHELASTIC_ERROR_FILE; empty, as with torchrun, when no files are kept."""
        if self.is_temporary:  # nobody looks for a layout there, and each directory costs a start and a restart
            return os.path.join(self.root, f"error_{round}_{local_rank}.json")
        return self._make_path(round, restart_count, str(local_rank), "error.json")

    def make_incident_path(self, round: int) -> str:
        """Return the folder for the next incident of this job, to be created by its writer.

        Empty when no files are kept, and once there are `INCIDENTS_MAX`, which is logged.
        """
        if not self.root or self._incident_count > INCIDENTS_MAX:
            return ""
        self._incident_count += 1
        if self._incident_count > INCIDENTS_MAX:
            log(f"no further incident folders are written: {self.root} has {INCIDENTS_MAX}")
            return ""
        return os.path.join(self.root, f"incident_{round}_{self._incident_count}")

    def make_recorder_path(self, round: int, local_rank: int) -> str:
        """Return where a worker opens its flight recorder's socket; empty if there is no directory for sockets.

        It is the user's alone and a temporary one: not every log directory's file system has sockets, and its path may
        be too long.
        """
        if self._recorder_dir is None and self.is_temporary and len(os.fsencode(self.root)) <= _RECORDER_DIR_MAX:
            self._recorder_dir = self.root
        if self._recorder_dir is None:
            try:
                self._recorder_dir = _make_temporary_dir(self._temporary_dirs, _RECORDER_DIR_MAX)
            except UsageError:
                self._recorder_dir = ""
        return self._recorder_dir and os.path.join(self._recorder_dir, f"{round}.{local_rank}")

    def _make_path(self, round: int, restart_count: int, *parts: str) -> str:
        if not self.keeps_files:
            return ""
        if round not in self._round_dirs:
            path = os.path.join(self.root, f"attempt_{restart_count}")
            if path in self._round_dirs.values():  # a second round with the same restart count
                path = f"{path}.round_{round}"
            self._round_dirs[round] = path
        path = os.path.join(self._round_dirs[round], *parts)
        self._made_dirs.add(os.path.dirname(path))
        # No space, no inodes: the warning of the log file that cannot be opened there will name the reason.
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def remove_needless(self, *, is_success: bool) -> None:
        """Remove, after a success, what this agent has made below --log-dir and is empty; or a temporary directory of
        which nothing is needed.

        Nothing after a failure, whose cause may be storage that hangs. The keeper removes an empty temporary one.
        """
        found = [*os.walk(self.root)] if self.is_temporary and is_success else []
        paths = [os.path.join(directory, name) for directory, _, names in found for name in names]
        with contextlib.suppress(OSError):  # another process has put a file there meanwhile: then it is in use
            if not (is_success and all(map(_is_needless, paths))):
                return
            for path in paths:
                os.unlink(path)
        directories = {self.root, *self._round_dirs.values(), *self._made_dirs}.union(place for place, _, _ in found)
        for directory in sorted(directories, key=len, reverse=True):  # what lies in another has the longer path
            with contextlib.suppress(OSError):  # it has something in it
                os.rmdir(directory)


def _is_needless(path: str) -> bool:
    name = os.path.basename(path)
    is_of_a_failure = name.startswith(("error_", "crash_")) and name.endswith((".json", ".txt"))
    return is_of_a_failure or not os.lstat(path).st_size


def make_file_name(name: str) -> str:
    """Return what a file may be called for this name of a run or a node, with room for an ending."""
    encoded = name.replace("/", "_").replace("\0", "_").encode(errors="surrogateescape")
    # 200 bytes: with the ending still below the 255 that file systems allow.
    return encoded[:200].decode(errors="ignore")


def _make_dir(path: str) -> bool:
    """Return whether this process has made it. Where that is impossible, whoever opens a file there says why."""
    with contextlib.suppress(OSError):
        os.mkdir(path)
        return True
    return False


def _make_own_dir(path: str) -> str:
    """Make a directory that no other agent has, nor had; if one has, with a number behind its name."""
    own, number = path, 1
    while not _make_dir(own) and os.path.lexists(own):
        number += 1
        own = f"{path}.{number}"
    return own


def _link_latest(log_dir: str, name: str) -> None:
    """Let `latest-run` lead to this run; without effect where links are impossible, or the name is a user's."""
    link = os.path.join(log_dir, "latest-run")
    new = os.path.join(log_dir, f".latest-run_{os.urandom(_RANDOM_LENGTH // 2).hex()}")
    with contextlib.suppress(OSError):
        run_id, _, random = os.readlink(link).rpartition("_") if os.path.lexists(link) else name.rpartition("_")
        if "/" not in run_id and len(random) == _RANDOM_LENGTH and not random.strip("0123456789abcdef"):
            os.symlink(name, new)
            os.replace(new, link)
    with contextlib.suppress(OSError):
        os.unlink(new)


def draw_temporary_dirs() -> list[str]:
    """Draw a random name; return its paths in the directories for temporary files, the first choice first."""
    name = f"meshrun_{os.urandom(_RANDOM_LENGTH // 2).hex()}"
    folders = (os.environ.get("TMPDIR"), "/tmp", "/var/tmp")
    return [os.path.abspath(os.path.join(folder, name)) for folder in folders if folder]


def _make_temporary_dir(paths: Sequence[str], length_max: int | None = None) -> str:
    """Create a directory of the user's alone at one of `paths`, of `length_max` bytes at most. Raises UsageError."""
    for path in paths:
        if length_max is None or len(os.fsencode(path)) <= length_max:
            with contextlib.suppress(OSError):
                os.mkdir(path, 0o700)
                return path
    raise UsageError(
        f"no directory for temporary files is writable: {', '.join(map(os.path.dirname, paths))}",
        "set TMPDIR or --log-dir to a writable directory",
    )
