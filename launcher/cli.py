"""`meshrun`: from the words of a command line to a running agent, and from errors to exit codes.

Only `os` and `sys` are imported at the top, and both are loaded before Python runs anybody's code: until
`protect_imports` has run, an import might find a file of the user's that happens to be called `queue.py`.
What follows is in the order that starts the first worker soonest: words, checks, the supervisor's fork while this
process is small, then the agent.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.agent.startup.startup import Startup
    from launcher.config.config import Config
    from launcher.config.options.command_line import ParsedArgs
    from launcher.hardware.linux.shared_page import SharedPage
    from launcher.supervisor.handle import Supervisor
    from rendezvous.errors import MeshrunError

PROGRAM = "meshrun"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: the job's, or 2 for a usage error, 70 for a bug of ours.

    `argv` is without the program's name; by default it is the process's own.
    """
    protect_imports()
    import gc

    gc.disable()  # what is imported stays, and to look through it again and again would take 4 ms
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # before the agent takes the signals over nothing has been started
        return 130
    except Exception as error:
        return report(error, PROGRAM)
    finally:
        gc.enable()
        from launcher.model import console

        console.finish()


def _run(argv: Sequence[str]) -> int:
    from launcher.config.options import command_line

    words = command_line.parse(argv)
    if words.action:
        return _print_info(words)
    config = _resolve(words, os.environ)

    from launcher.config import files

    files.check(config)
    files.require_proc()

    from launcher.hardware.linux.shared_page import list_inherited_fds, make
    from launcher.supervisor.handle import Supervisor

    arrival = None
    if config.network is not None:
        import gc

        from launcher.agent.startup.startup import start_up

        gc.enable()
        _log_notes(config)  # before a wait, which they may explain
        arrival = start_up(config, config.network, os.environ)
    try:
        board = make()
        keep = (*list_inherited_fds(board), *(arrival.inherited_fds if arrival else ()))
        supervisor = Supervisor.fork(keep, arrival.node_lock.group if arrival else "")
        return _run_agent(config, supervisor, arrival, board)
    finally:
        if arrival is not None:
            arrival.node_lock.release()


def _run_agent(config: Config, supervisor: Supervisor, startup: Startup | None, shared_page: SharedPage | None) -> int:
    """Run the agent, beside its supervisor."""
    if startup is not None:
        from launcher.agent.startup.limits import raise_descriptor_limit

        raise_descriptor_limit()

    import gc

    from launcher.agent import node_main

    gc.freeze()
    gc.enable()
    if startup is None:
        _log_notes(config)
    return node_main.run(config, supervisor, startup, shared_page)


def _log_notes(config: Config) -> None:
    from launcher.model.console import log

    for note in config.notes:
        log(note)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """The Config of a command line that runs something. Raises UsageError; looks at no file."""
    from launcher.config.options import command_line

    return _resolve(command_line.parse(argv), environ)


def _resolve(args: ParsedArgs, environ: Mapping[str, str]) -> Config:
    from launcher.config import config

    return config.resolve(args, environ, environ.get("PYTHON_EXEC") or sys.executable, os.uname().nodename)


def _print_info(args: ParsedArgs) -> int:
    from launcher.model.console import write_stdout

    if args.action == "version":
        from launcher.model.version import __version__

        write_stdout(f"{PROGRAM} {__version__}")
    else:
        from launcher.config import help

        write_stdout(help.render_help(args.topic))
    return 0


def report(error: Exception, program: str) -> int:
    """Print an error as a sentence and a hint, or as a bug of ours, and return the exit code it ends with."""
    import errno

    from launcher.model.console import write_stderr
    from launcher.model.errors import find_shortage_hint
    from rendezvous.errors import EXIT_BUG, EXIT_TEMPORARY, EXIT_USAGE, MeshrunError, SettingsError, StoreError

    if isinstance(error, MeshrunError):
        exit_code = int(getattr(error, "exit_code", EXIT_TEMPORARY if isinstance(error, StoreError) else 1))
        if isinstance(error, SettingsError):
            exit_code = EXIT_USAGE
        if not _pass_to_parent(error, exit_code):
            write_stderr(f"{program}: error: {error}")
            if error.hint:
                write_stderr(f"hint: {error.hint}")
        return exit_code
    if str(error) == "can't start new thread":  # Python's word for EAGAIN
        error = OSError(errno.EAGAIN, str(error))
    if isinstance(error, OSError) and (shortage := find_shortage_hint(error.errno)):
        write_stderr(f"{program}: error: this machine gives too little to run: {error.strerror}\nhint: {shortage}")
        return EXIT_TEMPORARY

    import traceback

    from launcher.model.version import __version__  # not above: a shortage may be of descriptors

    python = ".".join(map(str, sys.version_info[:3]))
    write_stderr(f"{program}: error: {type(error).__name__} where none should be: a bug in meshrun, not in your job")
    write_stderr(
        f"hint: please report it with the command line and all that follows; meshrun {__version__}, Python {python}"
    )
    write_stderr("".join(traceback.format_exception(error)).rstrip())
    return EXIT_BUG


def _pass_to_parent(error: MeshrunError, exit_code: int) -> bool:
    """Leave the error for the program that started this one, if it has asked for that."""
    from launcher.logs.reports import outcome

    return outcome.write(outcome.RunOutcome(exit_code=exit_code, reason=str(error), hint=error.hint))


def protect_imports() -> None:
    """Let no file of the user's be imported by the agent in place of a module it needs.

    Python searches the current directory (under `python -m`) and the directories of PYTHONPATH before its own
    library. Here the current directory is taken off, unless meshrun itself was imported from there, and the
    other directories go behind the library. PYTHONPATH itself stays as it is, so workers find their modules as
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
