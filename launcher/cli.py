"""`meshrun`: from a command line to a running agent, and from errors to exit codes.

Only `os` and `sys` are imported at the top, and Python itself loads both before it runs any other code: until
`protect_imports` has run, an import might find a file of the user's that is named `queue.py`. The rest is in
`launcher.agent.command`.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn, TextIO

    from launcher.config.options.command_line import ParsedArgs

PROGRAM = "meshrun"


def run() -> NoReturn:
    """Be the program: run the command of this process, and end with its exit code.

    Without the interpreter's own end, which takes 4 ms of CPU to free what the kernel frees at once, and which would
    wait for threads that hang. Exit handlers are run: events that torch's handlers have not taken yet wait for one.
    """
    exit_code = main()
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    os._exit(exit_code)


def _flush(stream: TextIO | None) -> None:
    """Flush it; None is one that was closed when Python started."""
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):  # closed since, or nobody reads it any more
        pass


# docs/internals/decisions/0056-a-torchrun-on-the-path.md
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: the job's, or 2 for a usage error, 70 for a bug of ours.

    `argv` is without the program's name; by default it is the process's own.
    """
    protect_imports()
    import gc

    gc.disable()  # imported objects stay, and repeated garbage collection would take 4 ms
    supervisor = None
    try:
        from launcher.supervisor.keeper import fork_keeper

        keeper = fork_keeper()  # while this process is small
        from launcher.supervisor.handle import Supervisor

        supervisor = Supervisor(*keeper)
        from launcher.model.lean_import import import_msgspec

        import_msgspec()
        from launcher.config.options import command_line

        args = command_line.parse(sys.argv[1:] if argv is None else argv)
        if args.action:
            return _print_info(args)
        from launcher.agent import command

        return command.run(args, supervisor)
    except KeyboardInterrupt:  # before the agent takes the signals over nothing has been started
        return 130
    except Exception as error:
        return report(error, PROGRAM)
    finally:
        gc.enable()
        if supervisor is not None:
            supervisor.close()
        from launcher.model import console

        console.finish()


def _print_info(args: ParsedArgs) -> int:
    from launcher.model.console import write_stdout

    if args.action == "--version":
        from launcher.views.version import describe_version

        write_stdout(f"{PROGRAM} {describe_version()}")
    elif args.action == "--completion":
        from launcher.config import completion

        write_stdout(completion.render(args.topic))
    else:
        from launcher.config import help

        help.show(args.topic, is_whole=args.action == "--help")
    return 0


def report(error: Exception, program: str) -> int:
    """Print an error as a sentence and a hint, or as a bug of ours, and return its exit code."""
    import errno

    from launcher.model.console import write_stderr
    from launcher.model.errors import find_shortage_hint
    from rendezvous.errors import EXIT_BUG, EXIT_TEMPORARY, EXIT_USAGE, MeshrunError, SettingsError, StoreError

    if isinstance(error, MeshrunError):
        exit_code = int(getattr(error, "exit_code", EXIT_TEMPORARY if isinstance(error, StoreError) else 1))
        if isinstance(error, SettingsError):
            exit_code = EXIT_USAGE
        from launcher.logs.reports import outcome  # for the program that started this one, if it has requested that

        if not outcome.write(outcome.RunOutcome(exit_code=exit_code, reason=str(error), hint=error.hint)):
            write_stderr(f"{program}: error: {error}")
            if error.hint:
                write_stderr(f"hint: {error.hint}")
        return exit_code
    if str(error) == "can't start new thread":  # Python's exception for EAGAIN
        error = OSError(errno.EAGAIN, str(error))
    if isinstance(error, OSError) and (shortage := find_shortage_hint(error.errno)):
        write_stderr(f"{program}: error: this machine lacks the resources to run: {error.strerror}\nhint: {shortage}")
        return EXIT_TEMPORARY

    import traceback

    from rendezvous import __version__  # not above: descriptors may be exhausted

    python = ".".join(map(str, sys.version_info[:3]))
    write_stderr(f"{program}: error: unexpected {type(error).__name__}: a bug in meshrun, not in your job")
    wanted = "the command line, all that follows, and the output of meshctl doctor --report"
    write_stderr(f"hint: please report it with {wanted} -; meshrun {__version__}, Python {python}")
    write_stderr("".join(traceback.format_exception(error)).rstrip())
    return EXIT_BUG


def protect_imports() -> None:
    """Let no file of the user's be imported by the agent in place of a module it needs.

    Python searches the current directory (under `python -m`) and the directories of PYTHONPATH before its own
    library. Here the current directory is removed, unless meshrun itself was imported from there, and the
    other directories go after the library. PYTHONPATH itself does not change, so workers find their modules as
    under `python script.py`.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, home)
    import rendezvous  # noqa: F401  (found beside this package, not in a directory that also has one)

    del sys.path[0]
    library = os.path.dirname(os.__file__)
    if library not in sys.path:
        return  # an unusual Python: leave its path alone
    start = sys.path.index(library)
    ahead = [entry for entry in sys.path[:start] if entry == home or not _is_current_directory(entry)]
    sys.path[:] = sys.path[start:] + ahead


def _is_current_directory(entry: str) -> bool:
    try:
        return os.path.samestat(os.stat(entry or "."), os.stat("."))
    except OSError:
        return False
