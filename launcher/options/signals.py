"""The signals that options name: which are passed on to workers, and which tells of a preemption."""

from __future__ import annotations

import signal

from launcher.errors import UsageError
from launcher.options import Value, sanitize, suggest

_UNHANDLEABLE = ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGCLD")


def parse_signals(value: Value, notes: list[str]) -> tuple[str, ...]:
    """The signals that can be handled. As in torchrun an unknown name is a warning: it may exist elsewhere."""
    names = list(dict.fromkeys(name.strip() for name in value.text.split(",") if name.strip()))
    signals = signal.Signals.__members__
    for name in list(names):
        why = ""
        if name not in signals:
            question = suggest(name.upper().removeprefix("SIG"), {known[3:]: known for known in signals})
            why = "there is no such signal" + (f", {question}" if question else "")
        elif name in ("SIGKILL", "SIGSTOP"):
            why = "no process can handle it"
        elif signals[name] == signal.SIGCHLD:  # SIGCLD is the same
            why = "it tells the agent that a worker has ended"
        if why:
            notes.append(f"{value.origin}: {sanitize(name)} is left out: {why}")
            names.remove(name)
    return tuple(names)


def parse_preemption_signal(value: Value) -> str | None:
    """One signal that can be handled; None if not given. Raises UsageError."""
    if value.is_default:
        return None
    known = signal.Signals.__members__
    text = value.text.strip()
    if text not in known or text in _UNHANDLEABLE:
        question = suggest(text.upper().removeprefix("SIG"), {name[3:]: name for name in known})
        raise UsageError(f"{value} is no signal that can be handled", question or "SIGUSR1 is usual")
    return text
