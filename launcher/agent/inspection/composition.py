"""The composition of what shows a run: journal, files of events, notifier, and the answers to those who look at it.

Nothing of it is needed before the first workers run, so all but the `Observer` is imported and created when it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.agent.inspection.observer import History, Observer
from launcher.agent.membership import NodeMembership, read_clock
from launcher.config.config import Config, MonitoringOptions, PlacementOptions
from launcher.hardware.linux.shared_page import SharedPage
from launcher.logs.layout import LogLayout
from launcher.model.console import log
from launcher.model.node import Slot
from launcher.ranks.spec_builder import WorkerSpecBuilder

if TYPE_CHECKING:
    from launcher.agent.inspection.live_page import LivePage
    from launcher.agent.inspection.node_answers import NodeAnswers
    from launcher.logs.pump import OutputPump
    from launcher.observe.journal import Journal
    from launcher.observe.local_socket import Question
    from launcher.observe.sinks.event_file import EventSink
    from launcher.observe.sinks.node_requester import NodeRequester


def make_observer(
    config: Config,
    layout: LogLayout,
    spec_builder: WorkerSpecBuilder,
    membership: NodeMembership,
    slots: Sequence[Slot],
    reason: str,
    shared_page: SharedPage | None,
    pump: OutputPump | None,
    host: str,
    sinks: list[EventSink],
) -> Observer:
    """Make what notes the run's events, and answers who looks at it."""
    driver = membership.driver
    mesh_axes = tuple(axis.name for axis in config.placement.grid.axes)
    log_dir = layout.root if layout.keeps_files else ""
    started_at = time.time()
    files: dict[int, dict[tuple[int, str], str]] = {}

    def make_journal() -> Journal:
        from launcher.observe.journal import Journal, JournalHeader

        write_round = None
        if log_dir and not layout.is_temporary:
            from launcher.observe.sinks.event_file import make_round_writer

            write_round = make_round_writer(log_dir, log)
        header = JournalHeader(
            run_id=layout.run_id,
            node=host,
            pid=os.getpid(),
            started_at=started_at,
            worker_count=len(slots),
            reason=reason,
            max_restarts=config.workers.max_restarts,
            mesh_axes=mesh_axes,
        )
        if config.workers.reports_progress:
            from launcher.observe.sinks.trainer_status import TrainerReporter

            sinks.append(TrainerReporter(os.environ, shared_page, log))
        return Journal(header, [sink.write for sink in sinks], write_round)

    def make_answers() -> NodeAnswers:
        from launcher.agent.inspection.local_state import LocalState
        from launcher.agent.inspection.node_answers import NodeAnswers
        from launcher.agent.inspection.snapshot import SnapshotSource
        from launcher.hardware.accelerators.device_memory import make_device_memory

        memory = make_device_memory(slots)
        source = SnapshotSource(
            driver=driver,
            slots=slots,
            shared_page=shared_page,
            pump=pump,
            describe_rank=spec_builder.describe_rank,
            locality=membership.locality,
            log_dir=log_dir,
        )
        return NodeAnswers(history.open, source, LocalState(memory.read if memory else None), log_dir, files)

    is_written = bool(sinks) or config.workers.reports_progress or bool(log_dir and not layout.is_temporary)
    serve = config.monitoring.serve
    is_wanted = is_written or serve is not None or config.placement.request_nodes is not None
    history = History(make_journal, read_clock, is_wanted=is_wanted)

    def make_page(ask: Callable[[Question, float], bytes]) -> LivePage:
        from launcher.agent.inspection.live_page import LivePage
        from launcher.observe.local_socket import QuestionSource

        assert serve is not None
        source = QuestionSource(ask, layout.run_id)
        return LivePage(serve, config.monitoring.origins["serve"], source, lambda: driver.machine.is_leader, log)

    serves = make_page if serve is not None else None
    requester = None
    if config.placement.request_nodes is not None and config.rendezvous.network is not None:
        target = int(config.rendezvous.settings.get("target_nodes", 0))
        requester = _make_requester(config.placement, target, membership, history, len(slots))
    return Observer(history, files, make_answers, sinks, serves, requester)


def _make_requester(
    options: PlacementOptions, target: int, membership: NodeMembership, history: History, slot_count: int
) -> NodeRequester:
    """Make what runs the command. `slot_count`: of this node, as of those that are wanted. Raises UsageError."""
    from launcher.observe.sinks.node_demand import choose_wanted, count_useful_nodes
    from launcher.observe.sinks.node_requester import NodeRequester

    assert options.request_nodes is not None
    machine = membership.driver.machine
    useful = count_useful_nodes(options.grid, membership.elastic_max, slot_count)
    return NodeRequester(
        options.request_nodes,
        options.origins["request_nodes"],
        choose_wanted(options.nodes_min, options.nodes_max, target, useful),
        lambda: len(machine.list_members()) if machine.is_leader else None,
        lambda: machine.has_taken_over,
        lambda: machine.state.leaving.verdict is not None,
        history.add_request,
        log,
    )


def open_sinks(options: MonitoringOptions, is_leader: Callable[[], bool]) -> list[EventSink]:
    """Open what --events and --notify name. Raises UsageError for what cannot be."""
    if not options.events and not options.notify:
        return []
    from launcher.observe.sinks.event_file import EventFile
    from launcher.observe.sinks.notifier import Notifier

    sinks: list[EventSink] = []
    if options.events:
        sinks.append(EventFile(options.events, options.origins["events"], log))
    if options.notify:
        sinks.append(Notifier(options.notify, options.origins["notify"], is_leader, log))
    return sinks
