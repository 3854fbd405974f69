"""What to do about the failure that ended a job: the last line of the report."""

from __future__ import annotations

import signal

from launcher.logs.reports.report import WorkerFailure
from launcher.supervisor.messages import find_signal_name

_OWN_CODE = "2 is the worker's own exit code"
_BARE_IPV6 = "Port could not be cast to integer value as ':"  # of urllib
_JAX_UNCONFIGURED = "coordinator_address should be defined"
_NATIVE_CRASH = "set PYTHONFAULTHANDLER=1 to see where its Python code was: the worker crashed in native code"
# torch's gloo threads may outlive the interpreter, and the job has done its work by then.
_AFTER_ABORT = (
    "after `terminate called without an active exception`, end the script with torch.distributed.barrier() and "
    "destroy_process_group()"
)
_NATIVE_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE)
_SIGNAL_HINTS = {
    -signal.SIGKILL: "check who sent it from outside the job: the OOM killer (see dmesg), a scheduler, or a user",
    -signal.SIGSEGV: _NATIVE_CRASH,
    -signal.SIGABRT: f"{_NATIVE_CRASH}; {_AFTER_ABORT}",
    -signal.SIGILL: _NATIVE_CRASH,
    -signal.SIGFPE: _NATIVE_CRASH,
    -signal.SIGBUS: "check the space in /dev/shm, which may be full; in a container, raise its size",
    -signal.SIGXCPU: "raise the limit on CPU time (`ulimit -t`)",
    -signal.SIGXFSZ: "raise the limit on file sizes (`ulimit -f`)",
}


def choose_hint(failure: WorkerFailure, here: str = "") -> str:
    """Return what to do next, for a reader on the host `here`; "" if the report says it."""
    code = failure.exit_code
    if failure.hang:
        return ""  # it says where ranks were
    if failure.sentence and failure.exit_code < 0 and not failure.tail and not failure.frames:
        return f"look for the stacks of its threads {_find_output(failure, here)}"
    if failure.sentence or failure.claim or failure.hint:
        return failure.hint  # the sentence names the problem
    if failure.is_out_of_memory:
        return "give the job more memory, or use smaller batches or fewer data loading processes"
    if code in _NATIVE_CRASHES and failure.frames:
        return ""
    if code in _NATIVE_CRASHES and (failure.stacks_file or failure.has_own_handler):
        where = "read the stacks of its threads: the one that crashed ran no Python code"
        if failure.has_own_handler:
            where = f"check whether its own faulthandler has written stacks {_find_output(failure, here)}"
        return f"{where}; {_AFTER_ABORT}" if code == -signal.SIGABRT else where
    if code in _SIGNAL_HINTS:
        return _SIGNAL_HINTS[code]
    if code == 2:
        if failure.frames or failure.message:
            return f"check the script's arguments: {_OWN_CODE} (argparse), not a usage error of meshrun"
        return f"check the command: {_OWN_CODE}, such as from argparse, or from a Python that cannot open its script"
    if 128 < code <= 128 + signal.SIGRTMAX and (name := find_signal_name(128 - code)):
        return f"read exit code {code} as {name}: a shell between meshrun and the worker reports the signal this way"
    if _BARE_IPV6 in failure.exception:
        return (
            "write the address of `tcp://` in brackets, or use `env://`: no name resolves to this IPv6 MASTER_ADDR here"
        )
    if _JAX_UNCONFIGURED in (failure.message or "\n".join(failure.tail)):
        return "use `--framework jax`, which sets the variables that jax.distributed.initialize() needs"
    if failure.is_abrupt:
        return "look for os._exit(), exit() in native code, or a program that replaced the script (exec)"
    if not failure.message and not failure.tail and not failure.frames:
        return f"look for its error message {_find_output(failure, here)}"
    return ""


def _find_output(failure: WorkerFailure, here: str) -> str:
    if failure.log_file:
        return f"in {failure.log_file} on {failure.host}"
    is_near = here in ("", failure.host)
    return ("further up" if is_near else f"in the output of {failure.host}") + "; `--tee 2` shows its last lines here"
