"""The options for controllers of Kubernetes, and what an agent has for them."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from launcher.config.options.readers import Option, make_optional, parse_choice, parse_command
from launcher.model.console import log

if TYPE_CHECKING:
    from launcher.agent.membership import Ask, PartContext
    from launcher.views.sinks.event_file import EventSink

PROGRESS_VARIABLES = tuple(f"KUBEFLOW_TRAINER_SERVER_{what}" for what in ("CA_CERT", "TOKEN", "URL"))
"""By which others than the agent would find the server that takes a TrainJob's progress."""

# fmt: off
ROWS = (
    Option("ours", "progress", "events", "none|kubeflow", parse_choice, "none",
           "Report progress, metrics and restarts in the status of Kubeflow Trainer's TrainJob, so that workers need "
           "not do so.", unset=PROGRESS_VARIABLES),
    Option("ours", "request-nodes", "size", "COMMAND",
           make_optional(partial(parse_command, hint="name a command: it gets NODES_WANTED and NODES_PRESENT")), "",
           "Shell command that the leader runs when nodes are missing, and again when all nodes are present.",
           why_ignored_alone=": no other node can join one machine"),
)
# fmt: on


def add_sink(node: PartContext, ask: Ask) -> None:
    """Add what the events of the run go to with --progress kubeflow."""
    if node.config.extensions["progress"].read() == "none":
        return

    def make() -> EventSink:
        from launcher.extensions.kubernetes.trainer_status import TrainerReporter

        return TrainerReporter(os.environ, node.shared_page, log)

    node.sinks.append(make)


def add_requester(node: PartContext, ask: Ask) -> None:
    """Add the part of --request-nodes, unless no other node can join. Raises UsageError for no valid command."""
    if node.config.workers.is_alone:
        return
    from launcher.agent.membership import read_clock
    from launcher.extensions.kubernetes.node_requester import make_requester
    from launcher.parts.part import LATER_S, LatePart

    requester = make_requester(node)
    node.parts.add(LatePart("--request-nodes", lambda: requester, {}, make_at=read_clock() + LATER_S))
