"""What `meshrun` does with a command line that runs something.

`cli` hands over to this module once no file of the user's can be imported in place of another, so it imports at its
top. The order is the one that starts the first worker soonest: words, checks, the supervisor's start, then the agent.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence

from launcher.config import files
from launcher.config.config import Config, resolve
from launcher.config.options import command_line
from launcher.config.options.command_line import ParsedArgs
from launcher.hardware.linux.shared_page import make
from launcher.logs.layout import draw_temporary_dirs
from launcher.model.console import begin_stamps, log
from launcher.supervisor.handle import Supervisor


def run(args: ParsedArgs, supervisor: Supervisor) -> int:
    """Run the job on this node and return the exit code. `supervisor`: forked, and not started yet."""
    config = _resolve(args, os.environ)
    meeting = config.rendezvous
    begin_stamps(config.output.log_times, meeting.node_name or os.uname().nodename)
    files.check_script(config.workers, config.placement.mesh)
    files.check_log_dir(config.output.log_dir)
    files.require_proc()
    startup = None
    if meeting.network is not None:
        from launcher.agent.startup.startup import start_up
        from launcher.locality.explicit import check_file

        gc.enable()
        _log_notes(config.notes)  # before a wait, which they may explain
        check_file(config.locality)
        startup = start_up(meeting, meeting.network, os.environ, uses_accelerators=config.devices.may_use_accelerators)
        begin_stamps(config.output.log_times, startup.name)
    try:
        shared_page = make()
        keep = (shared_page.descriptor, *(startup.inherited_fds if startup else ()))
        supervisor.start(keep, startup.node_lock.group if startup else "", draw_temporary_dirs())
        if startup is not None:
            from launcher.hardware.linux.limits import raise_descriptor_limit

            raise_descriptor_limit()
        from launcher.agent import node_main

        gc.freeze()
        gc.enable()
        if startup is None:
            _log_notes(config.notes)
        return node_main.run(config, supervisor, startup, shared_page)
    finally:
        if startup is not None:
            startup.release()


def _log_notes(notes: Sequence[str]) -> None:
    for note in notes:
        log(note)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """The Config of a command line that runs something. Raises UsageError; looks at no file."""
    return _resolve(command_line.parse(argv), environ)


def _resolve(args: ParsedArgs, environ: Mapping[str, str]) -> Config:
    return resolve(args, environ, environ.get("PYTHON_EXEC") or sys.executable, os.uname().nodename)
