"""The directories and files of a job on this node.

    <log-dir>/<run id>_<random>/attempt_<restart count>/<local rank>/{stdout.log, stderr.log, error.json}
                                                        filtered_{stdout,stderr}.log

is torchrun's layout, on which scripts that collect logs rely. A round that follows another with the same restart
count (a node came or went, which costs no restart) gets `attempt_<count>.round_<n>`. The random part belongs to
this job alone, so existing files are never deleted, truncated or appended to. Beside the attempts there are the
folders of incidents, `incident_<round>_<number>`, which what looks at the workers creates, and what is known of each
round, `round_<n>.json`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from launcher.model.console import log
from launcher.model.errors import UsageError, find_shortage_hint

INCIDENTS_MAX = 16
_TRIES = 100
_RANDOM_LENGTH = 8
_RECORDER_DIR_MAX = 90
"""Bytes: the path of a Unix socket has at most 107, see unix(7), and the rest is for round and local rank."""


class LogLayout:
    """The directories of one job on this node: created when first requested, the topmost at once.

    Without `log_dir` they lie in `meshrun_<random>` under TMPDIR, error files without the layout. Raises UsageError if
    the topmost cannot be created. Later failures are left to the code that opens a file there: a full disk must not
    prevent a round. `temporary_dirs`: of `draw_temporary_dirs`, since the keeper, which removes what a killed agent has
    left there, was given them before; by default others.
    """

    def __init__(self, *, log_dir: str | None, run_id: str, temporary_dirs: Sequence[str] = ()) -> None:
        self.run_id = run_id
        self.is_temporary = not log_dir
        # torchrun's value for no files at all.
        self.keeps_files = log_dir != os.devnull
        self._round_dirs: dict[int, str] = {}
        self._incident_count = 0
        self._recorder_dir: str | None = None
        self._temporary_dirs = temporary_dirs or draw_temporary_dirs()
        if not log_dir:
            self.root = _make_temporary_dir(self._temporary_dirs)
        elif not self.keeps_files:
            self.root = os.devnull
        else:
            # Absolute: a worker may change its directory before it writes its error file.
            self.root = _make_job_dir(os.path.abspath(log_dir), run_id)

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
        if not self.keeps_files or self._incident_count > INCIDENTS_MAX:
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
        # No space, no inodes: the warning of the log file that cannot be opened there will name the reason.
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def remove_after_success(self) -> None:
        """Remove the temporary directory if it has only what failed workers leave; the keeper, an empty one."""
        if not self.is_temporary:
            return
        found = list(os.walk(self.root, topdown=False))
        if not all(_is_error_file(name) for _, _, names in found for name in names):
            return
        with contextlib.suppress(OSError):  # another process has put a file there meanwhile: then it is in use
            for directory, _, names in found:
                for name in names:
                    os.unlink(os.path.join(directory, name))
                os.rmdir(directory)


def _is_error_file(name: str) -> bool:
    return name.startswith(("error_", "crash_")) and name.endswith((".json", ".txt"))


def _make_job_dir(log_dir: str, run_id: str) -> str:
    try:
        os.makedirs(log_dir, exist_ok=True)
        name = run_id.replace("/", "_").replace("\0", "_").encode(errors="surrogateescape")
        # 200 bytes: with the random part still below the 255 that file systems allow.
        name_start = name[:200].decode(errors="ignore")
        for _ in range(_TRIES):
            path = os.path.join(log_dir, f"{name_start}_{os.urandom(_RANDOM_LENGTH // 2).hex()}")
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
                return path
        raise FileExistsError
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"--log-dir {log_dir} is not a directory") from None
    except OSError as error:
        raise UsageError(
            f"--log-dir {log_dir} cannot be written: {error.strerror}",
            find_shortage_hint(error.errno) or "set --log-dir to a directory in which this user may create files",
        ) from None


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
