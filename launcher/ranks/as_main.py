"""What a Python worker begins with: runs the script as Python would, and leaves its exception for the agent.

    python -u as_main.py script train.py --steps 100      like  python -u train.py --steps 100
    python -u as_main.py module train.main --steps 100    like  python -u -m train.main --steps 100
    python -u as_main.py path train.py --steps 100        like  runpy.run_path("train.py", run_name="__main__")
    python -u as_main.py jax script train.py --steps 100  like the first, and a failed worker ends at once

An exception that the script does not catch is written to TORCHELASTIC_ERROR_FILE, unless torch's `record` has done it;
then Python goes on with it: hooks, exit code, exit handlers. While the script runs, `__main__` is the script's own
module, and tracebacks begin with its lines; only those who walk the whole stack find the one frame of this file.

Every worker compiles this file, so the rest is in others, of which Python keeps the compiled form: `main_start` has
what a script needs that succeeds, `main_forms` the other forms of a program, `main_failure` what follows a failure, and
what JAX needs, `main_exit` how the script has ended. The workers' Python may be another than the agent's: none of them
imports anything of this project.
"""

import os  # not annotations from __future__, which is a module of its own
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def load(name: str) -> "dict[str, Any]":
    """Run a file beside this one and return its names. `sys.modules` stays as it is under Python."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    names: dict[str, Any] = {"__name__": name, "__file__": path}
    keeps, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # to keep the compiled form is up to the agent
    code = sys.modules["_frozen_importlib_external"].SourceFileLoader(name, path).get_code(name)
    sys.dont_write_bytecode = keeps
    exec(code, names)
    return names


if __name__ == "__main__":
    _pid = os.getpid()
    _error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")  # before the script may change it
    _start = load("main_start")
    _place = _start["open_last_words"]()
    _words = sys.argv[1:]
    _failure = load("main_failure") if _words[0] == "jax" else None
    _own = sys.modules["__main__"]  # nothing else holds it any more
    _main_module = sys.modules["__main__"] = _start["make_main_module"](_own)
    try:
        if _failure:
            del _words[0]
            _failure["require_free_port"]()
        _start["share_terminal"](load)
        try:  # noqa: SIM105 - contextlib is an import
            _start["prepare_evidence"](load)
        except Exception:  # the script runs without
            pass
        _run, _arguments = _start["prepare"](_words[0], _words[1:], _own, _main_module, load)
        _run(*_arguments)
    except BaseException as _error:
        if os.getpid() == _pid:  # else a process that the script has forked, not a worker
            _trace = _error.__traceback__
            while _trace is not None and _trace.tb_frame.f_code.co_filename in (__file__, _start["__file__"]):
                _trace = _trace.tb_next
            _error.__traceback__ = _trace
            if _place >= 0:
                try:
                    try:
                        load("main_exit")["leave_end"](_place, _error, _trace)
                    except BaseException:  # its type needs no file: there may be no descriptor, or another root
                        os.write(_place, f"Traceback (most recent call last):\n{type(_error).__name__}: \n".encode())
                except BaseException:
                    pass
            if _failure:
                _failure["fail_under_jax"](_error, _error_file)
            elif not isinstance(_error, SystemExit):
                try:  # noqa: SIM105 - contextlib is an import
                    load("main_failure")["leave_exception"](_error, _error_file)
                except BaseException:  # a module of the script's may stand in the way of Python's own
                    pass
        raise
