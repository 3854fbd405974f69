"""The program that the supervisor starts in the workers' Python: it becomes a worker's command, with the hook.

    python -u fork_server.py script train.py a b    becomes  python -u train.py a b
    python -u fork_server.py module pkg.train a     becomes  python -u -m pkg.train a
    python -u fork_server.py code CODE a            becomes  python -u -c CODE a

In two steps, since the hook is found through PYTHONPATH: a Python that ignores it would run the script, here and
without a rank. Such a Python is refused in the first step. The process stays the same, and with it the parent-death
signal and everything else that the supervisor has set.
"""

from __future__ import annotations

import os
import sys

PACKAGE_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
ROOT_DIRECTORY = os.path.dirname(os.path.dirname(os.path.dirname(PACKAGE_DIRECTORY)))  # the directory of `launcher`
HOOK_DIRECTORY = os.path.join(PACKAGE_DIRECTORY, "hook")
SOCKET_VARIABLE = "LAUNCHER_FORK_SERVER"  # the number of the descriptor; for the hook, with what it restores
_PYTHON_OPTIONS = {"script": (), "module": ("-m",), "code": ("-c",)}


def main() -> None:
    """Become the worker's command, or report to the supervisor why not."""
    number = int(os.environ[SOCKET_VARIABLE])
    problem = _find_problem()
    if problem:
        _refuse(number, *problem)
        return
    how, *words = sys.argv[1:]
    python_and_flags = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv)]
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{HOOK_DIRECTORY}{os.pathsep}{path}" if path else HOOK_DIRECTORY
    environment[SOCKET_VARIABLE] = f"{number}:{os.getpid()}:{'' if path is None else 'set'}:{how}:{len(words)}"
    os.execve(sys.executable, [*python_and_flags, *_PYTHON_OPTIONS[how], *words], environment)


def _find_problem() -> tuple[str, str] | None:
    """Return why this Python would not load the hook: sentence and hint."""
    if not hasattr(sys, "orig_argv"):
        version = sys.version.split()[0]
        return f"--preload: {sys.executable} is Python {version}; 3.10 or newer is needed", "leave out --preload"
    if not sys.executable:
        return "--preload: this Python does not know its own path (sys.executable is empty)", "leave out --preload"
    if sys.flags.no_site or sys.flags.ignore_environment:
        return (
            f"--preload: {sys.executable} is started with -S, -E or -I, so workers cannot be forked from it",
            "start Python without that in the program of PYTHON_EXEC, or leave out --preload",
        )
    if os.pathsep in HOOK_DIRECTORY:
        return (
            f"--preload: meshrun is installed in {PACKAGE_DIRECTORY}, which PYTHONPATH cannot name",
            "leave out --preload",
        )
    return None


def _refuse(number: int, sentence: str, hint: str) -> None:
    # Its own directory, which Python has put there, contains names that are no top-level modules.
    sys.path[0 : not getattr(sys.flags, "safe_path", False)] = [ROOT_DIRECTORY]
    from launcher.supervisor.fork_server.json_channel import JsonChannel

    JsonChannel.open(number).send(["refused", sentence, hint])


if __name__ == "__main__":
    main()
