"""The actor on a node of Ray: it starts the agent as a child, stops it, and returns its outcome.

The agent is a child because it forks its supervisor while it is small, and handles all signals; a process of Ray's
allows neither. One thread starts the child and waits for it: the kernel tells the agent of its parent's death when the
*thread* that started it ends. Ray calls `wait` and `stop` at the same time, in
threads of its own.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import subprocess
import tempfile
import threading

from msgspec import Struct

from launcher.calls import payload
from launcher.calls.launch import make_python_command
from launcher.config.scrub import CALL_VARIABLE, END_FILE
from launcher.extensions.ray.environment import make_agent_environment
from launcher.logs.reports import outcome
from launcher.logs.reports.outcome import RunOutcome

WAIT_LIMIT_S = 60.0  # an answer that the driver has given up must not keep a thread of the actor for ever


class AgentOrder(Struct, frozen=True, kw_only=True):
    """What an actor is to start."""

    words: tuple[str, ...]
    """The agent's command line, without what only its node knows."""
    variables: dict[str, str]
    """For the agent."""
    bundle: dict[str, float]
    """What the actor was granted."""
    number: int = 1
    """1 for the first agent on a node."""
    function: str = ""
    """The name of the function to call, "" for a program."""
    call: bytes = b""
    """The function and its arguments, pickled."""


class AgentEnd(Struct, frozen=True, kw_only=True):
    """How an agent ended."""

    exit_code: int
    outcome: RunOutcome | None
    files: dict[str, bytes]
    """The results of a function's workers, name to content."""


def make_actor_class() -> type:
    """Return the class of actors. Ray sends it as a whole, since it is local and refers to nothing around it.

    A process of Ray's may find a user's `launcher` first, in the directory of the job, so AgentActor is imported there.
    """

    class Actor:
        def __init__(self, name: str) -> None:
            import meshrun

            meshrun.import_own_packages()
            from launcher.cli import protect_imports

            protect_imports()
            from launcher.extensions.ray.actor import AgentActor

            self._actor = AgentActor(name)

        def __repr__(self) -> str:
            return repr(self._actor)

        def start(self, order: AgentOrder) -> str:
            return self._actor.start(order)

        def wait(self) -> AgentEnd | None:
            return self._actor.wait()

        def stop(self) -> None:
            self._actor.stop()

    return Actor


class AgentActor:
    """What an actor does. `name`: Ray puts it before lines of output."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._has_started, self._has_ended = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._end: AgentEnd | None = None
        self._is_stopped = False

    def __repr__(self) -> str:
        return self._name

    def start(self, order: AgentOrder) -> str:
        """Start the agent, if it does not run yet; return this node's id."""
        import ray

        if self._thread is None:
            # Ray may have put this call into any thread: this one has to be ours.
            self._thread = threading.Thread(target=self._run, args=(order,), name="agent", daemon=True)
            self._thread.start()
        self._has_started.wait()
        if self._error is not None:
            raise self._error
        node: str = ray.get_runtime_context().get_node_id()
        return node

    def wait(self) -> AgentEnd | None:
        """Wait until the agent has ended; None if it still runs after a minute."""
        if not self._has_ended.wait(WAIT_LIMIT_S):
            return None
        if self._end is None:
            raise self._error or RuntimeError("the agent was not started")
        return self._end

    def stop(self) -> None:
        """Have the agent leave, or not begin."""
        self._is_stopped = True
        if self._child is not None and self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(signal.SIGTERM)

    def _run(self, order: AgentOrder) -> None:
        directory = ""
        try:
            directory = tempfile.mkdtemp(prefix="meshrun_")
            command, environment = self._prepare(order, directory)
            self._child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
            self._has_started.set()
            if self._is_stopped:
                self.stop()
            code = self._child.wait()
            found = outcome.read(environment[END_FILE])
            files = _read_files(directory, found.round) if found is not None and order.function else {}
            self._end = AgentEnd(exit_code=code, outcome=found, files=files)
        except Exception as error:  # the driver has to learn of any
            self._error = error
        finally:
            if directory:  # before the driver learns of the end, and kills this process
                shutil.rmtree(directory, ignore_errors=True)
            self._has_started.set()
            self._has_ended.set()

    def _prepare(self, order: AgentOrder, directory: str) -> tuple[list[str], dict[str, str]]:
        import ray
        from ray.util import get_node_ip_address

        here = ray.get_runtime_context()
        environment = make_agent_environment(
            os.environ,
            order.variables,
            own=(here.runtime_env or {}).get("env_vars") or {},
            bundle=order.bundle,
            granted=here.get_accelerator_ids(),
            labels=here.get_node_labels(),
        )
        environment[END_FILE] = os.path.join(directory, "end.json")
        words = [f"--node-name={make_node_name(here.get_node_id(), order.number)}", *order.words]
        if not environment.get("LAUNCHER_INTERFACE"):
            words.insert(0, f"--local-addr={get_node_ip_address()}")
        if order.function:
            with open(os.path.join(directory, payload.CALL), "xb", opener=payload.open_private) as file:
                file.write(order.call)
            environment[CALL_VARIABLE] = directory
            program = (*make_python_command("launcher.calls.bootstrap"), order.function)
            words += ["--no-python", "--", *(word.replace("$", "$$") for word in program)]
        return [*make_python_command("launcher.calls.agent"), str(os.getpid()), directory, *words], environment


def _read_files(directory: str, round: int) -> dict[str, bytes]:
    """Return the results and exceptions of that round, by the names of their files."""
    found = {}
    for what in (payload.RESULT, payload.EXCEPTION):
        for path in glob.glob(f"{glob.escape(os.path.join(directory, f'{what}-{round}'))}-*[0-9]"):
            with open(path, "rb") as file:
                found[os.path.basename(path)] = file.read()
    return found


def make_node_name(node: str, number: int) -> str:
    """Return what the agent's node is called: the beginning of its id, as in Ray's tables."""
    return f"ray-{node[:8]}" + (f"-{number}" if number > 1 else "")
