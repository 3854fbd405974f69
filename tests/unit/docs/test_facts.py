"""The reference pages that are made of tables: they are in step, and the tables leave out nothing of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import product

import pytest

from docs import facts
from launcher import cli
from launcher.config.frameworks import EnvironmentChoice
from launcher.hardware.accelerators.contract import KINDS
from launcher.hardware.accelerators.rules import RULES
from launcher.locality import keys
from launcher.locality.gather import BUILT_IN
from launcher.model.errors import UsageError
from launcher.model.locality_path import LEVELS
from launcher.model.node import Device, Slot
from launcher.ranks.environments.contract import WorkerAssignment
from launcher.ranks.environments.variables import VARIABLE_DESCRIPTIONS
from launcher.ranks.spec_builder import make_environments
from tests.support.documents.pages import ROOT

# Environments that stand on their own, and what a machine of theirs may say before the start.
TPU_SLICE = {
    "TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "h0,h1,h2,h3", "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_TOPOLOGY": "4x4", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_PORT": "9000",
}  # fmt: skip
PARENTS: tuple[Mapping[str, str], ...] = ({}, {"JAX_COORDINATOR_BIND_ADDRESS": "0.0.0.0:1"}, TPU_SLICE)
OPTIONS = ((), ("--virtual-local-rank",), ("--device-binding=visible",))


@pytest.mark.parametrize("name", facts.PAGES)
def test_a_page_is_what_the_tables_say(name: str) -> None:
    assert (ROOT / "docs/reference" / name).read_text() == facts.PAGES[name](), "make docs writes it anew"


def places() -> Iterator[WorkerAssignment]:
    """Workers of all kinds: with one device and several, alone on a node and not, in a slice and not."""
    for kind, width, count, several in product((*KINDS, "cpu"), (1, 4), (1, 4), (False, True)):
        devices = tuple(Device(kind=kind, index=at, id=f"{kind}{at}", visible=str(at)) for at in range(width))
        yield WorkerAssignment(
            **dict.fromkeys(("round", "restart_count", "max_restarts", "rank", "local_rank", "role_rank"), 0),
            **dict.fromkeys(("world_size", "role_world_size", "master_port"), 16),
            group_rank=1, group_world_size=4 if several else 1, local_world_size=count, slice_index=0,
            slice_count=2 if several else 0, run_id="r", role="default", master_addr="127.0.0.1", error_file="e",
            mesh_axes=("dp", "tp"), mesh_shape=(2, 8), mesh_coordinates=(0, 0), mesh_groups=("dp", "tp", "dp+tp"),
            slot=Slot(index=0, devices=devices),
        )  # fmt: skip


@cache
def told(name: str) -> set[str]:
    """Every variable that this environment sets for anybody."""
    found: set[str] = set()
    for options, parent in product(OPTIONS, PARENTS):
        (environment,) = make_environments(
            EnvironmentChoice((name,), ""), cli.parse([*options, "train.py"], {}), parent
        )
        for place in places():
            with suppress(UsageError):  # chips that cannot be shared out like that
                found |= environment.variables(place, parent).keys()
    return {re.sub("_(DP|TP)_", "_<AXIS>_", variable) for variable in found}


@pytest.mark.parametrize("name", ["torch", "jax", "tpu", "xla"])
def test_every_variable_that_a_framework_s_workers_get_has_a_row(name: str) -> None:
    shown = {kind.variable for kind in KINDS.values()}  # these are rules of devices
    missing = told(name) - {meaning.variable for meaning in VARIABLE_DESCRIPTIONS} - shown
    assert not missing


@pytest.mark.parametrize("name", ["torch", "jax", "tpu", "xla"])
def test_a_row_of_a_framework_is_a_variable_that_its_environment_sets(name: str) -> None:
    framework = "" if name == "torch" else name
    # What is not the framework's is the agent's: a real worker shows it (tests/end_to_end/test_worker_variables.py).
    rows = {
        meaning.variable
        for meaning in VARIABLE_DESCRIPTIONS
        if meaning.framework == framework and not (name == "torch" and meaning.variable.startswith("LAUNCHER_"))
    }
    assert rows <= told(name) | {"TORCHELASTIC_TIMER_FILE"}  # of the agent


def test_no_variable_has_two_rows() -> None:
    names = [(meaning.variable, meaning.framework) for meaning in VARIABLE_DESCRIPTIONS]
    assert len(set(names)) == len(names)


def test_every_kind_of_device_has_rules_for_each_step() -> None:
    subjects = {kind: {rule.subject for rule in RULES if rule.kind == kind} for kind in KINDS}
    assert all({"sign", "found by", "chosen by", "shown by"} <= found for found in subjects.values()), subjects


def test_every_key_of_a_place_belongs_to_a_source_and_a_level() -> None:
    assert {key.source for key in keys.KEYS} <= set(BUILT_IN)
    assert set(BUILT_IN) - {key.source for key in keys.KEYS} == {"slice", "nvlink"}, "these read no keys"
    words = {keys.FROM_NEAR, keys.FROM_FAR, keys.FROM_LAST}
    assert not [key for key in keys.KEYS if key.level and key.level not in LEVELS and key.level not in words]


def test_every_row_says_where_it_is_from() -> None:
    assert all(row.source for row in (*VARIABLE_DESCRIPTIONS, *RULES))
    assert all(key.citation for key in keys.KEYS)


def test_what_stands_in_a_cell_does_not_end_it() -> None:
    assert facts.table(("a", "b"), [("x|y", "z")]) == "| a | b |\n| --- | --- |\n| x\\|y | z |\n\n"
