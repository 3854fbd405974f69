"""`launcher.launch`: the caller's side from the first check to the results.

Keywords become a command line: `max_restarts=2, mesh={"dp": "*", "tp": 2}`. The table of options defines the format of
each, so a keyword is an option's name with underscores and nothing is listed twice.
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
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec.structs import replace

from launcher.calls import payload, process
from launcher.calls.failure import add_hint, require_success
from launcher.config import files
from launcher.config.options.readers import Option
from launcher.config.options.table import SETTING_BY_NAME, SETTINGS, find_row, list_options
from launcher.config.scrub import CALL_VARIABLE, END_FILE
from launcher.logs.reports import outcome
from launcher.model.errors import LauncherError, UsageError, find_shortage_hint, suggest
from rendezvous.errors import MeshrunError

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    Arguments = TypeVarTuple("Arguments")

Result = TypeVar("Result")
Scalar = str | int | float
OptionValue = Scalar | Sequence[Scalar] | Mapping[str, Scalar] | Mapping[int, Scalar] | None
"""The value of an option: a text or number; True or False for a flag; a sequence for several values or FIRST:LAST; a
mapping for pairs; None for not set."""

_ROOT_DIRECTORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SCRIPT_MODES = ("module", "no-python", "run-path", "legacy-local-rank")
# The options for log files. If none is set, the job's log directory is only this call's.
_LOG_OPTIONS = ("log_dir", "redirects", "tee", "duplicate_stdout_filters", "duplicate_stderr_filters")


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
    """Run `fn(*args)` in workers and return the results of this node's ranks, by rank.

    `nproc` and `mesh` are --nproc-per-node and --mesh; `options` are all other options of the command, with
    underscores: `max_restarts=2`, `standalone=True`, `tee="3"`, `rdzv_endpoint="node0"`. Options that are not set come
    from LAUNCHER_ and PET_ variables, as for the command. `env` adds variables for the workers; None removes a
    variable. After a restart, only the results of the last round are returned. If `fn` is a string, it is a program
    that runs with `args` as its arguments, and all results are None.

    Raises WorkerFailed if a worker failed and no restart was left, UsageError if the call cannot start, TemporaryError
    if the nodes did not form a job in time, and LauncherError for any other error. An interruption of the wait, such
    as KeyboardInterrupt or SIGTERM, first stops all workers.
    """
    refuse_while_importing("launch")
    if "nproc_per_node" in options and nproc is not None:
        raise UsageError("nproc and nproc_per_node are the same option")
    try:
        directory = tempfile.mkdtemp(prefix="meshrun_")
    except OSError as error:
        sentence = f"cannot create a directory for the call and its results: {error.strerror}"
        raise add_hint(
            UsageError(sentence, find_shortage_hint(error.errno) or "set TMPDIR to a writable directory")
        ) from None
    try:
        return _launch(directory, fn, args, env or {}, {"nproc_per_node": nproc, "mesh": mesh, **options})
    except MeshrunError as error:
        add_hint(error)
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def refuse_while_importing(name: str) -> None:
    """Raise UsageError in a worker that imports its caller's script. `name`: of the function that was called."""
    if payload.is_importing():
        raise add_hint(
            UsageError(
                f"{name} was called while a worker imports the script that it is called in",
                'put the call below `if __name__ == "__main__":`, which a worker does not run',
            )
        )


def _launch(
    directory: str,
    fn: Callable[..., Any] | str,
    args: Sequence[Any],
    env: Mapping[str, str | None],
    options: Mapping[str, OptionValue],
) -> dict[int, Any]:
    if callable(fn):
        # The name is for `ps`, and for nodes to check that they run the same; it is not executed.
        title = payload.format_name(fn)
        program = [
            word.replace("$", "$$") for word in (*make_python_command("launcher.calls.bootstrap"), title)
        ]  # a user's ${local_rank} is not substituted
    elif isinstance(fn, str):
        title, program = fn, [*map(format_argument, (fn, *args))]
    else:
        raise UsageError(f"launch needs a function or the name of a program, not a {type(fn).__name__}")
    environment = _make_environment(env, list_suppressed_variables(options))
    if callable(fn):
        environment[CALL_VARIABLE] = directory
    job = [*format_arguments(options), "--no-python", "--", *program]
    is_private = _check_job(job, environment)
    call = payload.FunctionCall(directory)
    if callable(fn):
        call.write(fn, args)
    if is_private:
        job.insert(0, f"--log-dir={directory}/logs")
    file = os.path.join(directory, "end.json")
    environment[END_FILE] = file
    exit_code = process.run(
        [*make_python_command("launcher.calls.agent"), str(os.getpid()), directory, *job], environment
    )
    end = outcome.read(file)
    if end is None:
        raise LauncherError(f"the launcher of {title} ended with exit code {exit_code}; stderr may say why")
    # Not the exit code from the wait: a caller's own handler of SIGCHLD may have reaped the process.
    failures = end.failures
    if is_private:  # their files are about to be removed
        failures = tuple(replace(failure, error_file=None) for failure in failures)
    require_success(title, end, failures, call.read_exception(end.round, failures[0].rank) if failures else None)
    return {rank: call.read_result(end.round, rank) if callable(fn) else None for rank in end.ranks}


def _check_job(job: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Raise UsageError for invalid options; whether no option requests log files."""
    from launcher.agent.command import parse

    config = parse(job, environment)
    files.check_script(config.workers, config.placement.mesh)
    files.check_log_dir(config.output.log_dir)
    return all(config.output.origins[field] == "default" for field in _LOG_OPTIONS)


def _make_environment(changes: Mapping[str, str | None], suppressed: Collection[str]) -> dict[str, str]:
    """Return the caller's environment for the agent and its workers, with the requested changes.

    A caller that is itself a worker starts a job that is independent of its own.
    """
    around: Collection[str] = ()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        around = {variable for option in (*list_options(), *SETTINGS) for variable in option.variables}
    # An error file of the caller's is for the caller's own failure; this job's failure need not cause that.
    unset = {"TORCHELASTIC_ERROR_FILE", END_FILE, *suppressed, *around}
    found = {name: value for name, value in os.environ.items() if name not in unset}
    for name, value in changes.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(name, str) and isinstance(value, str) and name and "=" not in name and "\0" not in name + value:
            found[name] = value
        else:
            raise UsageError(f"env has {name!r}: {value!r}, but names and values must be strings without NUL")
    return found


def make_python_command(module: str) -> list[str]:
    """Return the beginning of a command that runs `main` of a module of meshrun, in a Python like this one."""
    if not sys.executable:
        raise UsageError("sys.executable is empty: launch does not know which Python to start")
    # By path: from the caller's own location, installed or not.
    start = f"import sys; sys.path.insert(0, {_ROOT_DIRECTORY!r}); from {module} import main; sys.exit(main())"
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-u", "-c", start]


def format_argument(value: object) -> str:
    if not isinstance(value, (str, int, float, os.PathLike)) or isinstance(value, bool):
        raise UsageError(f"arguments of a program must be strings: {value!r} is a {type(value).__name__}")
    word = os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)
    if "\0" in word:
        raise UsageError(f"arguments of a program cannot contain NUL: {word!r}")
    return word


def format_arguments(options: Mapping[str, OptionValue], extra: Sequence[Option] = ()) -> list[str]:
    """Return the equivalent command line. Raises UsageError for what is no option of a launch, nor one of `extra`."""
    own = {option.name.replace("-", "_"): option for option in extra}
    found = []
    for keyword, value in options.items():
        option = own.get(keyword) or _find_option(keyword)
        if value is None:
            continue
        if not option.takes_value:
            if _is_set(option, value):
                found.append(option.flag)
        else:
            found.append(f"{option.flag}={_format_value(option, value)}")
    return found


def list_suppressed_variables(options: Mapping[str, OptionValue]) -> set[str]:
    """Return the variables to ignore: those of flags that are False, and of the script's form."""
    flags = [name.replace("_", "-") for name, value in options.items() if value is False]
    return {variable for row in map(find_row, (*flags, *_SCRIPT_MODES)) if row for variable in row.variables}


def _find_option(keyword: str) -> Option:
    name = keyword.replace("_", "-")
    if name in _SCRIPT_MODES:
        raise UsageError(f"{keyword} applies to scripts only, but launch runs a function or a program")
    if setting := SETTING_BY_NAME.get(name):
        raise UsageError(f"launch has no option {keyword}", f"set {setting.flag} in `env`")
    option = find_row(name)
    if option is None or option.read is None or "-" in keyword:
        keywords = {one.name: one.name.replace("-", "_") for one in list_options() if one.read is not None}
        raise UsageError(
            f"launch has no option {keyword}",
            suggest(name, keywords)
            or "use an option of the command; pass keyword arguments of the function by functools.partial",
        )
    return option


def _is_set(option: Option, value: OptionValue) -> bool:
    if isinstance(value, int) and value in (0, 1):  # True and False are whole numbers in Python
        return bool(value)
    raise UsageError(f"{_format_keyword(option)}={value!r} is neither True nor False")


def _format_value(option: Option, value: OptionValue) -> str:
    """Format a value for the command line; the option's metavar determines the separators."""
    if isinstance(value, Mapping):
        if "," not in option.metavar:
            raise UsageError(f"{_format_keyword(option)} takes one value, not a {type(value).__name__}")
        between = ":" if ":" in option.metavar and "=" not in option.metavar else "="
        return ",".join(f"{key}{between}{part}" for key, part in value.items())
    if isinstance(value, (str, int, float)):
        return str(value)
    if not isinstance(value, Sequence) or not all(isinstance(part, (str, int, float)) for part in value):
        raise UsageError(f"{_format_keyword(option)} takes strings and numbers, not a {type(value).__name__}")
    if "," not in option.metavar and ":" not in option.metavar:
        raise UsageError(f"{_format_keyword(option)} takes one value, not a {type(value).__name__}")
    return ("," if "," in option.metavar else ":").join(map(str, value))


def _format_keyword(option: Option) -> str:
    return option.name.replace("-", "_")
