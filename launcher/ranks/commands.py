"""The command of a worker: for an exec, and for a process that the fork server forks.

    exec                             fork
    python -u train.py --steps 9     ("script", "train.py", "--steps", "9")
    python -u -m train.main          ("module", "train.main")
    python -u -c TEXT train.py       ("code", TEXT, "train.py")

The right column is derived from the left one, so a forked worker runs what an exec would have run, including the entry
point of JAX workers and the function of a `launch`.
"""

from __future__ import annotations

import os

from launcher.config.config import Config

_RUN_PATH = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
_HERE = os.path.dirname(os.path.abspath(__file__))
_AS_MAIN = os.path.join(_HERE, "as_main.py")
_FORK_SERVER = os.path.join(os.path.dirname(_HERE), "supervisor", "fork_server", "fork_server.py")


def make_argv(config: Config, local_rank: int, *, is_jax: bool) -> tuple[str, ...]:
    """Return the command, in one of torchrun's four forms; -u, so that output before a crash is seen."""
    python, arguments = (
        config.python,
        tuple(_substitute_local_rank(argument, local_rank) for argument in config.script_args),
    )
    if config.legacy_local_rank:
        arguments = (f"--local-rank={local_rank}", *arguments)
    if is_jax and config.launch_mode != "program" and config.script != "-":
        return (python, "-u", _AS_MAIN, config.launch_mode, config.script, *arguments)
    match config.launch_mode:
        case "script":
            return (python, "-u", config.script, *arguments)
        case "module":
            return (python, "-u", "-m", config.script, *arguments)
        case "path":
            return (python, "-u", "-c", _RUN_PATH, config.script, *arguments)
        case "program":
            return (config.script, *arguments)


def make_fork_argv(config: Config, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a fork runs in place of this command: the mode, and its arguments."""
    first, *rest = argv[_find_program_index(config, argv) :]
    return {"-m": ("module", *rest), "-c": ("code", *rest)}.get(first, ("script", first, *rest))


def make_fork_server_argv(config: Config, *, is_jax: bool) -> tuple[str, ...]:
    """Return the command of the process that imports and forks: its own name, then a worker's mode and arguments.

    It becomes that worker's command itself, so only arguments behind the script's name may differ among workers.
    """
    argv = make_argv(config, 0, is_jax=is_jax)
    return (*argv[: _find_program_index(config, argv)], _FORK_SERVER, *make_fork_argv(config, argv))


def _find_program_index(config: Config, argv: tuple[str, ...]) -> int:
    """Return the index after Python and its own options. The function of a `launch` comes with options, and as text."""
    return argv.index("-c") if config.launch_mode == "program" else 2


def _substitute_local_rank(argument: str, local_rank: int) -> str:
    """Substitute torchrun's only macro, ${local_rank}, by the rules of string.Template."""
    if "$" not in argument:
        return argument
    from string import Template  # rarely needed

    return Template(argument).safe_substitute(local_rank=local_rank)
