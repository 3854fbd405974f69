"""How the job of an agent differs from the run that it wants to join.

Equal specs are the same job; only a difference needs an explanation, so this module is imported when there is one. Some
differences are refused: of the options that decide which rounds there can be, and of the program, because another one
is most likely another job under the same name. Arguments of the script may differ from node to node, as under torchrun;
a remark reports that they do.

Options are named with both values. Of the command only digests are compared, since a script may have been given a
secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rendezvous.reasons import Reason
from rendezvous.records import Spec


def find_difference(theirs: Spec, ours: Spec, run_id: str, *, is_served: bool) -> Reason | None:
    """Return why this agent may not join a run with the spec `theirs`; None if it may.

    `is_served`: an agent serves the store, so that each run needs a port of its own.
    """
    if theirs.has_secret != ours.has_secret:
        return Reason.of("other-secret", run=run_id, has_secret=theirs.has_secret)
    shared = {name: value for name, value in theirs.shared_options.items() if name in ours.shared_options}
    differences = [
        *_compare_options({"--mesh": theirs.mesh, **theirs.options}, {"--mesh": ours.mesh, **ours.options}),
        *_compare_options(shared, {name: ours.shared_options[name] for name in shared}),
    ]
    if differences:
        return Reason.of("other-options", run=run_id, is_served=is_served).add(*differences)
    if theirs.digest != ours.digest:
        return Reason.of("other-command", run=run_id, is_served=is_served)
    return None


def _compare_options(theirs: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[Reason]:
    for name in dict.fromkeys((*theirs, *ours)):
        if name not in ours:
            yield Reason.of("option-not-here", option=name, theirs=theirs[name])
        elif name not in theirs:
            yield Reason.of("option-only-here", option=name, ours=ours[name])
        elif theirs[name] != ours[name]:
            yield Reason.of("option-differs", option=name, theirs=theirs[name], ours=ours[name])
