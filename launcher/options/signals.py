"""The signals that options name: which are passed on to workers, and which tells of a preemption."""

from __future__ import annotations

import signal

from launcher.errors import UsageError
from launcher.options import Given, did_you_mean, shown

_UNFIT = ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGCLD")


def signals_to_handle(given: Given, notes: list[str]) -> tuple[str, ...]:
    """The signals that can be handled. As in torchrun an unknown name is a warning: it may exist elsewhere."""
    names = list(dict.fromkeys(name.strip() for name in given.text.split(",") if name.strip()))
    signals = signal.Signals.__members__
    for name in list(names):
        why = ""
        if name not in signals:
            question = did_you_mean(name.upper().removeprefix("SIG"), {known[3:]: known for known in signals})
            why = "there is no such signal" + (f", {question}" if question else "")
        elif name in ("SIGKILL", "SIGSTOP"):
            why = "no process can handle it"
        elif signals[name] == signal.SIGCHLD:  # SIGCLD is the same
            why = "it tells the agent that a worker has ended"
        if why:
            notes.append(f"{given.origin}: {shown(name)} is left out: {why}")
            names.remove(name)
    return tuple(names)


def preemption_signal(given: Given) -> str | None:
    """One signal that can be handled; None if not given. Raises UsageError."""
    if given.is_default:
        return None
    known = signal.Signals.__members__
    text = given.text.strip()
    if text not in known or text in _UNFIT:
        question = did_you_mean(text.upper().removeprefix("SIG"), {name[3:]: name for name in known})
        raise UsageError(f"{given} is no signal that can be handled", question or "SIGUSR1 is usual")
    return text
