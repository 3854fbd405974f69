"""`launcher.launch`: the caller's side from the first check to the results.

The options are resolved before anything is started, by the same code as the command's, so error messages are the same.
The agent writes the outcome (the last round, this node's ranks in it, the failures) to a file in place of its report on
stderr: see `launcher.logs.reports.outcome`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from launcher import cli
from launcher.calls import keywords, payload, pickling, process
from launcher.calls.failure import JobFailure, WorkerFailed, add_hint
from launcher.calls.keywords import OptionValue
from launcher.config import files
from launcher.config.options.table import BY_NAME
from launcher.config.scrub import END_FILE
from launcher.logs.reports import outcome
from launcher.model.errors import LauncherError, TemporaryError, UsageError, find_shortage_hint
from launcher.worker import SOCKET_VARIABLE
from rendezvous.errors import EXIT_TEMPORARY, EXIT_USAGE, MeshrunError

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    Arguments = TypeVarTuple("Arguments")

Result = TypeVar("Result")

_ROOT_DIRECTORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_ERRORS: Mapping[int, type[LauncherError]] = {EXIT_USAGE: UsageError, EXIT_TEMPORARY: TemporaryError}
# The options for log files. If none is set, the job's log directory is only this call's.
_LOG_OPTIONS = ("log_dir", "redirects", "tee", "duplicate_stdout_filters", "duplicate_stderr_filters", "logs_specs")


@overload
def launch(
    fn: Callable[[Unpack[Arguments]], Result],
    /,
    *args: Unpack[Arguments],
    nproc: int | str | None = ...,
    mesh: str | Mapping[str, int | str] | None = ...,
    env: Mapping[str, str | None] | None = ...,
    **options: OptionValue,
) -> dict[int, Result]: ...


@overload
def launch(
    fn: str,
    /,
    *args: str,
    nproc: int | str | None = ...,
    mesh: str | Mapping[str, int | str] | None = ...,
    env: Mapping[str, str | None] | None = ...,
    **options: OptionValue,
) -> dict[int, None]: ...


def launch(  # type: ignore[misc]  # mypy does not see that any arguments may be those of a variadic type
    fn: Callable[..., Any] | str,
    /,
    *args: Any,
    nproc: int | str | None = None,
    mesh: str | Mapping[str, int | str] | None = None,
    env: Mapping[str, str | None] | None = None,
    **options: OptionValue,
) -> dict[int, Any]:
    """Run `fn(*args)` in workers and return what each returned, by rank; of several nodes, this node's ranks.

    `nproc` and `mesh` are --nproc-per-node and --mesh; `options` are all other options of the command, with
    underscores: `max_restarts=2`, `standalone=True`, `tee="3"`, `rdzv_endpoint="node0"`. Options that are not set come
    from LAUNCHER_ and PET_ variables, as for the command. `env` adds variables for the workers; None removes one.
    After restarts only the results of the last round count. A text as `fn` is a program, run with `args` as its
    arguments; its results are None.

    Raises WorkerFailed if a worker failed and no restart was left; UsageError for a call that cannot be started;
    TemporaryError if the world was not formed in time; LauncherError for any other end. An interruption of the wait,
    such as KeyboardInterrupt or a SIGTERM, stops all workers first.
    """
    if payload.is_importing():
        raise add_hint(
            UsageError(
                "launch was called while a worker imports the script that it is called in",
                'put the call below `if __name__ == "__main__":`, where only the first process gets to',
            )
        )
    if "nproc_per_node" in options and nproc is not None:
        raise UsageError("nproc and nproc_per_node are the same option")
    try:
        directory = tempfile.mkdtemp(prefix="meshrun_")
    except OSError as error:
        sentence = f"no directory can be made for the call and its results: {error.strerror}"
        raise add_hint(
            UsageError(sentence, find_shortage_hint(error.errno) or "set TMPDIR to one that can be written")
        ) from None
    try:
        return _launch(directory, fn, args, env or {}, {"nproc_per_node": nproc, "mesh": mesh, **options})
    except MeshrunError as error:
        add_hint(error)
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _launch(
    directory: str,
    fn: Callable[..., Any] | str,
    args: Sequence[Any],
    env: Mapping[str, str | None],
    options: Mapping[str, OptionValue],
) -> dict[int, Any]:
    if callable(fn):
        # The name is for `ps`, and for nodes to check that they run the same; it is not executed.
        title = pickling.format_name(fn)
        program = [
            word.replace("$", "$$") for word in (*_make_python_command("bootstrap"), title)
        ]  # a user's ${local_rank} is not substituted
    elif isinstance(fn, str):
        title, program = fn, [*map(_format_argument, (fn, *args))]
    else:
        raise UsageError(f"launch runs a function, or a program by its name, and not a {type(fn).__name__}")
    environment = _make_environment(env, keywords.list_suppressed_variables(options))
    if callable(fn):
        environment[payload.CALL_VARIABLE] = directory
    job = [*keywords.format_arguments(options), "--no-python", "--", *program]
    is_private = _check_job(job, environment)
    call = payload.FunctionCall(directory)
    if callable(fn):
        call.write(fn, args)
    if is_private:
        job.insert(0, f"--log-dir={directory}/logs")
    file = os.path.join(directory, "end.json")
    environment[END_FILE] = file
    exit_code = process.run([*_make_python_command("agent"), str(os.getpid()), directory, *job], environment)
    end = outcome.read(file)
    if end is None:
        raise LauncherError(f"the launcher of {title} ended with exit code {exit_code}; stderr may say why")
    # Not the exit code from the wait: a caller's own handler of SIGCHLD may have reaped the process.
    if end.exit_code == 0:
        return {rank: call.read_result(end.round, rank) if callable(fn) else None for rank in end.ranks}
    if not end.failures:
        raise _ERRORS.get(end.exit_code, LauncherError)(end.reason, end.hint)
    failures = end.failures
    if is_private:  # their files are about to be removed
        failures = tuple(replace(failure, error_file=None) for failure in failures)
    raise WorkerFailed(
        JobFailure(title=title, failures=failures, outcome=end.reason, is_order_known=end.is_order_known)
    ) from call.read_exception(end.round, failures[0].rank)


def _check_job(job: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Raise UsageError for invalid options; whether no option requests log files."""
    config = cli.parse(job, environment)
    files.check(config)
    return all(config.origins.get(field, "default") == "default" for field in _LOG_OPTIONS)


def _make_environment(changes: Mapping[str, str | None], suppressed: Collection[str]) -> dict[str, str]:
    """Return the caller's environment for the agent and its workers, with the requested changes.

    A caller that is itself a worker starts a job that is independent of its own.
    """
    around: Collection[str] = ()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        around = {SOCKET_VARIABLE, *(variable for option in BY_NAME.values() for variable in option.all_variables)}
    # An error file of the caller's is for the caller's own failure; this job's failure need not cause that.
    unset = {"TORCHELASTIC_ERROR_FILE", END_FILE, *suppressed, *around}
    found = {name: value for name, value in os.environ.items() if name not in unset}
    for name, value in changes.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(name, str) and isinstance(value, str) and name and "=" not in name and "\0" not in name + value:
            found[name] = value
        else:
            raise UsageError(f"env has {name!r}: {value!r}, and names and values of variables are texts without NUL")
    return found


def _make_python_command(module: str) -> list[str]:
    """Return the beginning of a command that runs `main` of a module of this package, in a Python like this one."""
    if not sys.executable:
        raise UsageError("sys.executable is empty: launch does not know which Python to start")
    # By path: from the caller's own location, installed or not.
    start = (
        f"import sys; sys.path.insert(0, {_ROOT_DIRECTORY!r}); from launcher.calls.{module} import main; "
        "sys.exit(main())"
    )
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-u", "-c", start]


def _format_argument(value: object) -> str:
    if not isinstance(value, (str, int, float, os.PathLike)) or isinstance(value, bool):
        raise UsageError(f"a program takes words, and {value!r} is a {type(value).__name__}")
    word = os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)
    if "\0" in word:
        raise UsageError(f"a program takes words without NUL, and not {word!r}")
    return word
