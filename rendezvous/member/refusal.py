"""How the job of an agent differs from the run that it wants to join, in words.

Equal specs are the same job; only a difference needs words, so this module is imported when there is one. Some
differences are refused: of the options that decide which rounds there can be, and of the program, because another one
is most likely another job under the same name. Arguments of the script may differ from node to node, as under torchrun;
a remark says that they do.

Options are named with both values. Of the command only digests are compared, since a script may have been given a
secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rendezvous.records import Spec, StoreOwner, name_run

HINT = "give all nodes of a run the same program and options, and another run another --rdzv-id"
SERVED_HINT = "give all nodes of a run the same program and options, and another run a port of its own"
ENDED_HINT = "give a new run another --rdzv-id, or begin this one anew with --on-finished rerun"


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
            "LAUNCHER_RDZV_PREFIX",
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


def describe_difference(run_name: str, theirs: Spec, ours: Spec) -> str:
    """Describe how this agent's job differs from the run's; empty if they are the same."""
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
    if theirs.digest != ours.digest:
        return f"this agent runs another command than the first node of {run_name}"
    return ""


def describe_other_arguments(theirs: Spec, ours: Spec) -> str:
    """Return "with other arguments for the script" if the run has others; only where `describe_difference` is empty."""
    return "" if theirs.arguments_digest == ours.arguments_digest else "with other arguments for the script"


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
