"""The rendezvous handler that torchrun's agent calls, implemented by the agreement.

    next_rendezvous    before workers are started: the last round's have ended; wait for the next round
    num_nodes_waiting  while they run, every --monitor-interval: 1 once the round is to end, for any reason
    the last barrier   once they have succeeded: report it, and wait until all have
    shutdown           at torchrun's end, except by a signal: the job fails if its workers did; else this node leaves

So a stock agent stops its workers whenever the others need it, although the interface only says that a node waits, and
a node without ranks waits inside `next_rendezvous`, as a spare. torchrun counts restarts: an agent that has none left
ends, and with it the job.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import MutableMapping

from torch.distributed import Store  # type: ignore[attr-defined]  # not marked
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from launcher.agent.startup import stores
from launcher.agent.startup.addresses import find_own_address
from launcher.agent.startup.stale_agents import NodeLock
from launcher.agent.startup.startup import Startup, listen, wait_for_store
from launcher.config import credentials, scrub
from launcher.config.config import Config
from launcher.extensions.torchrun.member import ENDED, TorchrunMember
from launcher.extensions.torchrun.options import BACKEND, get_worker_count, read_options
from launcher.extensions.torchrun.round_store import RoundStore, meet
from launcher.hardware.linux.kernel import read_boot_id
from launcher.logs.error_file import read_error
from launcher.logs.reports.outcome import report_failure
from launcher.logs.reports.report import WorkerFailure
from launcher.model.console import begin_stamps, format_local_time, log
from launcher.model.errors import TemporaryError, describe
from launcher.placement.adapter.description import NodeAssignment
from rendezvous import codec
from rendezvous.errors import EXIT_TEMPORARY, MeshrunError
from rendezvous.events import Exit
from rendezvous.reasons import Reason

LEAVE_LIMIT_S = 10.0  # to inform the others
VERDICT_LIMIT_S = 90.0  # for the job to fail: other agents give their workers half a minute to stop
EXIT_LIMIT_S = 3.0  # of a process that a signal ends
BARRIER_LIMIT_S = 300.0  # torchrun's own, if it did not reach its barrier
_secrets: dict[str, str] = {}  # secrets, for the next job of this process: notebooks start several


def open_handler(parameters: RendezvousParameters) -> Handler:
    """Raises ValueError for invalid options, RendezvousConnectionError when the store does not answer in time."""
    try:
        config = read_options(parameters, os.environ)
        arrival = start_up(config, os.environ)
        member = TorchrunMember(config, arrival)
    except TemporaryError as error:
        raise RendezvousConnectionError(_format_error(error)) from None
    except MeshrunError as error:
        raise ValueError(_format_error(error)) from None
    return Handler(member, parameters.run_id, arrival.address, get_worker_count(config))


def start_up(config: Config, environ: MutableMapping[str, str]) -> Startup:
    """Find the store, and this node's address and listener, as `launcher.agent.startup` does.

    torchrun's workers hold neither the listener of this node's presence nor a lock, so its closing proves that the
    agent has ended, and nothing about the workers. And since they inherit all of torchrun's environment, the secrets
    are removed from `environ`.

    Raises UsageError for what waiting cannot fix, TemporaryError when the store does not answer in time.
    """
    meeting, network = config.rendezvous, config.rendezvous.network
    assert network is not None  # an endpoint is set
    name = meeting.node_name or os.uname().nodename
    begin_stamps(config.output.log_times, name)
    for note in config.notes:
        log(note)
    stores.require("grpc")
    _secrets.update({name: environ.pop(name) for name in scrub.PRIVATE if name in environ})
    found = credentials.read(network, _secrets)
    wait_for_store(network, meeting.start_timeout_s)
    address = find_own_address(local_addr=meeting.local_addr, interface=meeting.interface, endpoints=network.endpoints)
    return Startup(
        network=network,
        credentials=found,
        name=name,
        boot_id=read_boot_id(),
        address=address,
        node_lock=NodeLock("", -1, {}),
        listener=listen(address, meeting.port_range),
        serves_at=(),
    )


class Handler(RendezvousHandler):
    """`address` of this node; `worker_count`: how many workers it said to have, None if nobody knew."""

    def __init__(self, member: TorchrunMember, run_id: str, address: str, worker_count: int | None) -> None:
        self._membership = member
        self._run_id = run_id
        self._address = address
        self._worker_count = worker_count
        self._void_reason = ""  # why the success of the workers here does not count
        # A signal ends torchrun without a call to its handler; then its last reference is dropped, or the process ends.
        self._leave_finalizer = weakref.finalize(self, _leave, member)

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Workers are clients of the store that the first node's agent serves, a new one in every round."""
        return os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1"

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a round in which this node has ranks.

        Raises RendezvousClosedError when the job has failed or this node has left it, RendezvousTimeoutError when there
        were too few nodes for too long. A spare of a job that has succeeded ends as torchrun does after success: torch
        2.13 has an error for that, which its launcher does not handle.
        """
        try:
            return self._wait_for_round()
        except MeshrunError as error:
            raise RendezvousConnectionError(_format_error(error)) from None

    def _wait_for_round(self) -> RendezvousInfo:
        member = self._membership
        member.report_stopped()
        while (found := member.wait_for_round()) is not None:
            start, share = found
            store = meet(start.round, share, member.port, member.is_over)
            if store is not None:
                member.begin()
                return self._make_info(store, share)
            member.report_stopped()
        end = member.end
        assert end is not None
        if _is_success(end):
            log(_format_reason(self._run_id, end.reason))
            raise SystemExit(0)
        _report_others(end)
        raise _make_error(self._run_id, end)

    def _make_info(self, store: Store, assignment: NodeAssignment) -> RendezvousInfo:
        own = RoundStore(
            store,
            worker_count=self._worker_count,
            report_succeeded=self._membership.report_succeeded,
            wait_for_all=self._wait_for_all,
        )
        if self.use_agent_store:
            place = RendezvousStoreInfo(assignment.master_addr, assignment.master_port)
        else:
            place = RendezvousStoreInfo.build(assignment.group_rank, own, self._address)
        return RendezvousInfo(own, assignment.group_rank, assignment.group_world_size, place)

    def num_nodes_waiting(self) -> int:
        """Return 1 if torchrun must stop its workers and call `next_rendezvous`, which knows why."""
        return int(self._membership.is_over())

    def is_closed(self) -> bool:
        return self._membership.end is not None

    def set_closed(self) -> None:
        """End this node's part in the job."""
        self._membership.give_up(1, "", -1)

    def shutdown(self) -> bool:
        """End the handler; torchrun calls this at its end for any reason, unless a signal ends it.

        Raises RendezvousClosedError when the workers here have succeeded in a round that others had to end.
        """
        if self._leave_finalizer.detach() is None:
            return True
        error = sys.exc_info()[1]  # torchrun calls from a `finally`
        member = self._membership
        if member.end is None:
            self._finish(error)
        member.close()
        if self._void_reason and error is None:
            raise RendezvousClosedError(self._void_reason)
        return True

    def _finish(self, error: BaseException | None) -> None:
        member = self._membership
        if member.has_workers and error is None:  # a torchrun with another kind of barrier
            member.report_succeeded()
            self._try_to_wait()
        if member.has_succeeded or not member.has_workers:
            member.leave(ENDED)
            member.wait_for_end(LEAVE_LIMIT_S)
        else:
            member.give_up(*_find_root_cause(error))
            member.wait_for_end(VERDICT_LIMIT_S)

    def _try_to_wait(self) -> None:
        try:
            self._wait_for_all(BARRIER_LIMIT_S)
        except (RendezvousClosedError, TimeoutError) as error:
            log(str(error))

    def _wait_for_all(self, limit_s: float) -> None:
        """Wait until the workers of all nodes have succeeded. Raises RendezvousClosedError when they do not."""
        member = self._membership
        if not member.wait_until_over(limit_s):
            raise TimeoutError(f"the workers of other nodes have not finished within {limit_s:g} s")
        why = member.explain_end()
        member.leave(Reason.of("torchrun/workers-finished"))
        end = member.wait_for_end(LEAVE_LIMIT_S)
        if end is None or not _is_success(end):
            self._void_reason = (
                f"run {self._run_id}: {describe(why)}. The workers here had succeeded; torchrun cannot run them again, "
                "so this node leaves"
            )
            raise RendezvousClosedError(self._void_reason)


def _leave(member: TorchrunMember) -> None:
    if member.end is None:
        member.leave(Reason.of("torchrun/told-to-end"))
        member.wait_for_end(EXIT_LIMIT_S)


def _is_success(end: Exit) -> bool:
    return end.verdict is not None and end.verdict.kind == "success"


def _make_error(run_id: str, end: Exit) -> Exception:
    """Return the exception that torchrun raises, with its exit code, 1."""
    words = _format_reason(run_id, end.reason)
    return RendezvousTimeoutError(words) if end.exit_code == EXIT_TEMPORARY else RendezvousClosedError(words)


def _format_reason(run_id: str, reason: Reason) -> str:
    return describe(reason) if "run" in reason.values else f"run {run_id}: {describe(reason)}"


def _format_error(error: MeshrunError) -> str:
    return f"{error}\nhint: {error.hint}" if error.hint else str(error)


def _find_root_cause(error: BaseException | None) -> tuple[int, str, int]:
    """Return the first failure among the workers here: the job's exit code, the text for the verdict, the rank.

    torchrun raises it as an exception at the end of the job, and does not pass it to its rendezvous. But it closes the
    rendezvous while that exception is being handled.
    """
    if not isinstance(error, ChildFailedError):
        return 1, "", -1
    rank, found = error.get_first_failure()
    failure = WorkerFailure(
        rank=rank,
        local_rank=found.local_rank,
        pid=found.pid,
        exit_code=found.exitcode,
        time=format_local_time(found.timestamp),
        host=os.uname().nodename,
        message=read_error(found.error_file)[0],
    )
    exit_code = found.exitcode if found.exitcode > 0 else 128 - found.exitcode
    return exit_code, codec.encode(failure).decode(), rank


def _report_others(end: Exit) -> None:
    """Show the failure of another node, if the verdict carries one; torchrun shows those of its own workers."""
    if end.verdict is not None and end.verdict.kind == "failure" and end.verdict.failure:
        report_failure(end.verdict, (), os.uname().nodename, "torchrun")
