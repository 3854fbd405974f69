"""Errors of the command by culprit, each with its exit code; and what their sentences and hints are made of."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from rendezvous.errors import EXIT_TEMPORARY, EXIT_USAGE, MeshrunError

TYPE_CHECKING = False  # typing is not imported in the supervisor
if TYPE_CHECKING:
    from rendezvous.reasons import Reason

_SANITIZED_MAX = 300
_SHORTAGES = {
    errno.EMFILE: "check ulimit -n",
    errno.ENFILE: "check /proc/sys/fs/file-max",
    errno.EAGAIN: "check ulimit -u",
    errno.ENOMEM: "check free -m, and in a container its memory limit",
    errno.ENOSPC: "check df -h and df -i",
    errno.EDQUOT: "check quota",
    errno.E2BIG: "shorten the arguments and the environment, or raise ulimit -s: getconf ARG_MAX shows their limit",
}


_PASSING = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


def find_shortage_hint(error_number: int | None) -> str | None:
    """Return a hint if a system call failed with this errno for lack of a resource; None for another reason."""
    return _SHORTAGES.get(error_number or 0)


class LauncherError(MeshrunError):
    exit_code = 1


class UsageError(LauncherError):
    """An error of the user's: a flag, a variable, a file name."""

    exit_code = EXIT_USAGE


class TemporaryError(LauncherError):
    """The world is not ready: too few nodes, no store."""

    exit_code = EXIT_TEMPORARY


class ShortageError(TemporaryError):
    """The kernel has no descriptor, memory or thread to give at the moment: the same may work a second later."""


class UnfitError(TemporaryError):
    """This node lacks what it needs before it may join, and may have it later: it reports that and tries again.

    `kind`: what it lacks, equal as long as that is the same, whatever the sentence says.
    """

    def __init__(self, sentence: str, hint: str | None = None, *, kind: tuple[str | int, ...]) -> None:
        super().__init__(sentence, hint)
        self.kind = kind


class EarlyExitError(LauncherError):
    """This node had to leave before it had joined, or could not continue; `exit_code` is the agent's."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def make_shortage_error(sentence: str, error: OSError) -> TemporaryError:
    """Return the error for a system call that failed: a ShortageError if others may give back what it lacked."""
    kind = ShortageError if error.errno in _PASSING else TemporaryError
    return kind(f"{sentence}: {error.strerror}", find_shortage_hint(error.errno))


def sanitize(text: str) -> str:
    """Return the text as a sentence can contain it: on one line, without terminal control codes, and not too long."""
    if len(text) > _SANITIZED_MAX:
        return f"{sanitize(text[: _SANITIZED_MAX // 2])}... ({len(text)} characters)"
    return repr(text) if text and (not text.isprintable() or text.isspace()) else text


def describe_bug(error: BaseException) -> str:
    """Describe an error that no user has caused, in a part that may fail while the job goes on."""
    text = sanitize(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def suggest(word: str, known: Mapping[str, str], similarity: float = 0.7) -> str:
    """Return the question after a misspelt word, or "" if nothing is similar. `known`: candidate -> how to write it.

    `similarity` runs from 0 to 1, the same word; 0.7 accepts --mehs for --mesh.
    """
    from difflib import get_close_matches  # only on the way to an error

    close = get_close_matches(word, known, n=1, cutoff=similarity)
    if not close:
        # The beginning of a name is a name too, and may be misspelt: --npoc for --nproc-per-node.
        beginnings = {name[: len(word) + 1]: name for name in known}
        close = [beginnings[start] for start in get_close_matches(word, beginnings, n=1, cutoff=similarity)]
    return f"did you mean {known[close[0]]}?" if close else ""


def describe(reason: Reason | None) -> str:
    """Return the sentence of a reason, whether the agreement or the launcher has made it; "" for none."""
    if reason is None:
        return ""
    from launcher.model.sentences import SENTENCES  # not before the first worker, unless something is logged
    from rendezvous import sentences

    return sentences.describe(reason, lambda kind: SENTENCES.get(kind) or sentences.SENTENCES.get(kind))


def give_hint(reason: Reason) -> str:
    """Return what the user can do about it; "" if nothing is known."""
    from launcher.model.sentences import HINTS
    from rendezvous import sentences

    return sentences.give_hint(reason, lambda kind: HINTS.get(kind) or sentences.HINTS.get(kind))
