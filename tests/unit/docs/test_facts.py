"""The reference pages that are tables of facts: they agree with the code, and leave out nothing of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import pairwise, product

import pytest

from launcher.agent import command
from launcher.config.frameworks import EnvironmentChoice
from launcher.extensions.devices.tpu import MODELS_BY_PCI_ID
from launcher.hardware.accelerators.contract import KINDS
from launcher.hardware.cloud_firmware import FIRMWARE_SIGNS
from launcher.hardware.slice_types import MODELS
from launcher.locality.gather import BUILT_IN
from launcher.locality.keys import FAMILIES, derive_levels
from launcher.model.errors import UsageError
from launcher.model.node import Device, Slot
from launcher.ranks.environments.contract import WorkerAssignment
from launcher.ranks.spec_builder import make_environments
from tests.support.documents.pages import ROOT, VARIABLES

# Environments that stand on their own, and what a machine of theirs may say before the start.
TPU_SLICE = {
    "TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "h0,h1,h2,h3", "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_TOPOLOGY": "4x4", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_PORT": "9000",
}  # fmt: skip
PARENTS: tuple[Mapping[str, str], ...] = ({}, {"JAX_COORDINATOR_BIND_ADDRESS": "0.0.0.0:1"}, TPU_SLICE)
OPTIONS = ((), ("--virtual-local-rank",), ("--device-binding=visible",))


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
            EnvironmentChoice((name,), ""), command.parse([*options, "train.py"], {}).workers, parent
        )
        for place in places():
            with suppress(UsageError):  # chips that cannot be shared out like that
                found |= environment.variables(place, parent).keys()
    return {re.sub("_(DP|TP)_", "_<AXIS>_", variable) for variable in found}


@pytest.mark.parametrize("name", ["torch", "jax", "paddle", "tpu", "xla"])
def test_every_variable_that_a_framework_s_workers_get_has_a_row(name: str) -> None:
    shown = {kind.variable for kind in KINDS.values()}  # these are rules of devices
    missing = told(name) - {row.name for row in VARIABLES} - shown
    assert not missing


@pytest.mark.parametrize("name", ["torch", "jax", "paddle", "tpu", "xla"])
def test_a_row_of_a_framework_is_a_variable_that_its_environment_sets(name: str) -> None:
    framework = "" if name == "torch" else name
    # What is not the framework's is the agent's: a real worker shows it (tests/end_to_end/test_worker_variables.py).
    rows = {
        row.name
        for row in VARIABLES
        if row.framework == framework and not (name == "torch" and row.name.startswith("LAUNCHER_"))
    }
    of_the_agent = {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}
    assert rows <= told(name) | of_the_agent


def rows(page: str, heading: str = "") -> list[list[str]]:
    """The cells of every row of a table below a heading of a reference page, without the heads."""
    text = (ROOT / f"docs/reference/{page}.md").read_text()
    section = text.partition(f"\n## {heading}")[2].partition("\n## ")[0] if heading else text
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line[2:-2].split(" | ") for line, after in pairwise([*lines, ""]) if not {line[:5], after[:5]} & {"| ---"}]


@pytest.mark.parametrize(
    ("kind", "heading"), [("nvidia", "NVIDIA"), ("amd", "AMD"), ("intel", "Intel"), ("tpu", "TPU")]
)
def test_every_kind_of_device_has_rules_for_each_step(kind: str, heading: str) -> None:
    rules = {subject: answer for subject, answer, source, evidence in rows("devices", heading) if source and evidence}
    assert {"indicator", "found by", "selected by", "exposed through"} <= set(rules)
    assert f"`{KINDS[kind].variable}`" in rules["exposed through"]
    assert all(f"`{sign}`" in rules["indicator"] for sign in (*KINDS[kind].driver_paths, *KINDS[kind].variables))


def test_every_tpu_model_and_source_of_locality_has_a_row() -> None:
    types = [answer for subject, answer, *_ in rows("devices", "TPU") if subject == "model"]
    assert len(types) == len(MODELS)
    for model, row in zip(MODELS, types, strict=True):
        assert row.startswith(f"`{model.names[0]}-N`: N {model.counted_unit}, ")
        ids = [id for id, names in MODELS_BY_PCI_ID.items() if model.name in names.split("/")]
        assert ids
        assert all(word in row for word in (*ids, str(model.host_chips[-1])))
    assert [row[0].strip("`") for row in rows("locality", "Sources")] == list(BUILT_IN)
    signs = [(cloud, file, text) for cloud, file, text, _ in rows("locality", "Signs of clouds")]
    assert signs == [
        (f"`{cloud}`", f"`{file}`", f"`{text}`") for cloud, known in FIRMWARE_SIGNS.items() for file, text in known
    ]


@pytest.mark.parametrize("source", FAMILIES)
def test_the_page_has_every_key_that_is_read_and_its_level(source: str) -> None:
    documented = {key.strip("`"): level for key, level, _ in rows("locality", f"Keys of {source}")}
    assert {key for family in FAMILIES[source] for key in family} <= documented.keys()
    for key, level in documented.items():
        name = key[:-1] + "3" if key.endswith("N") else key
        found = derive_levels(source, {name: "here", "cloud.google.com/gke-tpu-topology": "4x4x8"}).levels
        expected = "tier-3" if "for N from 0" in level else "leaf" if "for N from the highest" in level else level
        levels = [one.name for one in found if one.domain == "here"]
        assert levels == ([] if expected.startswith("none") else [expected.partition(";")[0].strip("`")]), key
