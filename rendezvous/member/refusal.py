"""How the job of an agent differs from the run that it wants to join, in words.

Equal specs are the same job; only a difference needs words, so this module is imported when there is one. Some
differences are refused: of the options that decide which rounds there can be, and of the program, because another one
is most likely another job under the same name. Arguments of the script may differ from node to node, as under torchrun;
a remark says that they do.

Options are named with both values. Of the command only which of its words differ: the record has the first letters of
a hash of each word, and not the words, since a script may have been given a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rendezvous.records import WORD_CODE_LENGTH, Spec, StoreOwner, name_run

HINT = "give all nodes of a run the same program and options, and another run another --rdzv-id"
SERVED_HINT = "give all nodes of a run the same program and options, and another run a port of its own"
ENDED_HINT = "another --rdzv-id makes another run, --on-finished rerun begins this one anew"
LABELS_MAX = 3
PROGRAM_WORDS = 2  # of a command, before the arguments: the form of the script, and the script


def describe_other_run(
    endpoint: str, owner: StoreOwner, own: StoreOwner, *, has_begun: bool, port_option: str
) -> tuple[str, str]:
    """Describe why an agent cannot use the store at `endpoint`, which is that of another run; and what to do.

    `owner`, `own`: the other run, and the agent's own. `has_begun`: the other run has had a round, so it has its nodes.
    If it still waits for nodes, this agent may be meant as one of them.
    """
    theirs, ours, option = name_run(owner.run_id), name_run(own.run_id), "--rdzv-id"
    if theirs == ours:
        theirs, ours, option = (
            f"{theirs} with prefix {owner.prefix}",
            f"{ours} with prefix {own.prefix}",
            "--rdzv-prefix",
        )
    apart = f"give this run another port with {port_option}"
    if has_begun:
        sentence = f"the store at {endpoint} is that of {theirs}, which is running; this agent is of {ours}"
        return sentence, f"{apart}, or start it when {theirs} has ended"
    return (
        f"another agent, on node {owner.node_name}, waits at {endpoint} for {theirs}; this agent is of {ours}, "
        f"and all nodes of a run need the same {option}",
        f"give all nodes the same {option}; if these are two runs, {apart}",
    )


def describe_difference(run_name: str, theirs: Spec, ours: Spec, labels: Sequence[str]) -> str:
    """Describe how this agent's job differs from the run's; empty if they are the same.

    `labels`: what the words of this agent's command are called, in the order of `ours.word_codes`.
    """
    if theirs.has_secret != ours.has_secret:
        return f"{run_name} was started {'with' if theirs.has_secret else 'without'} a job secret, this agent is not"
    differences = [*_compare_options({"--mesh": theirs.mesh}, {"--mesh": ours.mesh})]
    differences += _compare_options(_split_options(theirs.limits), _split_options(ours.limits))
    run_options, own_options = _split_options(theirs.shared_options), _split_options(ours.shared_options)
    both = [name for name in own_options if name in run_options]
    differences += _compare_options({name: run_options[name] for name in both}, own_options, both)
    if differences:
        return f"{run_name} was started {'; '.join(differences)}"
    if theirs.limits != ours.limits:  # as no text that meshrun writes can
        return f"{run_name} was started with limits {theirs.limits!r}, this agent has {ours.limits!r}"
    if theirs.digest == ours.digest:
        return ""
    run_codes, own_codes = (
        _split_codes(theirs.word_codes)[:PROGRAM_WORDS],
        _split_codes(ours.word_codes)[:PROGRAM_WORDS],
    )
    if run_codes == own_codes:
        return ""
    return f"{run_name} was started with another command{_compare_words(run_codes, own_codes, labels)}"


def describe_other_arguments(theirs: Spec, ours: Spec, labels: Sequence[str]) -> str:
    """Describe how this agent's command differs from the run's, "with another command line: --lr differs".

    Empty if it does not. Only for specs that `describe_difference` does not refuse.
    """
    if theirs.digest == ours.digest:
        return ""
    words = _compare_words(_split_codes(theirs.word_codes), _split_codes(ours.word_codes), labels)
    return f"with another command line{words}"


def _split_options(text: str) -> dict[str, str]:
    """Return the options of a text like `--nnodes 1:2 --max-restarts 3`, name -> value."""
    options = (part.partition(" ") for part in f" {text}".split(" --")[1:])
    return {f"--{name}": value for name, _, value in options}


def _compare_options(
    theirs: Mapping[str, str], ours: Mapping[str, str], names: Iterable[str] | None = None
) -> Iterator[str]:
    for name in dict.fromkeys((*theirs, *ours)) if names is None else names:
        run_value, own_value = theirs.get(name), ours.get(name)
        if run_value == own_value:
            continue
        with_run = f"without {name}" if run_value is None else f"with {name} {run_value}"
        yield f"{with_run}, this agent {'without it' if own_value is None else f'with {name} {own_value}'}"


def _compare_words(run_codes: list[str], own_codes: list[str], labels: Sequence[str]) -> str:
    """Return the words that differ, as the end of a sentence; empty if they are not known."""
    labels = labels[: len(own_codes)]
    if not labels or len(own_codes) != len(labels) or run_codes == own_codes:
        return ""
    if len(run_codes) == len(own_codes):  # the usual case: some values are others
        differ = [label for label, run, own in zip(labels, run_codes, own_codes, strict=True) if run != own]
        return f": {_join(differ)} {'differs' if len(differ) == 1 else 'differ'}"
    least = min(len(run_codes), len(own_codes))
    begin = next((at for at in range(least) if run_codes[at] != own_codes[at]), least)
    end = next((at for at in range(least - begin) if run_codes[-1 - at] != own_codes[-1 - at]), least - begin)
    own = list(labels[begin : len(labels) - end])
    if not own:
        missing = len(run_codes) - len(own_codes)
        return f", with {missing} more {'argument' if missing == 1 else 'arguments'} after {labels[max(begin, 1) - 1]}"
    if begin + end == len(run_codes):
        return f", without {_join(own)}"
    return f": it differs from {own[0]} on"


def _split_codes(text: str) -> list[str]:
    return [text[at : at + WORD_CODE_LENGTH] for at in range(0, len(text), WORD_CODE_LENGTH)]


def _join(labels: Sequence[str]) -> str:
    more = len(labels) - LABELS_MAX
    return ", ".join(labels[:LABELS_MAX]) + (f" and {more} more" if more > 0 else "")
