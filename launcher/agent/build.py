"""Builds an agent: its pieces are created here, each with what it needs of the others. `composition` adds the parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from launcher.agent.composition import add_parts, open_sinks
from launcher.agent.loop import Agent
from launcher.agent.membership import (
    PREFIX,
    NodeContext,
    NodeMembership,
    PartContext,
    draw_random,
    make_settings,
    read_clock,
)
from launcher.agent.worker_channel import WorkerChannel
from launcher.logs.layout import LogLayout
from launcher.logs.reports.failures import Failures
from launcher.logs.reports.round_log import RoundLog
from launcher.model import mesh as meshes
from launcher.model.console import log
from launcher.model.node import Slot
from launcher.parts.part import RunningRound
from launcher.placement.adapter.description import Description, encode_description
from launcher.placement.adapter.one_machine import LIMITS, OneMachinePlanner
from launcher.ranks.ports import MasterPort
from launcher.ranks.spec_builder import WorkerSpecBuilder
from rendezvous.driver.driver import Driver
from rendezvous.machine import MemberMachine
from rendezvous.records import Member, Spec
from rendezvous.settings import Settings
from rendezvous.state.state import Setup
from rendezvous.stores.memory.store import MemoryStore

if TYPE_CHECKING:
    from launcher.placement.adapter.planner_adapter import PlannerAdapter


def build_agent(node: NodeContext, layout: LogLayout, slots: Sequence[Slot], reason: str) -> Agent:
    """Build the agent of this node, a member of its job. `reason`: explains the number of slots.

    The other parts are added to those of the node. Raises UsageError for options that the present nodes cannot satisfy,
    TemporaryError when the store fails.
    """
    config, startup, wakeup = node.config, node.startup, node.wakeup
    host = startup.name if startup else config.rendezvous.node_name or os.uname().nodename
    if startup is None:
        meshes.require_fit(config.placement.grid, len(slots))
    port = MasterPort(config.rendezvous.master_port, config.rendezvous.worker_port_range)
    spec_builder = WorkerSpecBuilder(
        workers=config.workers,
        output=config.output,
        placement=config.placement,
        slots=slots,
        host=host,
        layout=layout,
        parent=os.environ,
        shared_page=node.shared_page,
        extra_variables=node.marker,
    )
    limits = (config.workers.max_restarts, config.shutdown.shutdown_timeout_s)
    settings = make_settings(config.rendezvous, *limits, handles_sigterm=not spec_builder.is_jax)
    worker_channel = WorkerChannel(
        node.shared_page,
        node.supervisor,
        config.hangs.heartbeat_timeout_s,
        reads_saves=startup is not None and settings.grow == "checkpoint",
        watches_progress=config.hangs.hang_limits is not None,
    )
    sinks = open_sinks(config.monitoring, lambda: membership.driver.machine.is_leader)
    if startup is None:
        membership = _join_alone(node, settings, len(slots), layout.run_id, host, port.number)
    else:
        from launcher.agent.cluster import open_membership

        membership = open_membership(
            config,
            settings,
            startup,
            slot_count=len(slots),
            run_id=layout.run_id,
            worker_port=port.number,
            wake=wakeup.wake,
            is_leaving=wakeup.has_signal,
            devices=[device for slot in slots for device in slot.devices],
        )
    pump = spec_builder.make_pump()
    context = PartContext(
        **asdict(node),
        layout=layout,
        host=host,
        slots=slots,
        reason=reason,
        pump=pump,
        spec_builder=spec_builder,
        membership=membership,
        running=RunningRound(),
        sinks=sinks,
    )
    add_parts(context)
    membership.remarks += (spec_builder.choice.reason,)
    for remark in spec_builder.list_remarks():
        log(remark)
    return Agent(
        node=context,
        port=port,
        worker_channel=worker_channel,
        round_log=RoundLog(is_standalone=startup is None, settings=settings),
        failures=Failures(
            host,
            pump,
            aborts_are_secondary=spec_builder.is_jax,
            role=config.workers.role,
            program=config.workers.program,
            is_python=config.workers.launch_mode != "program",
            page=node.shared_page,
        ),
    )


def _join_alone(
    node: NodeContext, settings: Settings, slot_count: int, run_id: str, node_name: str, worker_port: int
) -> NodeMembership:
    """Build the member of a job of one machine, whose store is inside this process."""
    meeting, placement, role = node.config.rendezvous, node.config.placement, node.config.workers.role
    mesh, address = placement.grid, meeting.master_addr or meeting.local_addr or "127.0.0.1"
    description = Description(slot_count=slot_count, address=address, role=role, master_port=meeting.master_port or 0)
    planner: OneMachinePlanner | PlannerAdapter
    if placement.texts:
        from launcher.placement.adapter.feasibility import require_feasible_alone, resolve_limits
        from launcher.placement.adapter.options import list_options
        from launcher.placement.adapter.planner_adapter import PlannerAdapter

        asked = resolve_limits(placement)
        require_feasible_alone(mesh, asked[0], slot_count)
        planner, options = PlannerAdapter(mesh, *asked), list_options(*asked)
    else:
        planner, options = OneMachinePlanner(mesh, description), LIMITS
    setup = Setup(
        settings=settings,
        # No other agent reads the store of one machine, so nothing has to be compared with others.
        spec=Spec(mesh=str(mesh), options=options, digest=""),
        node=Member(member_id="", node_name=node_name, boot_id="", description=encode_description(description)),
        prefix=PREFIX,
        run_id=run_id,
        sizer=planner.compute_size,
    )
    machine = MemberMachine(setup, worker_port, draw_random)
    store = MemoryStore(clock=read_clock)
    driver = Driver(
        machine=machine, store=store, planner=planner.plan, clock=read_clock, wake=node.wakeup.wake, memory=store
    )
    return NodeMembership(driver)
