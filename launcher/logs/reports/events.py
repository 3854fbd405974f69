"""Events for other programs: --event-log-handler, in the shape that torchrun 2.13 gives them.

An event is a name, a source (AGENT or WORKER), a time in milliseconds and metadata. Programs that follow torchrun's
work here: its names and keys are kept, with the round added. It never sets the time; we do. The events, in order:

    RENDEZVOUS                      AGENT   a round begins; the time spent waiting for it
    START                           WORKER  runs its program
    SUCCEEDED FAILED TERMINATED     WORKER  has ended; TERMINATED: because the round was
    ROUND_ENDED                     AGENT   nothing of the round is left on this node (not one of torchrun's)
    SUCCEEDED FAILED                AGENT   this node's part in the job has ended

`console` writes each as a line of JSON to stderr. Another name is a handler that torch knows, or an extension that
torch loads has registered there; then torch is imported, and a thread passes the events on, because a slow handler
must not delay an agent that has a lease to renew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from launcher.config.config import Config
from launcher.logs.error_file import read_error_file
from launcher.model.console import log, write_stderr
from launcher.model.errors import UsageError, describe, sanitize
from launcher.placement.adapter.description import NodeAssignment, decode_assignment
from launcher.supervisor.messages import Exited, RoundSwept, Spawned, SpawnFailed
from rendezvous.events import Exit, StartRound, StopRound

NULL_HANDLERS = ("null", "dynamic_rendezvous")
"""The handlers of torch's own that do nothing."""

DRAIN_LIMIT_S = 5.0  # for a slow handler, at the end
_PREFIX = "torchelastic.worker.status."


class EventRecorder(Struct, eq=False):
    """Turns the agent's messages into events. `find_error_file`: (round, restart count, local rank) -> path."""

    config: Config
    host: str
    run_id: str
    find_error_file: Callable[[int, int, int], str]
    write: Callable[[dict[str, Any]], None]

    _start: float = field(default_factory=time.monotonic)
    _waiting_since: float = field(default_factory=time.monotonic)
    _round: StartRound = StartRound(0, 0, 0, "", "")
    _assignment: NodeAssignment | None = None
    _is_stopping: bool = False

    def take(self, message: object) -> None:
        """Record an action of the agreement, or a report of the supervisor."""
        match message:
            case StartRound():
                self._round, self._assignment, self._is_stopping = message, decode_assignment(message.assignment), False
                self._write_event("RENDEZVOUS", duration_ms=(time.monotonic() - self._waiting_since) * 1000)
            case StopRound():
                self._is_stopping = True
            case Spawned(_, local_rank, pid):
                self._write_worker_event("START", local_rank, pid)
            case SpawnFailed(_, local_rank, sentence, _):
                self._write_worker_event("FAILED", local_rank, None, raw_error=sentence)
            case Exited(_, local_rank, pid, exit_code, at):
                state = "SUCCEEDED" if exit_code == 0 else "TERMINATED" if self._is_stopping else "FAILED"
                error = self._read_error(local_rank) if state == "FAILED" else None
                self._write_worker_event(state, local_rank, pid, exit_code, error, at)
            case RoundSwept():
                self._waiting_since = time.monotonic()
                self._write_event("ROUND_ENDED")
            case Exit(exit_code, reason, _):
                self._write_event(
                    "FAILED" if exit_code else "SUCCEEDED", raw_error=describe(reason) if exit_code else None
                )

    def _read_error(self, local_rank: int) -> str | None:
        path = self.find_error_file(self._round.round, self._round.restart_count, local_rank)
        return read_error_file(path) if path else None

    def _write_worker_event(
        self,
        state: str,
        local_rank: int,
        pid: int | None,
        exit_code: int | None = None,
        raw_error: str | None = None,
        at: float | None = None,
    ) -> None:
        share = self._assignment
        if share is None or local_rank >= len(share.ranks):
            return
        details = {  # lists of one, as torchrun writes them
            "local_rank": [local_rank],
            "role_rank": [share.role_ranks[local_rank]],
            "role_world_size": [share.role_world_size],
            "exit_code": [exit_code],
            "worker_pid": [pid],
        }
        self._write_event(
            state, "WORKER", at, details, global_rank=share.ranks[local_rank], worker_id=str(pid), raw_error=raw_error
        )

    def _write_event(
        self,
        state: str,
        source: str = "AGENT",
        at: float | None = None,
        details: dict[str, Any] | None = None,
        **metadata: Any,
    ) -> None:
        share = self._assignment
        told = {
            "group_world_size": share.group_world_size if share else None,
            "entry_point": self.config.script,
            "round": self._round.round,
            **(details or {}),
        }
        common = {
            "run_id": self.run_id,
            "global_rank": None,
            "group_rank": share.group_rank if share else None,
            "worker_id": None,
            "role": self.config.role,
            "hostname": self.host,
            "state": state,
            "total_run_time": int(time.monotonic() - self._start),
            "rdzv_backend": self.config.rdzv_backend,
            "raw_error": None,
            "metadata": json.dumps(told),
            "agent_restarts": self._round.restart_count,
            "duration_ms": None,
        }
        timestamp = int((time.time() if at is None else at) * 1000)
        self.write(
            {"name": _PREFIX + state, "source": source, "timestamp": timestamp, "metadata": {**common, **metadata}}
        )


class TorchHandler:
    """A handler that torch knows, fed by a thread. Raises UsageError if there is none of that name.

    At its end the process waits for the thread, with a limit. Python's own wait for handlers, which has no limit, is
    removed: an agent with a handler that hangs would outlive its job.
    """

    def __init__(self, name: str, origin: str) -> None:
        import atexit
        import logging
        import queue
        import threading
        from importlib import import_module

        try:
            events: Any = import_module("torch.distributed.elastic.events")
            handlers: Any = import_module("torch.distributed.elastic.events.handlers")
            known = sorted(handlers._log_handlers)
        except Exception as error:  # an extension that torch loads may raise anything
            raise UsageError(
                f"{origin}={name}: torch, which may know it, cannot be imported: {sanitize(str(error))}",
                "null and console need no torch",
            ) from None
        if name not in known:
            raise UsageError(f"{origin}={name}: torch knows no such handler", f"there is {', '.join(known)}")
        self._name = name
        self._label = f"{origin}={name}"
        self._torch_events = events
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()
        atexit.unregister(logging.shutdown)
        atexit.register(self.close)

    def write(self, event: dict[str, Any]) -> None:
        """Queue an event."""
        self._queue.put(event)

    def close(self) -> None:
        """Wait until the handler has received all events, with a limit."""
        self._queue.put(None)
        self._thread.join(DRAIN_LIMIT_S)
        if self._thread.is_alive():
            log(f"{self._label} takes longer than {DRAIN_LIMIT_S:g} s at the end: its last events are lost")

    def _run(self) -> None:
        import logging
        import signal

        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the main thread
        while (event := self._queue.get()) is not None:
            source = self._torch_events.EventSource[event["source"]]
            try:
                self._torch_events.record(self._torch_events.Event(**{**event, "source": source}), self._name)
            except (Exception, SystemExit) as error:
                self._log_failure(error)
        logging.shutdown()

    def _log_failure(self, error: BaseException) -> None:
        """Log it once: the next event may succeed."""
        if not self._has_failed:
            self._has_failed = True
            why = f"{type(error).__name__}: {sanitize(str(error))}"
            log(f"{self._label} fails, an event is lost: {why}")


def make_writer(name: str, origin: str) -> Callable[[dict[str, Any]], None]:
    """Return the function that receives events, by the name of its handler. Raises UsageError."""
    if name == "console":
        return lambda event: write_stderr(json.dumps(event), is_data=True)
    return TorchHandler(name, origin).write
