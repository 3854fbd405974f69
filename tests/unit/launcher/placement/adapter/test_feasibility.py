"""What no number of nodes like this one could form is refused before anybody waits; what others may form is not."""

from __future__ import annotations

import pytest

from launcher.agent.command import parse
from launcher.model.errors import UsageError
from launcher.placement.adapter.feasibility import require_feasible, resolve_limits

LEVELS = ("leaf", "slice")


def launched(*words: str, slot_count: int = 4, **environ: str) -> None:
    """Ask as an agent of several nodes does; raises UsageError if it is refused."""
    config = parse(("--rdzv-backend=c10d", "--rdzv-endpoint=head:29400", *words, "train.py"), environ)
    limits, _ = resolve_limits(config.placement, LEVELS)
    require_feasible(config.devices, config.placement.grid, limits, slot_count)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--nnodes=1:", "--mesh=dp=*,tp=8", "--within=tp=host"),
         "any number of nodes with 4 workers each cannot form"),
        (("--nnodes=2", "--mesh=dp=*,tp=8", "--within=tp=host"), "mesh dp=1,tp=8 needs 8 ranks of tp on one host"),
        (("--nnodes=1:2", "--mesh=pp=4,tp=8"), "2 nodes with 4 workers each cannot form this: mesh pp=4,tp=8 needs"),
        (("--nnodes=1:3", "--mesh=dp=*,tp=4", "--elastic=4:"), "3 nodes with 4 workers each cannot form this"),
        (("--nnodes=1:", "--mesh=dp=*,tp=2", "--unit=8"), "--unit 8 does not fit on any node: the largest has 4"),
    ],
)  # fmt: skip
def test_what_can_never_be_formed_is_refused_with_the_numbers(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        launched("--nproc-per-node=4", *words)
    assert sentence in str(refused.value)
    assert refused.value.hint == "use --nproc-per-node auto to wait for nodes that have more"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--nnodes=8", "--mesh=pp=4,tp=8"),
        ("--nnodes=1:", "--mesh=pp=64,dp=*,tp=32"),
        ("--nnodes=1:", "--mesh=dp=*,tp=8", "--within=tp=leaf"),  # which leaves there are only the nodes know
        ("--nnodes=3", "--mesh=dp=*,tp=4", "--within=tp=host", "--elastic=3"),
        ("--nnodes=1:", "--mesh=dp=*,tp=4", "--whole=slice:4"),
        ("--nnodes=100:", "--mesh=dp=*"),
    ],
)
def test_what_enough_nodes_could_form_is_waited_for(words: tuple[str, ...]) -> None:
    launched("--nproc-per-node=4", *words)


def test_a_detected_count_refuses_nothing_since_a_device_may_have_failed() -> None:
    launched("--nnodes=1:", "--mesh=dp=*,tp=8", "--within=tp=host", slot_count=7)
