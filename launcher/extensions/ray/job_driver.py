"""One job on a Ray cluster, from its options to its outcome: carries out the actions of `agent_pool`.

The driver takes no part in the decisions of the job's nodes: it serves their store, has Ray place them, and reads their
outcomes. So a slow driver, or an outage of Ray's own services, does not affect workers.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from msgspec import Struct
from msgspec.structs import replace

from launcher.agent import command
from launcher.config.config import Config, ShutdownOptions
from launcher.config.options.command_line import ParsedArgs
from launcher.config.options.rendezvous import Setting
from launcher.config.options.table import BY_NAME
from launcher.extensions.ray import agent_pool
from launcher.extensions.ray import options as ray_options
from launcher.extensions.ray.actor import AgentOrder
from launcher.extensions.ray.bundles import Demand, choose_bundle, choose_demand, list_fitting
from launcher.extensions.ray.cluster import CLOSE_LIMIT_S, RayCluster, require_ray
from launcher.extensions.ray.store_service import serve_store
from launcher.logs.reports import report
from launcher.logs.reports.outcome import REPORT_LIMIT_S, RunOutcome
from launcher.model.console import begin_stamps, format_time, log, write_stderr
from rendezvous.errors import EXIT_STOPPED
from rendezvous.settings import DEFAULTS

INTERVAL_S = 0.2  # the longest wait for an answer of Ray's: how late a signal is noticed
OUTPUT_S = 1.0  # Ray brings the last lines of its actors that late
_STOPPED = (EXIT_STOPPED, 128 + signal.SIGINT)
_PLACEHOLDER = "--rdzv-backend=c10d", "--rdzv-endpoint=driver:1", "--rdzv-conf=is_host=0"  # until the store is served


class FunctionToCall(Struct, frozen=True):
    """A function to run in place of a script. `call`: it and its arguments, pickled."""

    name: str
    call: bytes


class JobEnd(Struct, frozen=True):
    """How a job ended."""

    outcome: RunOutcome
    files: Mapping[str, bytes]
    """The results of a function's workers on all nodes, file name to content."""
    script: str


def run_job(
    options: ray_options.RayOptions,
    args: ParsedArgs,
    environ: Mapping[str, str],
    function: FunctionToCall | None = None,
    *,
    close_limit_s: float = CLOSE_LIMIT_S,
) -> JobEnd:
    """Run the job and return how it ended. Raises UsageError and TemporaryError for what cannot start.

    `args`: options for agents, and the script if there is no `function`. `environ`: the driver's.
    `close_limit_s`: for leaving the cluster, seconds; Ray's own end of that may go on in a thread.
    """
    variables, remarks = ray_options.select_variables(environ, options.export)
    is_named = "rdzv-id" in args.values or any(variables.get(name) for name in BY_NAME["rdzv-id"].variables)
    named = {} if is_named else {"rdzv-id": ray_options.find_run_id(environ) or f"ray-{os.urandom(4).hex()}"}
    given = args if function is None else ParsedArgs(args.values, script=function.name)
    # Before Ray is imported and reached, which takes seconds: a mistake in an option shows at once.
    config = _parse(given, named, variables)
    begin_stamps(config.output.log_times, "driver")
    wait_s = ray_options.find_stop_wait_s(environ)
    more = {**named, **_choose_shutdown_timeout(config.shutdown, wait_s, remarks)}
    require_ray()
    cluster = RayCluster(close_limit_s)
    cluster.connect(options.address)
    with _catch_stop_signals() as caught, closing(cluster):
        nodes = cluster.list_nodes()
        candidates = list_fitting(nodes, {}, options.label_selector)
        bundle, remark = (options.bundle, "") if options.bundle else choose_bundle(config.devices, candidates)
        demand = choose_demand(config.placement, nodes, bundle, options.label_selector, options.spares)
        if config.placement.origins["nodes_min"] == "default":
            more["nnodes"] = f"{demand.least}:{demand.most - options.spares}"
        for sentence in (*remarks, *([remark] if remark else [])):
            log(sentence)
        config = _parse(given, more, variables)
        with serve_store(cluster.address) as store:
            words = tuple(ray_options.make_agent_words(args, more))
            order = AgentOrder(
                words=(*store.options, *words),
                variables={**variables, **store.variables},
                bundle=dict(demand.bundle),
                function=function.name if function is not None else "",
                call=function.call if function is not None else b"",
            )
            log(_describe_start(config.rendezvous.run_id, demand, store.endpoint))
            pool = _make_pool(config.rendezvous.settings, config.shutdown.shutdown_timeout_s, demand)
            outcome = _run_pool(pool, cluster, demand, order, caught)
            if not caught:
                time.sleep(OUTPUT_S)
    return JobEnd(outcome, cluster.results, config.workers.script)


def report_end(end: JobEnd) -> int:
    """Report why the job failed, as an agent would; return the exit code."""
    found = end.outcome
    if found.failures:
        text = report.render(end.script, found.failures, outcome=found.reason, is_order_known=found.is_order_known)
        write_stderr(text, patience_s=REPORT_LIMIT_S)
    elif found.exit_code:
        log(found.reason if found.exit_code in _STOPPED else f"error: {found.reason}")
        if found.hint:
            write_stderr(f"hint: {found.hint}")
    return found.exit_code


def _parse(args: ParsedArgs, more: Mapping[str, str], variables: Mapping[str, str]) -> Config:
    return command.parse([*_PLACEHOLDER, *ray_options.make_agent_words(args, more)], variables)


def _choose_shutdown_timeout(options: ShutdownOptions, wait_s: float, remarks: list[str]) -> dict[str, str]:
    """Return --shutdown-timeout such that Ray does not kill the driver before the workers have had their time."""
    longest_s = max(0.0, wait_s - ray_options.STOP_MARGIN_S)
    if options.origins["shutdown_timeout_s"] == "default":
        return {"shutdown-timeout": f"{min(longest_s, options.shutdown_timeout_s):g}"}
    if options.shutdown_timeout_s > longest_s:
        needed_s = math.ceil(options.shutdown_timeout_s + ray_options.STOP_MARGIN_S)
        remarks.append(
            f"{options.origins['shutdown_timeout_s']} {options.shutdown_timeout_s:g} is longer than ray job stop "
            f"allows, which kills this driver after {wait_s:g} s: set {ray_options.STOP_WAIT_VARIABLE}={needed_s} in "
            "env_vars of the job's runtime_env"
        )
    return {}


def _describe_start(run_id: str | None, demand: Demand, endpoint: str) -> str:
    count = f"{demand.least}" if demand.least == demand.most else f"{demand.least} to {demand.most}"
    nodes = f"{count} node{'' if demand.most == 1 else 's'} with {demand}"
    return f"run {run_id} asks Ray for {nodes}; this driver serves its store at {endpoint}"


def _make_pool(settings: Mapping[str, Setting], grace_s: float, demand: Demand) -> agent_pool.AgentPool:
    start_s, return_s = (settings.get(name) for name in ("start_timeout_s", "rejoin_timeout_s"))
    return agent_pool.AgentPool(
        demand=demand,
        grace_s=grace_s,
        format_moment=lambda at: format_time(time.time() - (time.monotonic() - at)),
        start_limit_s=math.inf if start_s is None else float(start_s),  # an autoscaler needs longer than a default
        return_limit_s=float(DEFAULTS.rejoin_timeout_s if return_s is None else return_s),
    )


def _run_pool(
    pool: agent_pool.AgentPool, cluster: RayCluster, demand: Demand, order: AgentOrder, caught: Sequence[int]
) -> RunOutcome:
    """Run the job to its end. `caught`: signals that ask for it, to which others may be added meanwhile."""
    events: list[agent_pool.PoolEvent] = []
    told = 0
    while True:
        for signum in caught[told:]:
            log(f"stopping all agents: {signal.Signals(signum).name}")
            events.append(agent_pool.StopRequested(signum))
            told += 1
        for action in pool.step(events, cluster.look(), time.monotonic()):
            if isinstance(action, agent_pool.FinishJob):
                return action.outcome
            _carry_out(action, cluster, demand, order)
        events = cluster.wait_for_events(INTERVAL_S)


def _carry_out(action: agent_pool.PoolAction, cluster: RayCluster, demand: Demand, order: AgentOrder) -> None:
    if isinstance(action, agent_pool.Say):
        log(action.sentence)
    elif isinstance(action, agent_pool.RequestGroup):
        cluster.request_group(action.slots, demand, action.excluded)
    elif isinstance(action, agent_pool.RemoveGroup):
        cluster.remove_group(action.slot)
    elif isinstance(action, agent_pool.StartAgent):
        cluster.start_agent(action.slot, action.node, replace(order, number=action.number))
    elif isinstance(action, agent_pool.AskAgain):
        cluster.ask_again(action.slot)
    elif isinstance(action, agent_pool.StopAgent):
        cluster.stop_agent(action.slot)
    elif isinstance(action, agent_pool.DiscardActor):
        cluster.discard_actor(action.slot)


@contextmanager
def _catch_stop_signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT while a job runs: `ray job stop`, or Ctrl-C. A second ends the wait for the agents.

    Outside of the main thread, where no handler can be set, they remain the program's.
    """
    caught: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}
    for signum in before:
        signal.signal(signum, lambda signum, _: caught.append(signum))
    try:
        yield caught
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
