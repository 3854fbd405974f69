"""What --request-nodes knows of the run: how many nodes it wants and has, and who leads it."""

from __future__ import annotations

from launcher.agent.inspection.observer import History
from launcher.agent.membership import NodeMembership
from launcher.config.config import Config
from launcher.model import mesh as meshes
from launcher.model.console import log
from launcher.observe.sinks.node_demand import choose_wanted, count_useful_nodes
from launcher.observe.sinks.node_requester import NodeRequester


def make_requester(
    config: Config, command: str, membership: NodeMembership, history: History, slot_count: int
) -> NodeRequester:
    """Make what runs the command. `slot_count`: of this node, as of those that are wanted. Raises UsageError."""
    machine = membership.driver.machine
    useful = count_useful_nodes(config.mesh or meshes.DEFAULT_MESH, membership.elastic_max, slot_count)
    target = int(config.settings.get("target_nodes", 0))
    return NodeRequester(
        command,
        config.origins["request_nodes"],
        choose_wanted(config.nodes_min, config.nodes_max, target, useful),
        lambda: len(machine.list_members()) if machine.is_leader else None,
        lambda: machine.has_taken_over,
        lambda: machine.state.leaving.verdict is not None,
        history.add_request,
        log,
    )
