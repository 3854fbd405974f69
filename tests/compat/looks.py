"""Ways to look at a run: each makes a short text that a person can read and two launchers can be compared by."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable

from tests.compat.runs import Look, See, Seen


def variable(name: str, rank: int = 0) -> See:
    """The value of a worker's variable."""
    return lambda seen: seen.environ(name, rank)


def exit_code(agent: int = 0) -> See:
    return lambda seen: str(seen.codes[agent])


def succeeds(seen: Seen) -> str:
    """Whether every agent ended with 0; else what they said, which then is in the message of the test."""
    return "runs" if set(seen.codes) == {0} else f"exit codes {', '.join(map(str, seen.codes))}"


def is_refused(seen: Seen) -> str:
    """Whether it ended with an error before any worker was started, and with which exit code."""
    if not any(seen.codes):
        return "accepted"
    return "a worker ran" if seen.workers else f"refused, exit code {seen.codes[0]}"


def arguments(rank: int = 0) -> See:
    """What the script sees behind its own name."""
    return lambda seen: " ".join(seen.worker(rank)["argv"][1:]) or "(nothing)"


def yes(condition: Callable[[Seen], object]) -> See:
    return lambda seen: "yes" if condition(seen) else "no"


def holds(sentence: str, condition: Callable[[Seen], object]) -> Look:
    """torchrun does what the sentence says."""
    return sentence, yes(condition), "yes"


def address(name: str = "MASTER_ADDR", rank: int = 0) -> See:
    """An address, or whose it is."""

    def see(seen: Seen) -> str:
        value = seen.environ(name, rank)
        return "this host's name" if value in (socket.gethostname(), socket.getfqdn()) else value

    return see


def port(name: str = "MASTER_PORT", rank: int = 0) -> See:
    """A port: the one that was given, or another."""

    def see(seen: Seen) -> str:
        value = seen.environ(name, rank)
        if value == str(seen.port):
            return "the given port"
        return "a free port" if value.isdigit() and int(value) > 1023 else value

    return see


def log_files(seen: Seen) -> str:
    """The names of the log files below the directory of the run, but for files that are empty."""
    return " ".join(name for name, text in seen.logs().items() if text) or "(none)"


def log(name: str) -> See:
    return lambda seen: seen.logs().get(name, "(no such file)").replace("\n", "; ").removesuffix("; ")


def console(pattern: str = "") -> See:
    """The lines of stdout that hold the pattern, sorted, since workers are not ordered among themselves."""
    return lambda seen: (
        "; ".join(sorted(line for line in seen.out.splitlines() if re.search(pattern, line))) or "(nothing)"
    )
