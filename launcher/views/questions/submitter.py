"""How an agent hands in requests of people at its machine: they need neither the store's address nor its secrets."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from launcher.model.text import format_list
from launcher.parts.part import Effect
from launcher.views.questions.messages import RefusedQuestion, Submit
from launcher.views.questions.question_server import Finish
from launcher.views.questions.reporter import Reporter
from launcher.views.questions.stored_request import JobAddress, hand_in
from rendezvous.driver.driver import Driver
from rendezvous.errors import EXIT_STOPPED, MeshrunError
from rendezvous.events import LeaveRequest
from rendezvous.reasons import Reason
from rendezvous.records import Command, Keys

KINDS = ("stop", "drain", "undrain")
LIMIT_MAX_S = 60.0
"""One waits at a time: others must not wait for it for long."""


class Submitter(Struct, frozen=True):
    """Answers a `Submit`. `secret`: None for a job of one machine, whose store only the loop may use."""

    driver: Driver
    secret: bytes | None
    run_id: str
    reporter: Reporter
    ask: Callable[[Effect], object]

    def answer(self, request: Submit, finish: Finish, now: float) -> None:
        command = request.command
        if command.kind not in KINDS:
            finish(None, f"an agent takes {format_list(KINDS)}, not {command.kind}")
        elif self.secret is not None:
            keys = Keys(self.driver.machine.joined_root)
            until = time.monotonic() + min(request.limit_s, LIMIT_MAX_S)
            job = JobAddress(self.driver.store, keys, self.secret, self.run_id)
            self.reporter.submit("requests", partial(_hand_in, job, command, until), finish)
        elif command.kind == "stop":
            self.ask(LeaveRequest(Reason.of("stop-requested", by=command.by), EXIT_STOPPED))
            finish(command, "")
        else:
            finish(replace(command, refused=Reason.of("views/one-machine")), "")


def _hand_in(job: JobAddress, command: Command, until: float) -> Struct:
    limit_s = round(until - time.monotonic(), 1)
    if limit_s <= 0:  # who has asked is gone, and may have asked another way
        return RefusedQuestion(error="requests before this one took too long, and it was not handed in")
    if not job.keys.root:
        return RefusedQuestion(error="this agent has not joined the run yet")
    try:
        return hand_in(job, command, limit_s, is_left=True) or command
    except MeshrunError as error:
        return RefusedQuestion(error=str(error))
