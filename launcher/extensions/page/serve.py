"""`meshctl serve`: the live page of a run of this machine, from a process beside its agents.

The page lives as long as this command, also when the run has ended: what was last known can still be read and saved.
"""

from __future__ import annotations

import os
import signal
import threading

from launcher.extensions.page.document import save_document
from launcher.extensions.page.paths import make_paths
from launcher.extensions.page.shared_run import SharedRun
from launcher.meshctl.plan.command import write_file
from launcher.model.concurrency import NO_THREAD, start_thread
from launcher.model.console import write_stderr, write_stdout
from launcher.model.errors import TemporaryError
from launcher.views.http.http_server import HttpServer
from launcher.views.http.path_group import PathGroup, open_listener
from launcher.views.questions.local_socket import QuestionSource
from rendezvous.records import name_run

PROGRAM = "meshctl"


def save_page(source: QuestionSource, path: str, *, has_stacks: bool) -> None:
    """Write the page with its data to a file. Raises TemporaryError if the run does not answer, UsageError."""
    page = save_document(SharedRun(source), has_stacks=has_stacks)
    write_file(path, page.decode())
    write_stdout(f"{path}: {len(page):,} bytes; it needs no server")


def serve_page(source: QuestionSource, host: str, port: int) -> int:
    """Serve the page until a signal; return the exit code. Raises TemporaryError if the port is taken."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    paths = make_paths(source)
    page = HttpServer(open_listener(host, port, "the page"), [PathGroup(lambda: paths)], host)
    if start_thread(page.run, "page") is None:
        raise TemporaryError(f"the page cannot be served: {NO_THREAD}")
    write_stdout(page.url)
    write_stderr(f"{PROGRAM}: the page of {name_run(source.run_id)}, until Ctrl-C{_advise(page)}")
    ended.wait()
    page.close()
    return 0


def _advise(page: HttpServer) -> str:
    if page.needs_token:
        return "; anyone with this URL can see the run's logs and stacks"
    host = os.uname().nodename
    return f"\nhint: from another machine: ssh -N -L {page.port}:{page.host}:{page.port} {host}"
