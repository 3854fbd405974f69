"""The agent's loop, turn by turn, between parts that do nothing."""

from __future__ import annotations

import math
import subprocess
import sys
from unittest.mock import Mock

import pytest

from launcher.agent.loop import Agent
from launcher.model.errors import ShortageError
from launcher.placement.adapter.description import NodeAssignment
from launcher.supervisor.messages import Exited, RoundSwept, Spawned, WorkerSpec
from rendezvous.events import CheckpointSaved, NoteReceived, RoundStopped, StartRound
from rendezvous.settings import Settings

SHARE = NodeAssignment(
    ranks=(0, 1),
    world_size=2,
    shape=(2,),
    group_rank=0,
    group_world_size=1,
    role_ranks=(0, 1),
    role_world_size=2,
    master_addr="h",
)
SPECS = [WorkerSpec(local_rank=rank, argv=("x",), env={}, unset=(), stdout=None, stderr=None) for rank in range(2)]


class Turns:
    """An agent, and what comes in its next turn. `inquiries`: what is made for the first question."""

    def __init__(self) -> None:
        self.inquiries = Mock(**{"advance.return_value": []})
        self.builder = Mock(**{"read_assignment.return_value": SHARE, "make_specs.return_value": SPECS})
        self.builder.make_targets.side_effect = lambda share, specs, pids: list(pids)
        self.driver = Mock(wake_at=0.0)
        self.channel = Mock()
        for name in ("check_saves", "check_heartbeats", "list_claims"):
            getattr(self.channel, name).return_value = {}
        self.channel.list_started.return_value = {}
        self._supervisor = Mock()
        self._observer = Mock()
        self.agent = Agent(
            script="train.py",
            reason="",
            settings=Settings(),
            supervisor=self._supervisor,
            fork_server=None,
            membership=Mock(driver=self.driver),
            termination=Mock(**{"take_notices.return_value": [], "check.return_value": None, "signum": None}),
            wakeup=Mock(**{"take.return_value": []}),
            port=Mock(),
            spec_builder=self.builder,
            worker_channel=self.channel,
            pump=None,
            observer=self._observer,
            round_log=Mock(),
            failures=Mock(),
            make_inquiries=lambda poll, listener, read_round: self.inquiries,
        )

    def turn(self, *actions: object, reports: tuple[object, ...] = (), is_asked: bool = False) -> None:
        self.driver.run.side_effect = [list(actions), []] if actions else [[]]
        self._supervisor.read_reports.return_value = reports
        self.agent._inquire_at = 0.0 if is_asked else math.inf
        self.agent._run_once()


def start(round: int) -> StartRound:
    return StartRound(round=round, restart_count=round - 1, world_size=2, coordinator="h:1", assignment="")


def test_a_round_that_waits_for_descriptors_shows_nothing_of_the_last_one() -> None:
    job = Turns()
    job.turn(start(1))
    job.turn(reports=(Spawned(1, 0, 41), Spawned(1, 1, 42), Exited(1, 1, 42, 0, 0.0)))
    job.builder.make_specs.side_effect = ShortageError("cannot prepare 2 workers: Too many open files")
    shown = job.agent.read_round()
    assert shown is not None
    assert (shown.number, shown.exit_codes) == (1, {1: 0})
    job.turn(start(2))
    assert job.agent.read_round() is None
    job.builder.make_specs.side_effect = None
    job.turn(start(2))
    shown = job.agent.read_round()
    assert shown is not None
    assert (shown.number, shown.exit_codes) == (2, {})


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), ImportError("x"), MemoryError()], ids=repr)
def test_a_question_without_what_it_takes_is_tried_again(error: Exception) -> None:
    job = Turns()
    tries: list[Exception | None] = [error, None]

    def make(poll: object, listener: int | None, read_round: object) -> Mock:
        if (problem := tries.pop(0)) is not None:
            raise problem
        return job.inquiries

    job.agent.make_inquiries = make
    job.turn(is_asked=True)
    job.inquiries.advance.assert_not_called()
    job.turn(is_asked=True)
    job.inquiries.advance.assert_called_once()


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), ImportError("x"), MemoryError()], ids=repr)
def test_a_note_without_what_it_takes_is_lost_and_the_agent_stays(error: Exception) -> None:
    job = Turns()
    job.inquiries.take_note.side_effect = error
    job.turn(NoteReceived("m", "{}"))
    job.inquiries.take_note.side_effect = None
    job.turn(NoteReceived("m", "{}"))
    assert job.inquiries.take_note.call_count == 2


def test_a_checkpoint_that_was_saved_just_before_the_end_of_a_round_counts() -> None:
    job = Turns()
    job.channel.check_saves.side_effect = math.isinf
    job.turn(start(1))
    job.turn(reports=(Exited(1, 0, 41, 0, 0.0), Exited(1, 1, 42, 0, 0.0)))
    job.turn(reports=(RoundSwept(1),))
    told = [call.args[0] for call in job.driver.submit.call_args_list]
    assert [type(one) for one in told[-2:]] == [CheckpointSaved, RoundStopped]


def test_the_sentence_of_a_stop_needs_nothing_that_was_not_loaded_before() -> None:
    """When SIGTERM comes there may be no descriptor left to import it, and workers are to be told why."""
    script = (
        "import sys; from launcher.agent import loop; loop._load_policy(); loaded = {*sys.modules}; "
        "loop.describe(loop.Reason.of('agent/signal', signal='SIGTERM')); print({*sys.modules} - loaded)"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "set()\n"
