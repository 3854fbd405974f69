"""`launcher.extensions.ray.run`: a function or a script in workers on the nodes of a Ray cluster, called from Python.

    from launcher.extensions.ray import run

    results = run(train, config, nodes="4:8", nproc=8, max_restarts=9)  # what each rank returned, by rank

The call is pickled into a directory as by `launcher.launch`; here it then travels to every node, and the results back.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.calls import payload
from launcher.calls.failure import add_hint, require_success
from launcher.calls.launch import OptionValue, format_argument, format_arguments, refuse_while_importing
from launcher.config.options import command_line
from launcher.config.options.command_line import ParsedArgs
from launcher.extensions.ray.job_driver import FunctionToCall, JobEnd, run_job
from launcher.extensions.ray.options import OPTIONS, split
from launcher.model.errors import UsageError
from rendezvous.errors import MeshrunError


def run(
    fn: Callable[..., Any] | str | Sequence[str],
    /,
    *args: Any,
    nodes: int | str | Sequence[int] | None = None,
    nproc: int | str | None = None,
    mesh: str | Mapping[str, int | str] | None = None,
    **options: Any,
) -> dict[int, Any]:
    """Run `fn(*args)` in workers on nodes of the Ray cluster and return what each returned, by rank.

    `fn`: a function; a text is a program, run with `args` as its arguments; several texts are a script and its
    arguments, as behind `meshrun-ray`. `nodes`, `nproc` and `mesh` are --nnodes, --nproc-per-node and --mesh; `options`
    are all others of meshrun-ray, with underscores: `bundle={"GPU": 8}`, `spares=1`, `max_restarts=9`. If this process
    is connected to a cluster already, that one is used.

    Raises WorkerFailed if a worker failed and no restart was left, UsageError for what cannot start, TemporaryError if
    the nodes were not there in time, LauncherError for any other end.
    """
    refuse_while_importing("run")
    try:
        return _run(fn, args, {"nnodes": nodes, "nproc_per_node": nproc, "mesh": mesh, **options})
    except MeshrunError as error:
        add_hint(error)
        raise


def _run(
    fn: Callable[..., Any] | str | Sequence[str], args: Sequence[Any], options: Mapping[str, OptionValue]
) -> dict[int, Any]:
    values = command_line.parse(format_arguments(options, OPTIONS), OPTIONS).values
    if not callable(fn):
        words = [fn] if isinstance(fn, str) else [*fn]
        if not words:
            raise UsageError("run needs a script: a list holds the script and its arguments")
        values = {**values, **({"no-python": "1"} if isinstance(fn, str) else {})}
        script, *rest = map(format_argument, (*words, *args))
        end = _start(ParsedArgs(values, script=script, script_args=tuple(rest)), None)
        require_success(end.script, end.outcome, end.outcome.failures)
        return dict.fromkeys(end.outcome.ranks)
    directory = tempfile.mkdtemp(prefix="meshrun_")
    try:
        call = payload.FunctionCall(directory)
        call.write(fn, args)
        with open(os.path.join(directory, payload.CALL), "rb") as file:
            function = FunctionToCall(payload.format_name(fn), file.read())
        end = _start(ParsedArgs(values), function)
        for name, content in end.files.items():
            with open(os.path.join(directory, name), "wb", opener=payload.open_private) as file:
                file.write(content)
        found, failures = end.outcome, end.outcome.failures
        cause = call.read_exception(found.round, failures[0].rank) if failures else None
        require_success(end.script, found, failures, cause)
        return {rank: call.read_result(found.round, rank) for rank in found.ranks}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _start(args: ParsedArgs, function: FunctionToCall | None) -> JobEnd:
    own, rest = split(args, os.environ)
    return run_job(own, rest, os.environ, function)
