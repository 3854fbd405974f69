"""The processes of a round on one node: what happens to them, and what is done and told about it.

In lifecycle.txt a line that begins with ">" is what happens at that second, the lines below it are what comes out, and
when the round wants to be woken, if that has changed.

    > 10 ends 0 1             worker 0 of two ends with 1; `secondary`: it looks like the loss of a peer, `victim`: it
                              may have waited for a worker that still lives, `claimed`: it has said why it fails
    > 10 stop 5               the order to stop, with a grace of five seconds; also `kill`
    > 10 pass, window         time has passed; nothing more is to be seen
"""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.agent import lifecycle

TERM = signal.SIGTERM
GOOD, BAD, ECHO = (0, False), (1, False), (1, True)
FLAGS = {"secondary": "is_secondary", "victim": "may_be_victim", "claimed": "is_claimed"}
TRANSCRIPTS = (Path(__file__).parent / "lifecycle.txt").read_text().strip().split("\n\n")


def play(transcript: str) -> str:
    """The transcript with what happens in place of what is written there."""
    round, wake_at, played = lifecycle.Round(1, 2), math.inf, list[str]()
    for line in transcript.split("\n"):
        if not line.startswith(("#", ">")):
            continue
        played.append(line)
        if line.startswith("> "):
            time, what, *words = line.removeprefix("> ").split()
            played += map(show, take(round, float(time), what, words))
            if round.wake_at != wake_at:
                wake_at = round.wake_at
                played.append(f"wakes at {wake_at:g}" if wake_at < math.inf else "sleeps")
    return "\n".join(played)


def take(round: lifecycle.Round, now: float, what: str, words: list[str]) -> list[lifecycle.RoundAction]:
    match what:
        case "ends":
            local_rank, code, *how = words
            said = {FLAGS[word]: True for word in how}
            end = lifecycle.WorkerExit(int(local_rank), int(code), **{"is_secondary": "victim" in how, **said})
            return round.take_exit(end, now)
        case "stop":
            return round.stop(TERM, float(words[0]), now)
        case "kill":
            return round.kill()
        case "window":
            return round.end_window(now)
    return round.advance(now)


def show(action: lifecycle.RoundAction) -> str:
    match action:
        case lifecycle.ReportFailed(cause):
            return f"tells of the failure of {cause.local_rank} with {cause.exit_code}"
        case lifecycle.ReportSucceeded():
            return "tells of success"
        case lifecycle.SignalWorkers(signum):
            return f"signals {signal.Signals(signum).name}"
    return "sweeps"


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda text: text.partition("\n")[0].strip("# ."))
def test_the_transcript_is_what_happens(transcript: str) -> None:
    assert play(transcript) == transcript


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("end"), st.integers(0, 2), st.sampled_from([GOOD, BAD, ECHO, (-9, False)])),
        st.tuples(st.just("stop"), st.sampled_from([0.0, 1.0, 5.0]), st.none()),
        st.tuples(st.just("kill"), st.none(), st.none()),
        st.tuples(st.just("seen"), st.none(), st.none()),
        st.tuples(st.just("pass"), st.sampled_from([0.1, 1.0, 10.0]), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=80)
@given(STEPS)
def test_any_round_is_reported_once_and_never_succeeds_after_a_failure(steps: list[tuple[str, object, object]]) -> None:
    round, now, made, live = lifecycle.Round(1, 3), 0.0, list[lifecycle.RoundAction](), {0, 1, 2}
    for what, how, detail in steps:
        if what == "end" and how in live:
            live.remove(how)  # a process ends once
            made += round.take_exit(lifecycle.WorkerExit(how, *detail, may_be_victim=detail[1]), now)  # type: ignore[arg-type]
        elif what == "stop":
            made += round.stop(TERM, how, now)  # type: ignore[arg-type]
        elif what == "kill":
            made += round.kill()
        elif what == "seen":
            made += round.end_window(now)
        elif what == "pass":
            now += how  # type: ignore[operator]
            made += round.advance(now)
    kinds = [type(action) for action in made]
    assert kinds.count(lifecycle.ReportSucceeded) + kinds.count(lifecycle.ReportFailed) <= 1
    assert kinds.count(lifecycle.SweepRound) <= 1
    assert kinds.count(lifecycle.SignalWorkers) <= 1
    assert lifecycle.ReportSucceeded not in kinds or not round.failures
